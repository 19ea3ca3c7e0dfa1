"""`selhn export` as a person meets it."""

import shutil

import numpy as np
import pytest
import torch
from model_cases import make_model
from tower_cases import WIDTH, write_towers
from typer.testing import CliRunner

from selhn.base.errors import SelhnError
from selhn.cli.export import export_app
from selhn.data import load_data
from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item
from selhn.text import Vocabulary
from selhn.towers import Description

RUNNER = CliRunner()


def say(*words):
    result = RUNNER.invoke(export_app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_an_index(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra export")
    items = [Item(f"i{n}", torch.rand(2, 12), captions=("word1", f"word{n}")) for n in range(5)]
    Index.build(towers_of(make_model("rvse")), items, tmp_path / "index")
    assert "5 rows in" in say("embeddings", tmp_path / "index", tmp_path / "out")
    assert np.load(tmp_path / "out" / "img_emb" / "img_emb_0.npy").shape == (5, 16)
    assert "10 rows in" in say("embeddings", tmp_path / "index", tmp_path / "pairs", "--rows", "pair")
    with pytest.raises(ValueError, match="unknown --layout 'other': use clip-retrieval"):
        say("embeddings", tmp_path / "index", tmp_path / "new", "--layout", "other")
    with pytest.raises(ValueError, match="--rows is 'all': choose image or pair"):
        say("embeddings", tmp_path / "index", tmp_path / "new", "--rows", "all")


def test_a_saved_model_encodes_its_data(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra export")
    data = load_data("world")
    words = Vocabulary.build(data.test.captions)
    create_model("vse_fc", tokenizer=words, feature_dim=data.feature_dim, dim=8).save(tmp_path / "model")
    said = say("embeddings", tmp_path / "model", tmp_path / "out", "--data", "world", "--split", "dev")
    assert said.startswith(f"{data.dev.num_images:,} rows in")
    assert "text_emb" in said


def test_towers(tmp_path, monkeypatch):
    calls, folder = [], write_towers(tmp_path / "towers", regions=True)

    def exported(source, out, *how):
        calls.append((source, *how))
        shutil.copytree(folder, out)
        return Description.read(out)

    monkeypatch.setattr("selhn.export.export_source", exported)
    said = say("towers", "runs/rvse", tmp_path / "out", "--data", "world")
    assert calls == [("runs/rvse", None, "world")]
    assert (
        f"tiny, {WIDTH} numbers, from regions: image.onnx, text.onnx, tokenizer.json, towers.json in" in said
    )
    assert "only regions can be indexed with these towers" in said
    say("towers", "runs/rvse", tmp_path / "second", "--extractor", "ready")
    assert calls[1] == ("runs/rvse", "ready", None)


def test_the_name_before_says_the_new_one(tmp_path):
    with pytest.raises(SelhnError, match="selhn export towers RUN OUT"):
        say("onnx", "RUN", "OUT")
