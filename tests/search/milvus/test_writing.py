import pytest
import torch
from index_cases import make_item
from model_cases import make_model

from selhn.search import Item
from selhn.search.milvus.rows import key_of
from selhn.search.milvus.store import MilvusStore
from selhn.search.milvus.writing import CLOCK, put_items, wanted_items


@pytest.fixture
def store(uri):
    store = MilvusStore(uri)
    store.create(16)
    return store


def names(wanted):
    return [record.id for _, record in wanted.values()]


def test_what_has_to_be_encoded(store):
    items = [make_item(number) for number in range(4)]
    put_items(store, make_model("rvse"), 16, wanted_items(store, items[:2], "refuse"))
    assert store.count("images") == 2
    assert store.count("texts") == 4
    assert names(wanted_items(store, items, "skip")) == ["item2", "item3"]
    assert names(wanted_items(store, items, "replace")) == ["item2", "item3"]
    other = make_item(0, captions=("word9",))
    assert names(wanted_items(store, [other, items[2]], "replace")) == ["item0", "item2"]
    # The last of several of one id counts, and it is the one that is there.
    assert names(wanted_items(store, [other, items[0]], "replace")) == []
    assert [item for item, _ in wanted_items(store, [items[2], items[3], items[2]], "skip").values()] == items[2:]
    with pytest.raises(ValueError, match="there is an item 'item0' already"):
        wanted_items(store, items, "refuse")
    put_items(store, make_model("rvse"), 16, {})


def test_texts_of_before_are_removed(store):
    model = make_model("rvse")
    put_items(store, model, 16, wanted_items(store, [make_item(1), make_item(2)], "refuse"))
    put_items(store, model, 16, wanted_items(store, [make_item(1, captions=("word5",))], "replace"))
    captions = sorted(row.record["caption"] for row in store.rows("texts") if row.owner == key_of("item1"))
    assert captions == ["word5"]
    assert store.count("texts") == 3


def test_items_that_cannot_be_kept(store):
    with pytest.raises(ValueError, match="Milvus takes 65,000"):
        wanted_items(store, [Item("a", torch.rand(1, 12), metadata={"x": "y" * 70_000})], "refuse")
    with pytest.raises(ValueError, match="give a text of 1 to"):
        wanted_items(store, [Item("", torch.rand(1, 12))], "refuse")


def test_no_two_rows_have_the_same_time():
    times = [next(CLOCK) for _ in range(1000)]
    assert times == sorted(set(times))
    assert times[-1] < 2**53
