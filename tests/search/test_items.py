from dataclasses import replace

import pytest
import torch

from selhn.data import load_data
from selhn.search.items import Item, Query, Record, checked_weights, split_ids, split_items


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return {"deep": value}


def test_some_depth_is_kept():
    assert Record.from_line(Record.of(Item("a", metadata=nested(20))).to_line()).metadata == nested(20)


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (Item(""), "give a text of 1 to 4096 characters"),
        (Item("x" * 5000), "give a text of 1 to 4096 characters"),
        (Item("a", captions=("a dog", " ")), "captions of 'a' must be texts, none of them empty"),
        (Item("a", metadata={"size": float("nan")}), "'a' cannot be kept as JSON"),
        (Item("a", metadata={"size": {1, 2}}), "'a' cannot be kept as JSON"),
        (Item("a\udcff"), "cannot be kept as JSON"),
        (Item("a", metadata={"text": "x" * 2**20}), "keep them elsewhere"),
        (Item("a", metadata=nested(40)), "nested more than 32 deep"),
        (Item("a", metadata=nested(100_000)), "nested more than 32 deep"),
    ],
)
def test_items_that_cannot_be_kept(item, sentence):
    with pytest.raises(ValueError, match=sentence):
        Record.of(item).to_line()


def test_a_record_is_one_line_and_comes_back():
    record = Record("日本/ключ\n.jpg", ("two\nlines\u2028here",), {"tags": ["a", None, 1.5], "deep": {"x": True}})
    line = record.to_line()
    assert line.count(b"\n") == 1
    assert Record.from_line(line) == record


@pytest.mark.parametrize("line", [b"", b"[", b"[]", b"{}", b'{"id": 1, "captions": [], "metadata": {}}', b"\xff"])
def test_a_line_that_is_none(line):
    with pytest.raises(ValueError, match="an item"):
        Record.from_line(line)


def test_the_items_of_a_split():
    split = load_data("world", images=100).test
    items = list(split_items(split, frozenset(split_ids(split)[3:])))
    assert [item.id for item in items] == list(split.image_names[:3])
    regions, mask = split.features.gather(torch.tensor([2]))
    assert torch.equal(items[2].regions, regions[0][mask[0]])
    assert items[2].captions == tuple(split.captions[10:15])


def test_names_that_a_split_has_twice():
    split = load_data("world", images=100).test
    names = ["a"] * split.num_images
    assert split_ids(replace(split, image_names=names))[:3] == ["a", "a#1", "a#2"]


def test_weights():
    query = Query(text="a", like="b", weights={"text": 3, "like": -1})
    assert checked_weights(query, ["text", "like"]) == {"text": 0.75, "like": -0.25}
    assert checked_weights(Query(text="a"), ["text"]) == {"text": 1.0}
    for weights, sentence in (
        ({"image": 1}, "a weight for 'image' and no such part"),
        ({"text": 0, "like": 0}, "not all 0"),
        ({"text": float("inf")}, "give finite numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            checked_weights(replace(query, weights=weights), ["text", "like"])
