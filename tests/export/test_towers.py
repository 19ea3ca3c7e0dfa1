"""Towers of a model: what they give is what the model gives, or there are none."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import CASES, FEATURE_DIM, FIXED_REGIONS, make_batch, make_model
from picture_cases import photo

from selhn.base.errors import MissingExtra, SelhnError
from selhn.eval.stored import digest_of
from selhn.export import export_towers, networks, towers, towers_of
from selhn.models import MODELS
from selhn.pictures import load_extractor
from selhn.towers import Towers
from selhn.towers.onnx_check import check_graph
from selhn.towers.onnx_session import OnnxSession

pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
onnx = pytest.importorskip("onnx", reason="ONNX files need the extra onnx")
pytest.importorskip("onnxruntime", reason="ONNX files need the extra onnx")

TWO_TOWERS = [
    name for name in CASES if MODELS[name].family != "cross-attention" and name not in FIXED_REGIONS
]
OF_EVERY_KIND = ("rvse", "vsepp_order")
"""With a BiGRU and GPO, and with another score: the others take minutes together."""


def largest_difference(found, model, batch):
    """Between towers and their model, on both sides of a batch."""
    with torch.no_grad():
        images = model.encode_images(batch.regions, batch.region_mask)
        texts = model.encode_texts(batch.tokens, batch.token_mask)
    pairs = (
        (found.embed_regions(batch.regions.numpy(), batch.region_mask.numpy()), images),
        (found.embed_tokens(batch.tokens.numpy(), batch.token_mask.numpy()), texts),
    )
    return max(np.abs(own - wanted.numpy()).max() for own, wanted in pairs)


@pytest.mark.parametrize(
    "name",
    [name if name in OF_EVERY_KIND else pytest.param(name, marks=pytest.mark.slow) for name in TWO_TOWERS],
)
def test_towers_give_what_the_model_gives(name, exported):
    model, out, found = exported(name)
    for size in ({"pairs": 11, "regions": 8, "tokens": 13}, {"pairs": 1, "regions": 1, "tokens": 3}):
        assert largest_difference(found, model, make_batch(seed=5, **size)) < 1e-4
    texts = ["word3 word7", "an unknown word1", "Word2, word3 's"]
    assert np.abs(found.embed_texts(texts) - model.embed_texts(texts).numpy()).max() < 1e-4
    assert (found.name, found.digest, found.width) == (name, digest_of(model), 16)
    assert found.is_product == (name != "vsepp_order")
    assert found.features == ""
    images, texts = (np.random.default_rng(n).normal(size=(n + 2, 16)).astype("f4") for n in range(2))
    assert np.allclose(found.score(images, texts), towers_of(model).score(images, texts), atol=1e-5)
    tokens, mask = model.tokenize(["word3 word7"])
    for own, wanted in zip(found.tokenizer.encode(["word3 word7"]), (tokens, mask), strict=True):
        assert own.tolist() == wanted.tolist()
    kinds = model.tokenizer.kinds
    assert found.tokenizer.ordinary.tolist() == kinds.ordinary.tolist()
    assert found.tokenizer.inner.tolist() == kinds.inner.tolist()
    written = json.loads((out / "towers.json").read_text())
    assert all(difference < 1e-4 for difference in written["largest_difference"].values())
    assert (written["width"], written["image"]["feature_dim"]) == (16, FEATURE_DIM)


def test_pictures_go_through_the_vision_model(exported):
    model, _, found = exported("vse_fc", "pixels_16_8", feature_dim=192)
    extractor = load_extractor("pixels_16_8")
    by_torch = towers_of(model, extractor)
    pictures = [photo(n, (20 + 9 * n, 30)) for n in range(4)]
    assert np.abs(found.embed_pictures(pictures) - by_torch.embed_pictures(pictures)).max() < 1e-5
    assert (found.features, found.resized) == (extractor.identity, (16, 16))
    assert found.description.image.vision == "pixels_16_8"
    own, wanted = (one.embed_parts(one.prepare(pictures[1])) for one in (found, by_torch))
    assert np.abs(own[0] - wanted[0]).max() < 1e-5
    assert np.array_equal(own[1], wanted[1])


@pytest.mark.slow
def test_models_that_see_pixels(exported):
    model, _, found = exported("clip", "pixels_16_8", feature_dim=192, num_regions=5)
    picture = [photo(3)]
    by_torch = towers_of(model, load_extractor("pixels_16_8"))
    assert np.abs(found.embed_pictures(picture) - by_torch.embed_pictures(picture)).max() < 1e-5
    assert found.embed_parts(found.prepare(picture[0])) is None, "a patch alone is no picture"


def test_nothing_in_the_files_names_this_machine(exported):
    _, out, _ = exported("rvse")
    for name in ("image.onnx", "text.onnx"):
        check_graph(out / name, {})
        content = (out / name).read_bytes()
        assert b".py" not in content
        assert str(Path.home()).encode() not in content


def test_large_networks_have_their_weights_beside_them(tmp_path, monkeypatch, exporting):
    model = make_model("vse_fc")
    regions, mask = towers.random_regions(model, 4, 6, seed=0)
    names = ("images", "regions_of_image")
    network = networks.Network(
        networks.Side(model, "image"), towers.REGIONS, ("image_vector",), names, (regions, mask)
    )
    monkeypatch.setattr(networks, "BESIDE", 100)
    networks.write_network(network, tmp_path / "image.onnx")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.name != "image.onnx"}
    assert list(sizes) == ["image.weights"]
    check_graph(tmp_path / "image.onnx", sizes)
    inputs = dict(zip(towers.REGIONS, (regions.numpy(), mask.numpy()), strict=True))
    (found,) = OnnxSession(tmp_path / "image.onnx").run(["image_vector"], inputs)
    with torch.no_grad():
        assert np.abs(found - model.encode_images(regions, mask).numpy()).max() < 1e-5


@pytest.mark.slow
def test_images_of_one_number_of_regions(tmp_path):
    """In a program of its own: with the checks of shapes around its parts, torch takes the sizes for fixed."""
    program = "import sys, model_cases, selhn.export as export\n"
    program += "export.export_towers(model_cases.make_model('cvse'), sys.argv[1])"
    out, paths = tmp_path / "out", [str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", program, str(out)], check=True, env=environment)
    model, found = make_model("cvse"), Towers.open(out)
    assert largest_difference(found, model, make_batch(pairs=11, tokens=13)) < 1e-4
    assert found.width == 2 * model.settings["dim"]
    assert found.num_regions == model.settings["num_regions"]


@pytest.mark.slow
def test_two_networks_in_one(exported):
    model, _, found = exported("vsepp", networks=2)
    assert largest_difference(found, model, make_batch()) < 1e-4


def test_an_image_without_regions_is_zero(exported):
    _, _, found = exported("rvse")
    vectors = found.embed_regions(np.ones((2, 3, FEATURE_DIM), "f4"), np.zeros((2, 3), bool))
    assert np.array_equal(vectors, np.zeros((2, 16), "f4"))


def test_files_that_differ_are_not_left(tmp_path, monkeypatch, exported):
    _, other, _ = exported("rvse")
    monkeypatch.setattr(towers, "write_network", lambda network, file: shutil.copy(other / file.name, file))
    with pytest.raises(SelhnError, match="differs"):
        export_towers(make_model("vse_fc"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_touched(tmp_path):
    with pytest.raises(SelhnError):
        export_towers(make_model("vsepp"), tmp_path)


@pytest.mark.parametrize("name", [name for name in CASES if MODELS[name].family == "cross-attention"])
def test_cross_attention_has_no_towers(name, tmp_path):
    with pytest.raises(SelhnError):
        export_towers(make_model(name), tmp_path / "out")


def test_another_extractor_is_refused(tmp_path):
    with pytest.raises(SelhnError, match="192"):
        export_towers(make_model("vsepp"), tmp_path / "out", load_extractor("pixels_16_8"))


def test_without_the_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"ONNX files need onnxruntime: pip install .*\[onnx\]"):
        export_towers(make_model("vsepp"), tmp_path / "out")


def test_samples_have_padding_and_holes():
    """What the files are compared by must be able to tell a tower that looks at padding."""
    model = make_model("vsepp")
    _, regions = towers.random_regions(model, 9, 12, seed=1)
    tokens, words = towers.random_texts(model, 9, 12, seed=1)
    assert regions.any(1).all()
    assert not regions.all()
    assert bool((~regions[:, :-1] & regions[:, 1:]).any())
    assert words[:, 0].all()
    assert not words.all()
    assert bool((tokens[~words] == model.tokenizer.pad_id).all())
