"""Towers as ONNX files: what they give is what the model gives, or there are none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import CASES, FEATURE_DIM, FIXED_REGIONS, make_batch, make_model

from selhn.base.errors import MissingExtra, SelhnError
from selhn.export import export_towers, towers
from selhn.export.towers import TOWERS
from selhn.models import MODELS
from selhn.text import load_tokenizer

pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
onnx = pytest.importorskip("onnx", reason="ONNX files need the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX files need the extra onnx")

TWO_TOWERS = [
    name for name in CASES if MODELS[name].family != "cross-attention" and name not in FIXED_REGIONS
]


def run(folder, tower, values, mask):
    session = onnxruntime.InferenceSession(str(folder / tower.file))
    return session.run(None, {tower.inputs[0]: values.numpy(), tower.inputs[1]: mask.numpy()})[0]


def both_sides(model, batch):
    with torch.no_grad():
        yield (
            TOWERS[0],
            batch.regions,
            batch.region_mask,
            model.encode_images(batch.regions, batch.region_mask),
        )
        yield TOWERS[1], batch.tokens, batch.token_mask, model.encode_texts(batch.tokens, batch.token_mask)


OF_EVERY_KIND = ("rvse", "vsepp_order")
"""With a BiGRU and GPO, and with another score: the others take minutes together."""


@pytest.mark.parametrize(
    "name",
    [name if name in OF_EVERY_KIND else pytest.param(name, marks=pytest.mark.slow) for name in TWO_TOWERS],
)
def test_towers_give_what_the_model_gives(name, exported):
    model, out, description = exported(name)
    for size in ({"pairs": 11, "regions": 8, "tokens": 13}, {"pairs": 1, "regions": 1, "tokens": 3}):
        for tower, values, mask, wanted in both_sides(model, make_batch(seed=5, **size)):
            assert np.abs(run(out, tower, values, mask) - wanted.numpy()).max() < 1e-4
            assert description["largest_difference"][tower.side] < 1e-4
    told = json.loads((out / "towers.json").read_text())
    assert told == json.loads(json.dumps(description))
    assert (told["d"], told["feature_dim"]) == (wanted.shape[1], FEATURE_DIM)
    assert told["score"] == ("-|max(0, text - image)|" if name == "vsepp_order" else "image . text")
    words = ["word3 word7"]
    assert load_tokenizer(out).encode(words)[0].tolist() == model.tokenize(words)[0].tolist()
    assert told["tokenizer"]["size"] == model.tokenizer.size
    inputs = {
        one.name: one.shape
        for one in onnxruntime.InferenceSession(str(out / "image_tower.onnx")).get_inputs()
    }
    assert inputs == {
        "regions": ["images", "regions_of_image", FEATURE_DIM],
        "region_mask": ["images", "regions_of_image"],
    }


@pytest.mark.slow
def test_images_of_one_number_of_regions(tmp_path):
    """In a program of its own: with the checks of shapes around its parts, torch takes the sizes for fixed."""
    program = "import sys, model_cases, selhn.export as export\n"
    program += "export.export_towers(model_cases.make_model('cvse'), sys.argv[1])"
    out, paths = tmp_path / "out", [str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", program, str(out)], check=True, env=environment)
    model = make_model("cvse")
    for tower, values, mask, wanted in both_sides(model, make_batch(pairs=11, tokens=13)):
        assert np.abs(run(out, tower, values, mask) - wanted.numpy()).max() < 1e-4
    assert json.loads((out / "towers.json").read_text())["d"] == 2 * model.settings["dim"]
    regions, _ = onnxruntime.InferenceSession(str(out / "image_tower.onnx")).get_inputs()
    assert regions.shape == ["images", model.settings["num_regions"], FEATURE_DIM]


@pytest.mark.slow
def test_two_networks_in_one(exported):
    model, out, _ = exported("vsepp", networks=2)
    for tower, values, mask, wanted in both_sides(model, make_batch()):
        assert np.abs(run(out, tower, values, mask) - wanted.numpy()).max() < 1e-4


def test_an_image_without_regions_is_zero(exported):
    _, out, _ = exported("rvse")
    found = run(out, TOWERS[0], torch.rand(2, 3, FEATURE_DIM), torch.zeros(2, 3, dtype=torch.bool))
    assert np.array_equal(found, np.zeros((2, 16), dtype=np.float32))


def test_files_that_differ_are_not_left(tmp_path, monkeypatch, exported):
    _, other, _ = exported("rvse")
    monkeypatch.setattr(towers, "_graph", lambda model, tower: onnx.load(other / tower.file))
    with pytest.raises(SelhnError):
        export_towers(make_model("vse_fc"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_touched(tmp_path):
    with pytest.raises(SelhnError):
        export_towers(make_model("vsepp"), tmp_path)


@pytest.mark.parametrize("name", [name for name in CASES if MODELS[name].family == "cross-attention"])
def test_cross_attention_has_no_towers(name, tmp_path):
    with pytest.raises(SelhnError):
        export_towers(make_model(name), tmp_path / "out")


def test_without_the_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"ONNX files need onnxruntime: pip install .*\[onnx\]"):
        export_towers(make_model("vsepp"), tmp_path / "out")


def test_samples_have_padding_and_holes():
    """What the files are compared by must be able to tell a tower that looks at padding."""
    model = make_model("vsepp")
    _, regions = towers._sample(model, TOWERS[0], 9, 12, seed=1)
    tokens, words = towers._sample(model, TOWERS[1], 9, 12, seed=1)
    assert regions.any(1).all()
    assert not regions.all()
    assert bool((~regions[:, :-1] & regions[:, 1:]).any())
    assert words[:, 0].all()
    assert not words.all()
    assert bool((tokens[~words] == model.tokenizer.pad_id).all())
