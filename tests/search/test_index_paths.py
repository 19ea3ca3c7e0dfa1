from pathlib import Path

import pytest

from selhn.base.errors import NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index, Item
from selhn.search.stores import SegmentStore
from selhn.search.stores.milvus import MilvusStore


def test_a_folder(tmp_path, model, make_item):
    place = tmp_path / "photos.index"
    assert not Index.exists(place)
    index = Index.create(towers_of(model), place, precision="int8", about={"a": 1})
    assert isinstance(index.store, SegmentStore)
    index.add([make_item(1)])
    assert Index.exists(place)
    assert Index.exists(str(place))
    opened = Index.load(place)
    assert (len(opened), opened.identity.precision, opened.about, opened.found_by) == (
        1,
        "int8",
        {"a": 1},
        "exact",
    )
    assert (opened.location, opened.num_texts, opened.generation) == (str(place), 2, index.generation)
    assert [record.id for record in opened.records("year > 2000")] == ["item1"]
    assert list(opened.records("year > 2001")) == []


def test_a_path_that_ends_like_a_file_of_milvus_is_a_folder(tmp_path, model):
    Index.create(towers_of(model), Path(tmp_path / "x.db"))
    assert (tmp_path / "x.db" / "manifest.json").exists()


def test_milvus(tmp_path, model, make_item):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    place = str(tmp_path / "photos.db#some")
    assert not Index.exists(place)
    with pytest.raises(ValueError, match="vectors in Milvus are float32, not int8"):
        Index.create(towers_of(model), place, precision="int8")
    Index.create(towers_of(model), place, about={"a": 1}).add([make_item(1)])
    assert Index.exists(place)
    opened = Index.load(place, towers_of(model))
    assert isinstance(opened.store, MilvusStore)
    assert (len(opened), opened.about, opened.path) == (1, {"a": 1}, place)


def test_records_in_the_order_of_their_dates(index, make_item):
    def named(index=index, **asked):
        return [record.id.removeprefix("item") for record in index.records(**asked)]

    assert named(order="newest") == named(order="oldest") == sorted(named()), "no dates: by id"
    times = {"taken": "2019-06-14 15:03:22", "modified": "2024-01-01 00:00:00"}
    index.update([Item("item3", metadata=times), Item("item7", metadata={"modified": "2020-01-01 00:00:00"})])
    index.add([make_item(30, metadata=times), make_item(31, metadata={"taken": "2018-01-01 00:00:00"})])
    index.delete(["item1"])
    again = Index.load(index.path)
    for one in (index, again):
        assert named(one, order="newest")[:5] == ["7", "30", "3", "31", "0"]
        assert named(one, order="oldest")[:5] == ["31", "3", "30", "7", "0"]
        assert named(one, where="taken >= 2019-06 and taken < 2019-09", order="oldest") == ["3", "30"]
        assert named(one, where="date = 2020 or date = 2018", order="newest") == ["7", "31"]
        assert named(one, order="newest", first=2)[:2] == ["3", "31"]
        assert named(one, first=20) == named(one)[20:]
    for ask in (lambda: list(index.records("yaer = 1")), lambda: index.count("yaer = 1")):
        with pytest.raises(NotFound, match="did you mean 'year'"):
            ask()


@pytest.mark.usefixtures("as_a_user")
def test_an_order_that_there_is_not(index):
    with pytest.raises(SelhnError, match='order is \'up\': choose "newest" or "oldest"'):
        index.records(order="up")
