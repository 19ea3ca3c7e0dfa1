import pytest

from selhn.export import towers_of
from selhn.search import Index
from selhn.search.stores import segments, store


def test_small_segments_are_put_together_and_stay_in_order(model, make_item, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SMALL_SEGMENTS", 4)
    index = Index.create(towers_of(model), tmp_path / "i")
    for number in range(11):
        index.add([make_item(number)])
        assert len(index.store.snapshot.segments) <= 5
        assert index.ids() == [f"item{n}" for n in range(number + 1)]
    assert len(list((tmp_path / "i" / "segments").iterdir())) == len(index.store.snapshot.segments)


def test_large_segments_are_left_alone(model, make_item, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_ITEMS", 3)
    monkeypatch.setattr(store, "ENCODED_AT_ONCE", 3)
    monkeypatch.setattr(segments, "SMALL_SEGMENTS", 2)
    index = Index.create(towers_of(model), tmp_path / "i")
    index.add(make_item(number) for number in range(10))
    assert [len(part) for part in index.store.snapshot.segments] == [3, 3, 3, 1]


def test_items_are_taken_as_they_are_needed(model, make_item, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_ITEMS", 4)
    monkeypatch.setattr(store, "ENCODED_AT_ONCE", 2)

    def items():
        for number in range(9):
            yield make_item(number)
        raise RuntimeError("the camera broke")

    index = Index.create(towers_of(model), tmp_path / "i")
    with pytest.raises(RuntimeError, match="the camera broke"):
        index.add(items())
    assert len(index) == len(Index.load(tmp_path / "i")) == 8, "what was written before stays"
    index.add((make_item(number) for number in range(12)), existing="skip")
    assert index.ids() == [f"item{n}" for n in range(12)]


def test_ids_that_come_twice(model, make_item):
    index = Index.create(towers_of(model))
    with pytest.raises(ValueError, match="there is an item 'item1' already"):
        index.add([make_item(1), make_item(1)])
    assert index.add([make_item(1), make_item(2), make_item(1)], existing="skip") == 2
    assert index.add([make_item(9, "item1"), make_item(8, "item1")], existing="replace") == 1
    assert index.get("item1").metadata["year"] == 2008


@pytest.mark.usefixtures("as_a_user")
def test_what_is_done_with_ids_that_are_there(model):
    with pytest.raises(ValueError, match="existing is 'maybe': choose"):
        Index.create(towers_of(model)).add([], existing="maybe")
