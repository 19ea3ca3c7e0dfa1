import torch

from selhn.search import Item, Record
from selhn.search.milvus.rows import Row, content_of, hit_of, key_of, ordered, record_of


def row(score, added):
    return Row("k", "k", "c", added, {"id": "a", "captions": ["x"], "metadata": {"n": 1}}, None, score)


def test_keys_are_letters_and_digits():
    names = ["a", "A", 'a"', "\udcff", "x" * 4096, "é"]
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(key.isalnum() and len(key) == 40 for key in keys)


def test_content_tells_what_an_item_is_made_from():
    item = Item("a", torch.ones(2, 3), captions=("x",), metadata={"n": 1})
    others = [
        Item("a", torch.zeros(2, 3), captions=("x",), metadata={"n": 1}),
        Item("a", torch.ones(3, 2), captions=("x",), metadata={"n": 1}),
        Item("a", torch.ones(2, 3), captions=("y",), metadata={"n": 1}),
        Item("a", torch.ones(2, 3), captions=("x",), metadata={"n": 2}),
        Item("a", None, torch.ones(6), captions=("x",), metadata={"n": 1}),
    ]
    contents = {content_of(one, Record.of(one)) for one in (item, *others)}
    assert len(contents) == 6
    assert content_of(item, Record.of(item)) == content_of(item, Record.of(item))


def test_order_is_that_of_scores_then_of_adding():
    rows = [row(0.5, 3), row(0.9, 4), row(0.5, 1), row(0.9, 2)]
    assert [(one.score, one.added) for one in ordered(rows)] == [(0.9, 2), (0.9, 4), (0.5, 1), (0.5, 3)]


def test_rows_as_answers():
    assert record_of(row(0, 1)) == Record("a", ("x",), {"n": 1})
    image = hit_of(row(0.5, 7), "image")
    assert (image.score, image.position, image.name, image.captions, image.id) == (0.5, 7, "a", ("x",), "a")
    text = Row("k0", "k", "c", 8, {"id": "a", "caption": "x", "metadata": {}}, None, 0.1)
    assert (hit_of(text, "text").name, hit_of(text, "text").captions) == ("x", ())
