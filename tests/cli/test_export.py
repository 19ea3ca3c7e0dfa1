"""`selhn export` as a person meets it."""

import json

import numpy as np
import pytest
import torch
from model_cases import make_model
from typer.testing import CliRunner

from selhn.cli.export import export_app
from selhn.data import load_data
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import ready
from selhn.search import Index, Item
from selhn.text import Vocabulary

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


def test_onnx(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
    pytest.importorskip("onnxruntime", reason="ONNX files need the extra onnx")
    calls = []
    monkeypatch.setattr(
        "selhn.export.export_towers", lambda *given: calls.append(given) or exported(given[1])
    )
    make_model("vsepp").save(tmp_path / "model")
    assert "vsepp, d = 16: towers.json in" in say("onnx", tmp_path / "model", tmp_path / "out")
    assert (calls[0][0].name, calls[0][2]) == ("vsepp", {})
    monkeypatch.setattr(ready, "load_ready_model", lambda: make_model("rvsepp"))
    monkeypatch.setattr(
        "selhn.pictures.load_extractor", lambda: type("Extractor", (), {"identity": "features of a test"})()
    )
    monkeypatch.chdir(tmp_path)
    say("onnx", "ready", "second")
    assert (calls[1][0].name, calls[1][2]) == ("rvsepp", {"regions": "features of a test"})


def exported(folder):
    folder.mkdir()
    (folder / "towers.json").write_text(json.dumps({}))
    return {"model": {"name": "vsepp"}, "d": 16, "largest_difference": {"image": 1e-7, "text": 2e-7}}
