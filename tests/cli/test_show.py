import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selhn.base.errors import NotFound
from selhn.base.types import Attention
from selhn.cli.show import attention, attention_table, diagnose
from selhn.data import load_data, write_native
from selhn.models import create_model
from selhn.runs import RunFolder
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model, and its data in our own format, of which no scene can be drawn."""
    place, data = tmp_path_factory.mktemp("show"), load_data("world", images=100)
    vocabulary = Vocabulary.build(data.train.captions)
    for name in ("bfan_equal", "rvse"):
        create_model(name, tokenizer=vocabulary, feature_dim=data.feature_dim, dim=16, word_dim=8).save(
            place / name
        )
    write_native(data, place / "data")
    return place


def test_a_table_and_a_picture(saved, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    photo = tmp_path / "photo.png"
    Image.fromarray(np.zeros((40, 160, 3), dtype=np.uint8)).save(photo)
    sizes = []
    for picture in (None, photo):
        out = tmp_path / "out.png"
        attention(
            saved / "bfan_equal", "test-scene-000002", None, str(saved / "data"), out=out, photo=picture
        )
        with Image.open(out) as drawn:
            sizes.append(drawn.size)
    assert sizes[0][1] > sizes[1][1], "a wide photo has low panels"
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("test-scene-000002  score ")
    assert lines[0].split()[:4] == ["<start>", "looks", "at", "region"]


def test_mistakes(saved, tmp_path):
    data = str(saved / "data")
    with pytest.raises(ValueError, match="rvse makes one vector"):
        attention(saved / "rvse", "0", "a ball", data)
    with pytest.raises(ValueError, match="dev has no image 'x'"):
        attention(saved / "bfan_equal", "x", "a ball", data, split="dev")
    with pytest.raises(NotFound, match="nowhere.jpg"):
        attention(
            saved / "bfan_equal", "0", "a ball", data, out=tmp_path / "a.png", photo=tmp_path / "nowhere.jpg"
        )


def test_the_table_of_regions_that_look():
    weights, kept = torch.tensor([[0.1, 0.6], [0.9, 0.4]]), torch.tensor([0.25, 0.5])
    found = Attention(0.5, of_regions=weights, kept=kept, words=("a", "ball"), is_word=(True, True))
    assert attention_table(found).splitlines() == [
        "  a     is looked at by  region  1  60%   region  0  10%   counts 25%",
        "  ball  is looked at by  region  0  90%   region  1  40%   counts 50%",
    ]


def test_a_photo_that_is_none_is_named(saved, tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    data = str(saved / "data")
    with pytest.raises(ValueError, match=r"text.jpg cannot be read as a picture"):
        attention(
            saved / "bfan_equal", "0", "a ball", data, out=tmp_path / "a.png", photo=tmp_path / "text.jpg"
        )


def test_the_verdict_on_a_run_is_kept_with_it(tmp_path, capsys):
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "version_0_2_0" / "run", tmp_path / "run")
    diagnose(tmp_path / "run", as_json=True)
    assert RunFolder(tmp_path / "run").verdict == json.loads(capsys.readouterr().out)
    shutil.copy(tmp_path / "run" / "log.jsonl", tmp_path / "log.jsonl")
    diagnose(tmp_path / "log.jsonl")
    assert not (tmp_path / "verdict.json").exists()
