from pathlib import Path

import pytest

from selhn.search import Index, MilvusIndex, create_index, has_index, load_index


def test_a_folder(tmp_path, model, make_item):
    place = tmp_path / "photos.index"
    assert not has_index(place)
    index = create_index(place, model, precision="int8", about={"a": 1})
    assert isinstance(index, Index)
    index.add([make_item(1)])
    assert has_index(place)
    assert has_index(str(place))
    opened = load_index(place)
    assert isinstance(opened, Index)
    assert (len(opened), opened.identity.precision, opened.about, opened.found_by) == (1, "int8", {"a": 1}, "exact")
    assert (opened.place, opened.num_texts, opened.generation) == (str(place), 2, index.generation)
    assert [record.id for record in opened.records("year > 2000")] == ["item1"]
    assert list(opened.records("year > 2001")) == []


def test_a_path_that_ends_like_a_file_of_milvus_is_a_folder(tmp_path, model):
    create_index(Path(tmp_path / "x.db"), model)
    assert (tmp_path / "x.db" / "manifest.json").exists()


def test_milvus(tmp_path, model, make_item):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    place = str(tmp_path / "photos.db#some")
    assert not has_index(place)
    with pytest.raises(ValueError, match="vectors in Milvus are float32, not int8"):
        create_index(place, model, precision="int8")
    create_index(place, model, about={"a": 1}).add([make_item(1)])
    assert has_index(place)
    opened = load_index(place, model)
    assert isinstance(opened, MilvusIndex)
    assert (len(opened), opened.about, opened.place) == (1, {"a": 1}, place)
