"""The ready model as towers: equal to the one in torch, made once, and made again when it is damaged."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from picture_cases import need_ready_model
from safetensors.numpy import load_file

from selhn import load_model
from selhn.base.errors import Damaged, SelhnError
from selhn.eval.stored import digest_of
from selhn.pictures import grid_boxes, load_extractor, open_picture
from selhn.pictures.examples import PICTURES
from selhn.towers import Towers, open_towers
from selhn.towers import ready as shipped_ready
from selhn.towers.ready import FOLDER, HEADS_FILE, ready_folder
from selhn.towers.ready.networks import gpo_weights

SENTENCES = ["dog", "two dogs run through the snow", "an éclair, and 3 unseen_words ☃", "a " * 600]
ALONE = """
import sys

sys.modules["torch"] = None
from selhn.towers import open_towers

towers = open_towers("ready")
print(towers.embed_texts(["dog"]).shape, sorted(towers._sessions))
assert not any(name.startswith(("selhn.models", "selhn.ops", "selhn.data", "selhn.text")) for name in sys.modules)
"""


def linked(source, copy):
    """A copy of a small file, the same file if it is large."""
    (os.link if os.path.getsize(source) > 10**6 else shutil.copyfile)(source, copy)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cache folder with the towers of the ready model."""
    need_ready_model()
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        open_towers("ready")
    return folder


@pytest.fixture
def cache(made, tmp_path, monkeypatch):
    """A copy of it."""
    shutil.copytree(made, tmp_path / "cache", copy_function=linked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_vectors_are_those_of_torch(made, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(made))
    towers, model, extractor = open_towers("ready"), load_model("ready"), load_extractor()
    assert (towers.digest, towers.name, towers.width) == (digest_of(model), model.name, 1024)
    assert (towers.source, towers.features, towers.resized) == ("ready", extractor.identity, (260, 260))
    texts = towers.embed_texts(SENTENCES)
    assert texts.dtype == np.float32
    assert (texts * model.embed_texts(SENTENCES).numpy()).sum(1).min() > 0.99999
    pictures = [open_picture(path).image for path in sorted(PICTURES.glob("*.jpg"))[:4]]
    regions = extractor(pictures)
    found = towers.embed_pictures(pictures)
    assert (found * model.embed_images(regions).numpy()).sum(1).min() > 0.99999
    parts, boxes = towers.embed_parts(towers.prepare(pictures[0]))
    alone = model.embed_images(regions[0, 1:, None]).numpy()
    assert (parts * alone).sum(1).min() > 0.99999
    np.testing.assert_allclose(boxes, grid_boxes(3)[1:], atol=1e-6)
    kinds, tokenizer = model.tokenizer.kinds, towers.tokenizer
    assert tokenizer.ordinary.tolist() == kinds.ordinary.tolist()
    assert tokenizer.inner.tolist() == kinds.inner.tolist()
    for ours, theirs in zip(tokenizer.encode(SENTENCES), model.tokenizer.encode(SENTENCES)):
        assert np.array_equal(ours, theirs)


def test_the_pooling_weights_are_those_of_torch():
    heads = load_file(FOLDER / HEADS_FILE)
    need_ready_model()
    gpo = load_model("ready").text.gpo
    with torch.inference_mode():
        wanted = gpo.weights(torch.arange(1, 41), 40).numpy()
    found = gpo_weights(heads, "text.gpo.", 40)
    assert found.shape == (41, 40)
    assert not found[0].any()
    np.testing.assert_allclose(found[1:], wanted, atol=1e-6)


def test_a_sentence_needs_no_torch_and_no_network_for_pictures(cache):
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "(1, 1024) ['text.onnx']\n", done.stderr[-2000:]


def test_they_are_ordinary_towers_and_are_made_once(cache, monkeypatch):
    monkeypatch.setattr("selhn.towers.ready.assembly.write_towers", lambda folder: pytest.fail("made again"))
    folder = ready_folder()
    assert folder.parent == cache / "selhn"
    ours, theirs = open_towers("ready"), Towers.open(folder)
    assert np.array_equal(ours.embed_texts(["dog"]), theirs.embed_texts(["dog"]))
    assert json.loads(json.dumps(vars(ours.cutoff))) == {
        name: value
        for name, value in json.loads((FOLDER / "fit.json").read_text()).items()
        if name != "model"
    }
    assert theirs.digest == ours.digest


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("text.weights", damage) for damage in ("changed", "cut", "gone")),
        *((name, "changed") for name in ("text.onnx", "image.weights", "tokenizer.json")),
        ("towers.json", "cut"),
    ],
)
def test_what_is_damaged_in_the_cache_is_made_again(cache, made, monkeypatch, name, damage):
    """Other files of the folder are kept as they are; here they are copied, which is quicker than to compute them."""
    path = ready_folder() / name
    content = path.read_bytes()
    before = made / "selhn" / path.parent.name
    calls = []

    def write(folder):
        calls.append(folder)
        shutil.copytree(before, folder, dirs_exist_ok=True, copy_function=linked)

    monkeypatch.setattr("selhn.towers.ready.assembly.write_towers", write)
    path.unlink()  # the file is a link
    if damage != "gone":
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(changed if damage == "changed" else content[:-9])
    towers = open_towers("ready")
    if name == "image.weights":
        towers.embed_pictures([open_picture(PICTURES / "000000000790.jpg").image])
    else:
        towers.embed_texts(["dog"])
    assert path.read_bytes() == content
    assert len(calls) == 1


def test_a_shipped_file_that_is_damaged_is_named(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "ready")
    (tmp_path / "ready" / HEADS_FILE).write_bytes(b"?")
    monkeypatch.setattr(shipped_ready, "FOLDER", tmp_path / "ready")
    with pytest.raises(
        Damaged, match="heads.safetensors is missing or not as published: install selhn again"
    ):
        shipped_ready.shipped(HEADS_FILE)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    need_ready_model()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SelhnError, match="XDG_CACHE_HOME"):
        open_towers("ready")
