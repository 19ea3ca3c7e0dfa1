"""Towers as ONNX files: what they give is what the model gives, or there are none."""

import json

import numpy as np
import pytest
import torch
from model_cases import CASES, make_batch, make_model

from selhn.export.towers import TOWERS, export_towers
from selhn.models import MODELS
from selhn.text import load_tokenizer

pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX files need the extra onnx")

TWO_TOWERS = [name for name in CASES if MODELS[name].family != "cross-attention"]


def run(folder, tower, values, mask):
    session = onnxruntime.InferenceSession(str(folder / tower.file))
    return session.run(None, {tower.inputs[0]: values.numpy(), tower.inputs[1]: mask.numpy()})[0]


@pytest.mark.parametrize("name", TWO_TOWERS)
def test_towers_give_what_the_model_gives(name, tmp_path, unchecked):
    model, batch = make_model(name), make_batch(pairs=11, regions=8, tokens=13, seed=5)
    description = export_towers(model, tmp_path / "out")
    with torch.no_grad():
        images = model.encode_images(batch.regions, batch.region_mask)
        texts = model.encode_texts(batch.tokens, batch.token_mask)
    for tower, wanted, given in zip(
        TOWERS, (images, texts), ((batch.regions, batch.region_mask), (batch.tokens, batch.token_mask))
    ):
        found = run(tmp_path / "out", tower, *given)
        assert np.abs(found - wanted.numpy()).max() < 1e-4
        assert description["largest_difference"][tower.side] < 1e-4
    assert description["d"] == images.shape[1]
    assert json.loads((tmp_path / "out" / "towers.json").read_text())["score"] == description["score"]
    assert (
        load_tokenizer(tmp_path / "out").encode(["word3 word7"])[0].tolist()
        == model.tokenize(["word3 word7"])[0].tolist()
    )
