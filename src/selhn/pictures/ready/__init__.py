"""The model `selhn.load_model("ready")`: heads and projection are here, MiniLM is another package."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.tensor_files import check_fits, read_tensors
from selhn.data import Projection
from selhn.layers.bert import MINILM
from selhn.models import VSE, create_model
from selhn.search.fit import FIT_FILE, Fit

READY = "ready"
FOLDER = Path(__file__).parent
CONFIG_FILE, HEADS_FILE, PROJECTION_FILE = "config.json", "heads.safetensors", "projection.safetensors"
INSTALL = "install selhn again"
_TOWER = "text.words."


def load_ready_model(bert: str | Path = MINILM, folder: Path = FOLDER) -> VSE:
    """The ready model in evaluation mode, on the CPU: shipped heads on a frozen MiniLM.

    Args:
        bert: "minilm", from its Python package, or the folder of the same MiniLM.
    """
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are thrown away
        model = create_model(config["name"], bert=bert, freeze_bert=True, **config["settings"])
    assert isinstance(model, VSE)
    state = model.state_dict()
    if not torch.allclose(tower_sample(state), torch.tensor(config["tower_sample"]), atol=1e-4):
        raise SelhnError(f"{bert} is not the MiniLM of the ready model: take all-MiniLM-L6-v2")
    heads = read_tensors(folder / HEADS_FILE, INSTALL)
    check_fits(head_weights(state), heads, str(folder / HEADS_FILE))
    model.load_state_dict(heads, strict=False)
    return model.eval()


def load_ready_projection(folder: Path = FOLDER) -> Projection:
    """Of the features that the ready model was trained on."""
    found = read_tensors(folder / PROJECTION_FILE, INSTALL)
    return Projection(*(found[name].float() for name in ("mean", "components", "scale")))


def load_ready_fit(folder: Path = FOLDER) -> Fit:
    """Judges the scores of the ready model; `benchmarks/cutoff.py learn` makes it."""
    return Fit.read(folder / FIT_FILE)


def head_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is shipped of the weights of a model: all but its text tower."""
    return {key: value for key, value in state.items() if not key.startswith(_TOWER)}


def tower_sample(state: Mapping[str, Tensor]) -> Tensor:
    """Weights by which the text tower that the heads were trained with is recognised."""
    words = state[f"{_TOWER}bert.embeddings.word_embeddings.weight"]
    return words[[row % len(words) for row in (1000, 2000, 3000)], :4]
