from pathlib import Path

import pytest

from selhn.search import Index
from selhn.search.stores import SegmentStore
from selhn.search.stores.milvus import MilvusStore


def test_a_folder(tmp_path, model, make_item):
    place = tmp_path / "photos.index"
    assert not Index.exists(place)
    index = Index.create(model, place, precision="int8", about={"a": 1})
    assert isinstance(index.store, SegmentStore)
    index.add([make_item(1)])
    assert Index.exists(place)
    assert Index.exists(str(place))
    opened = Index.load(place)
    assert (len(opened), opened.identity.precision, opened.about, opened.found_by) == (1, "int8", {"a": 1}, "exact")
    assert (opened.location, opened.num_texts, opened.generation) == (str(place), 2, index.generation)
    assert [record.id for record in opened.records("year > 2000")] == ["item1"]
    assert list(opened.records("year > 2001")) == []


def test_a_path_that_ends_like_a_file_of_milvus_is_a_folder(tmp_path, model):
    Index.create(model, Path(tmp_path / "x.db"))
    assert (tmp_path / "x.db" / "manifest.json").exists()


def test_milvus(tmp_path, model, make_item):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    place = str(tmp_path / "photos.db#some")
    assert not Index.exists(place)
    with pytest.raises(ValueError, match="vectors in Milvus are float32, not int8"):
        Index.create(model, place, precision="int8")
    Index.create(model, place, about={"a": 1}).add([make_item(1)])
    assert Index.exists(place)
    opened = Index.load(place, model)
    assert isinstance(opened.store, MilvusStore)
    assert (len(opened), opened.about, opened.path) == (1, {"a": 1}, place)
