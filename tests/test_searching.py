from pathlib import Path

import pytest
import torch

from selhn.data import load_data
from selhn.models import create_model, load_model
from selhn.retrieve import Index
from selhn.searching import DEFAULT_INDEX, ask, change_index, describe, fill_index
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "rvse"
    data = load_data("world")
    torch.manual_seed(0)
    words = Vocabulary.build(data.dev.captions)
    create_model("rvse", tokenizer=words, feature_dim=data.feature_dim, dim=8).save(folder)
    return folder


def test_filling_asking_changing(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = fill_index("world", DEFAULT_INDEX, saved, "dev", "int8")
    assert said == describe(Index.load(DEFAULT_INDEX))
    assert "8 numbers each in int8, by rvse" in said
    number = len(Index.load(DEFAULT_INDEX))
    hits = ask(["a red ball"], DEFAULT_INDEX, k=2)
    assert [hit.metadata for hit in hits] == [{"split": "dev"}] * 2
    assert ask([str(tmp_path / DEFAULT_INDEX), "a red ball"], Path("elsewhere"), k=2) == hits
    assert hits[0].id not in {hit.id for hit in ask([], DEFAULT_INDEX, like=hits[0].id)}
    assert ask(["a red ball"], DEFAULT_INDEX, where="split = test") == []
    said = change_index(DEFAULT_INDEX, [hits[0].id], compact=True, check=True, approximate="exact")
    assert said.startswith(f"{DEFAULT_INDEX}: {number - 1:,} images")
    assert said.endswith("; every file is what was written")


def test_indexing_that_was_stopped_is_gone_on_with(saved, tmp_path):
    fill_index("world", tmp_path / "i", saved, "dev")
    index = Index.load(tmp_path / "i")
    every = index.ids()
    index.delete(every[10:])
    fill_index("world", tmp_path / "i", None, "dev")
    assert Index.load(tmp_path / "i").ids() == every


def test_what_is_missing(saved, tmp_path):
    with pytest.raises(ValueError, match="nothing to index: name a data set"):
        fill_index(None, Index.create(load_model(saved), tmp_path / "made").path, None)
    with pytest.raises(ValueError, match="there is no index .* yet: name the run or the model"):
        fill_index("world", tmp_path / "none", None)
    with pytest.raises(ValueError, match="there is no index .*: make one with `selhn index`"):
        ask(["a dog"], tmp_path / "none")
    with pytest.raises(ValueError, match="write `selhn search"):
        ask(["a", "b", "c"], tmp_path / "none")
