"""The towers folder of the ready model, made of what is shipped and of MiniLM."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Shaped
from safetensors.numpy import load, load_file

from selhn.base.minilm import minilm_file
from selhn.base.sealed import digest_file
from selhn.base.version import __version__
from selhn.towers.description import (
    DESCRIPTION_FILE,
    Cutoff,
    Description,
    ImageSide,
    Parts,
    TextSide,
    of_json,
)
from selhn.towers.efficientnet_lite import SIZES
from selhn.towers.graph import Graph
from selhn.towers.preparation import Preparation
from selhn.towers.ready import (
    FIT_FILE,
    FOLDER,
    HEADS_FILE,
    LITE2,
    PROJECTION_FILE,
    READY,
    checksum,
    ready_config,
    shipped,
)
from selhn.towers.ready.networks import (
    IMAGE,
    PARTS,
    PIXELS,
    TEXT,
    TOKENS,
    grid_boxes,
    image_model,
    text_model,
)

TOKENIZER_FILE = "tokenizer.json"
NETWORKS = {"image": ("image.onnx", "image.weights"), "text": ("text.onnx", "text.weights")}
FILES = (*(name for names in NETWORKS.values() for name in names), TOKENIZER_FILE, DESCRIPTION_FILE)
LEFT, RIGHT, SCALE = ".left", ".right", ".scale"
_BERT = "text.words.bert."

Weights = Mapping[str, Shaped[np.ndarray, "..."]]


def write_towers(folder: Path) -> None:
    """Fill an empty folder: both networks, the tokenizer, and what describes them."""
    heads, config = load_file(shipped(HEADS_FILE)), json.loads(minilm_file("config.json"))
    projection = {name: own.astype(np.float32) for name, own in load_file(shipped(PROJECTION_FILE)).items()}
    weights = adapted(heads, load(minilm_file("model.safetensors")))
    bert = {name.removeprefix(_BERT): own for name, own in weights.items() if name.startswith(_BERT)}
    settings = config["num_attention_heads"], config["layer_norm_eps"]
    for kind, (model, beside) in NETWORKS.items():
        with (folder / beside).open("wb") as file:
            graph = Graph(file, beside)
            network = (
                image_model(graph, load_file(shipped(LITE2)), projection, weights)
                if kind == "image"
                else text_model(graph, bert, weights, *settings)
            )
        (folder / model).write_bytes(network)
    tokenizer = minilm_file(TOKENIZER_FILE)
    (folder / TOKENIZER_FILE).write_bytes(tokenizer)
    pieces, longest = json.loads(tokenizer)["model"]["vocab"], config["max_position_embeddings"]
    content = description(projection, pieces, longest, folder).content()
    (folder / DESCRIPTION_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def adapted(
    packed: Mapping[str, Shaped[np.ndarray, "..."]], published: Weights
) -> dict[str, Float[np.ndarray, "..."]]:
    """All weights of the model except those of the vision model, in float32.

    A matrix of the text tower is shipped as its update: W = W0 + L' diag(scale) R, with few rows in L and R.
    """
    weights = {f"{_BERT}{name}": own for name, own in published.items()}
    for name, own in packed.items():
        if name.endswith(LEFT):
            name = name.removesuffix(LEFT)
            right = packed[name + SCALE][:, None] * packed[name + RIGHT].astype(np.float32)
            weights[name] = weights[name] + own.astype(np.float32).T @ right
        elif not name.endswith((RIGHT, SCALE)):
            weights[name] = own.astype(np.float32)
    return weights


def description(projection: Weights, pieces: Mapping[str, int], longest: int, folder: Path) -> Description:
    """What `towers.json` says of a folder that has all other files."""
    config, fit = ready_config(), json.loads((FOLDER / FIT_FILE).read_text(encoding="utf-8"))
    form = hashlib.sha256(b"".join(projection[name].tobytes() for name in ("mean", "components", "scale")))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused")
    side = SIZES[2].side
    return Description(
        name=config["name"],
        digest=fit.pop("model"),
        width=config["settings"]["dim"],
        score="product",
        image=ImageSide(
            NETWORKS["image"][0],
            "pixels",
            (PIXELS,),
            IMAGE,
            features=f"{config['features']}, , {form.hexdigest()[:16]}",
            parts=Parts(PARTS, tuple(map(tuple, grid_boxes()[1:].tolist()))),
            vision=READY,
        ),
        text=TextSide(
            NETWORKS["text"][0],
            TOKENS,
            TEXT,
            TOKENIZER_FILE,
            pad_id=pieces["[PAD]"],
            max_length=longest,
            special=tuple(sorted(number for piece, number in pieces.items() if piece.startswith(special))),
            inner_prefix="##",
        ),
        pictures=Preparation((side, side), (127.0,) * 3, (128.0,) * 3),
        cutoff=of_json(Cutoff, FIT_FILE, fit),
        sha256={name: digest_file(folder / name) for name in FILES[:-1]},
        about={
            "model": READY,
            "trained": config["trained"],
            "crc32": {name: checksum(folder / name) for name in FILES[:-1]},
            "versions": {"selhn": __version__},
        },
    )
