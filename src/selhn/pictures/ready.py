"""The model `selhn.load_model("ready")` in torch, from the files in `selhn/towers/ready`, and MiniLM, a package."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.minilm import MINILM
from selhn.base.tensor_files import NothingDrawn, check_fits, read_tensors
from selhn.data import Projection
from selhn.models import VSE, create_model
from selhn.search.fit import Fit
from selhn.towers.ready import CONFIG_FILE, FIT_FILE, FOLDER, HEADS_FILE, INSTALL, PROJECTION_FILE
from selhn.towers.ready.assembly import LEFT, RIGHT, SCALE

_TOWER = "text.words."
WORD_VECTORS = f"{_TOWER}bert.embeddings."
"""The part of the text tower that is as published."""


def load_ready_model(bert: str | Path = MINILM, folder: Path = FOLDER) -> VSE:
    """The ready model in evaluation mode, on the CPU: shipped heads, and MiniLM with its updates added.

    Args:
        bert: "minilm", from its Python package, or the folder of the same MiniLM.
    """
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    with torch.random.fork_rng(devices=[]), NothingDrawn():
        model = create_model(config["name"], bert=bert, freeze_bert=True, **config["settings"])
    assert isinstance(model, VSE)
    state = model.state_dict()
    if not torch.allclose(tower_sample(state), torch.tensor(config["tower_sample"]), atol=1e-4):
        raise SelhnError(f"{bert} is not the MiniLM of the ready model: use all-MiniLM-L6-v2")
    shipped = adapted(read_tensors(folder / HEADS_FILE, INSTALL), state)
    wanted = {name: weight for name, weight in state.items() if not name.startswith(WORD_VECTORS)}
    check_fits(wanted, shipped, str(folder / HEADS_FILE))
    model.load_state_dict(shipped, strict=False)
    return model.eval()


def load_ready_projection(folder: Path = FOLDER) -> Projection:
    """The projection of the features that the ready model was trained on."""
    found = read_tensors(folder / PROJECTION_FILE, INSTALL)
    return Projection(*(found[name].float() for name in ("mean", "components", "scale")))


def load_ready_fit(folder: Path = FOLDER) -> Fit:
    """Judges the scores of the ready model; `benchmarks/cutoff.py learn` makes it."""
    return Fit.read(folder / FIT_FILE)


def adapted(packed: Mapping[str, Tensor], published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model except word vectors, from the shipped and the published ones.

    A matrix of the text tower is shipped as its update: W = W0 + L' diag(scale) R, with few rows in L and R.
    """
    state = {name: weight for name, weight in packed.items() if not name.endswith((LEFT, RIGHT, SCALE))}
    for name in (name.removesuffix(LEFT) for name in packed if name.endswith(LEFT)):
        left, right = packed[name + LEFT].float(), packed[name + RIGHT].float()
        state[name] = published[name] + left.T @ (packed[name + SCALE][:, None] * right)
    return state


def tower_sample(state: Mapping[str, Tensor]) -> Tensor:
    """Weights by which the text tower that the heads were trained with is recognised."""
    words = state[f"{_TOWER}bert.embeddings.word_embeddings.weight"]
    return words[[row % len(words) for row in (1000, 2000, 3000)], :4]
