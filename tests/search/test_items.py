from dataclasses import replace

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.data.splits import split_ids
from selhn.search import Item, Query, Record
from selhn.search.items import split_items


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
        (Item(""), "give 1 to 4096 characters"),
        (Item("x" * 5000), "give 1 to 4096 characters"),
        (Item("a", captions=("a dog", " ")), "give texts, none of them empty"),
        (Item("a", metadata={"size": float("nan")}), "'a' is not JSON"),
        (Item("a", metadata={"size": {1, 2}}), "'a' is not JSON"),
        (Item("a\udcff"), "is not JSON"),
        (Item("a", metadata=nested(40)), "nested more than 32 deep"),
        (Item("a", metadata=nested(100_000)), "nested more than 32 deep"),
    ],
)
def test_items_that_cannot_be_kept(item, sentence):
    with pytest.raises(ValueError, match=sentence):
        Record.of(item).to_line()


def test_a_record_is_one_line_and_comes_back():
    record = Record(
        "日本/ключ\n.jpg", ("two\nlines\u2028here",), {"tags": ["a", None, 1.5], "deep": {"x": True}}
    )
    line = record.to_line()
    assert line.count(b"\n") == 1
    assert Record.from_line(line) == record


@pytest.mark.parametrize(
    "line", [b"", b"[", b"[]", b"{}", b'{"id": 1, "captions": [], "metadata": {}}', b"\xff"]
)
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


@pytest.mark.parametrize(
    ("words", "text", "without"),
    [
        ("dog -snow", "dog", "snow"),
        ("-snow a  dog -grass", "a dog", "snow grass"),
        ("a well-known dog - in -5 degrees", "a well-known dog - in -5 degrees", None),
        ("-snow", None, "snow"),
        ("  ", "  ", None),
    ],
)
def test_words_that_are_not_wanted(words, text, without):
    query = Query.minus(words)
    assert (query.text, query.without) == (text, without)


def test_what_is_not_wanted_counts_against():
    assert Query("a", without="b").shares == {"text": pytest.approx(2 / 3), "without": pytest.approx(-1 / 3)}
    with pytest.raises(SelhnError, match="only says what is not wanted"):
        _ = Query(without="b").shares


def test_weights():
    query = Query(text="a", like="b", weights={"text": 3, "like": -1})
    assert query.shares == {"text": 0.75, "like": -0.25}
    assert Query(text="a").shares == {"text": 1.0}
    for weights, sentence in (
        ({"image": 1}, "a weight for 'image' but no such part"),
        ({"text": 0, "like": 0}, "not all 0"),
        ({"text": float("inf")}, "give finite numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            _ = replace(query, weights=weights).shares


def test_content_tells_what_an_item_is_made_from():
    item = Item("a", torch.ones(2, 3), captions=("x",), metadata={"n": 1})
    others = [
        Item("a", torch.zeros(2, 3), captions=("x",), metadata={"n": 1}),
        Item("a", torch.ones(3, 2), captions=("x",), metadata={"n": 1}),
        Item("a", torch.ones(2, 3), captions=("y",), metadata={"n": 1}),
        Item("a", torch.ones(2, 3), captions=("x",), metadata={"n": 2}),
        Item("a", None, torch.ones(6), captions=("x",), metadata={"n": 1}),
    ]
    contents = {one.content(Record.of(one)) for one in (item, *others)}
    assert len(contents) == 6
    assert item.content(Record.of(item)) == item.content(Record.of(item))
