"""Small towers folders without torch, and what is forged in them."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from selhn.towers import Cutoff, Description, ImageSide, Parts, Preparation, TextSide
from selhn.towers.description import of_json
from selhn.towers.words import word_tokenizer

WORDS = ["<pad>", "<start>", "<end>", "<unk>", "a", "red", "ball", "dog", "in", "the", "snow", "'s", "<mask>"]
SPECIAL = (0, 1, 2, 3, 12)
WIDTH, SIDE, FEATURES = 4, 8, 6
BOXES = ((0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0))


def weights(name, *shape, seed=0):
    return numpy_helper.from_array(np.random.default_rng(seed).normal(size=shape).astype("f4"), name)


def network(nodes, inputs, outputs, initializers, domains=("",), **of_model):
    """The bytes of a network."""
    graph = helper.make_graph(nodes, "network", inputs, outputs, initializers)
    imports = [helper.make_opsetid(domain, 18) for domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **of_model).SerializeToString()


def floats(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def of_pixels(parts=False, extra=(), **of_model):
    """`unit(W pixels)`, and perhaps two parts that are the vector and its opposite."""
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "W"], ["raw"]),
        helper.make_node("LpNormalization", ["raw"], ["image_vector"], axis=1, p=2),
        *extra,
    ]
    outputs = [floats("image_vector", "B", WIDTH)]
    if parts:
        nodes += [
            helper.make_node("Neg", ["image_vector"], ["other"]),
            helper.make_node("Unsqueeze", ["image_vector", "one"], ["first"]),
            helper.make_node("Unsqueeze", ["other", "one"], ["second"]),
            helper.make_node("Concat", ["first", "second"], ["part_vectors"], axis=1),
        ]
        outputs.append(floats("part_vectors", "B", 2, WIDTH))
    values = [weights("W", 3 * SIDE * SIDE, WIDTH), numpy_helper.from_array(np.array([1]), "one")]
    return network(nodes, [floats("pixels", "B", 3, SIDE, SIDE)], outputs, values, **of_model)


def masked_mean(values, mask):
    return [
        helper.make_node("Cast", [mask], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "last"], ["share"]),
        helper.make_node("Mul", [values, "share"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["share", "middle"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
    ]


AXES = [numpy_helper.from_array(np.array([2]), "last"), numpy_helper.from_array(np.array([1]), "middle")]


def of_regions():
    """`mean(regions) W`."""
    nodes = [
        *masked_mean("regions", "region_mask"),
        helper.make_node("MatMul", ["mean", "W"], ["image_vector"]),
    ]
    mask = helper.make_tensor_value_info("region_mask", TensorProto.BOOL, ("I", "M"))
    return network(
        nodes,
        [floats("regions", "I", "M", FEATURES), mask],
        [floats("image_vector", "I", WIDTH)],
        [weights("W", FEATURES, WIDTH), *AXES],
    )


def of_tokens(extra=()):
    """The mean of word vectors."""
    nodes = [
        helper.make_node("Gather", ["E", "tokens"], ["words"]),
        *masked_mean("words", "token_mask"),
        helper.make_node("LpNormalization", ["mean"], ["text_vector"], axis=1, p=2),
        *extra,
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ("T", "N"))
    mask = helper.make_tensor_value_info("token_mask", TensorProto.BOOL, ("T", "N"))
    values = [weights("E", len(WORDS), WIDTH, seed=1), *AXES]
    return network(nodes, [tokens, mask], [floats("text_vector", "T", WIDTH)], values)


def write_towers(
    folder, *, regions=False, parts=False, bank=False, files=(), text=None, cutoff=None, **changes
):
    """A towers folder.

    Args:
        files: (name, content) instead of, or beside, those that are written.
        text: other values of its `TextSide`.
        changes: other values of its `Description`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "image.onnx": of_regions() if regions else of_pixels(parts),
        "text.onnx": of_tokens(),
        "tokenizer.json": word_tokenizer(WORDS).encode(),
        **dict(files),
    }
    for name, data in content.items():
        (folder / name).write_bytes(data)
    if bank:
        np.save(folder / "bank.npy", np.eye(3, WIDTH, dtype="f4"))
    if regions:
        image = ImageSide(
            "image.onnx", "regions", ("regions", "region_mask"), "image_vector", feature_dim=FEATURES
        )
    else:
        own = Parts("part_vectors", BOXES) if parts else None
        image = ImageSide("image.onnx", "pixels", ("pixels",), "image_vector", "tiny pixels", parts=own)
    described = {
        "name": "tiny",
        "digest": "0123" * 6,
        "width": WIDTH,
        "score": "product",
        "image": image,
        "text": TextSide(
            "text.onnx", ("tokens", "token_mask"), "text_vector", **{"special": SPECIAL, **(text or {})}
        ),
        "pictures": None if regions else Preparation((SIDE, SIDE), (127.5,) * 3, (127.5,) * 3),
        "bank": "bank.npy" if bank else None,
        "cutoff": None if cutoff is None else of_json(Cutoff, "cutoff", cutoff),
        "sha256": sums(folder),
    }
    write_description(folder, Description(**described | changes).content())
    return folder


def sums(folder):
    """The checksums of all files of a folder."""
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).iterdir())
        if path.name != "towers.json" and path.is_file()
    }


def write_description(folder, content):
    (folder / "towers.json").write_text(json.dumps(content))


def change_description(folder, change):
    """Change what `towers.json` says, and let its checksums fit again."""
    content = json.loads((folder / "towers.json").read_text())
    change(content)
    write_description(folder, content)


def with_graph(data, change):
    """The bytes of a network that was changed."""
    model = onnx.load_from_string(data)
    change(model)
    return model.SerializeToString()
