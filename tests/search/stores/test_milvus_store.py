"""The verbs of the store in Milvus, and how it asks for more rows until enough pass the filter."""

import hashlib

import pytest
import torch
from index_cases import make_item
from model_cases import make_model

from selhn.search import Index, Record
from selhn.search.query import QueryVectors
from selhn.search.stores import milvus
from selhn.search.stores.milvus import MilvusStore, key_of
from selhn.search.stores.milvus_rows import MilvusRows, Row
from selhn.search.stores.store import Identity
from selhn.search.where import read_filter


def row(score, added):
    return Row("k", "k", "c", added, {"id": "a", "captions": ["x"], "metadata": {"n": 1}}, None, score)


def test_keys_are_letters_and_digits():
    names = ["a", "A", 'a"', "\udcff", "x" * 4096, "é"]
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(key.isalnum() and len(key) == 40 for key in keys)


def test_order_is_that_of_scores_then_of_adding():
    rows = [row(0.5, 3), row(0.9, 4), row(0.5, 1), row(0.9, 2)]
    passing = MilvusStore(Remembering([]), Identity("", "", 1))._passing(rows, "image", None)
    assert [(one.score, one.added) for one in passing] == [(0.9, 2), (0.9, 4), (0.5, 1), (0.5, 3)]


def test_rows_as_answers():
    assert row(0, 1).item == Record("a", ("x",), {"n": 1})
    image = row(0.5, 7).item.hit(0.5)
    assert (image.score, image.kind, image.name, image.captions, image.id) == (0.5, "image", "a", ("x",), "a")
    text = Row("k0", "k", "c", 8, {"id": "a", "caption": "x", "metadata": {}}).item.hit(0.1, "x")
    assert (text.kind, text.name, text.captions) == ("text", "x", ())


def test_what_has_to_be_encoded(uri):
    model = make_model("rvse")
    store, items = Index.create(model, uri).store, [make_item(number) for number in range(4)]

    def names(items, existing):
        return [one.record.id for batch in store.encoded(model, items, existing) for one in batch]

    assert store.put(store.encoded(model, items[:2], "refuse")) == 2
    assert (store.count("image"), store.count("text")) == (2, 4)
    assert names(items, "skip") == ["item2", "item3"]
    assert names(items, "replace") == ["item2", "item3"]
    other = make_item(0, captions=("word9",))
    assert names([other, items[2]], "replace") == ["item0", "item2"]
    # The last of several with one id counts, and that is what is stored.
    assert names([other, items[0]], "replace") == []
    assert names([items[2], items[3], items[2]], "skip") == ["item2", "item3"]
    store.put(store.encoded(model, [make_item(1, captions=("word5",))], "replace"))
    assert [one.record["caption"] for one in store.rows.scan("texts") if one.owner == key_of("item1")] == ["word5"]
    assert store.count("text") == 3


def test_no_two_rows_have_the_same_time(remote):
    remote.add([make_item(number) for number in range(100, 110)])
    times = [row.added for which in ("images", "texts") for row in remote.store.rows.scan(which)]
    assert len(set(times)) == len(times) == 90
    assert max(times) < 2**53


class Remembering(MilvusRows):
    """A store of rows whose scores are given, which counts what is asked of it."""

    def __init__(self, scores):
        self.all = [
            Row(f"k{n}", f"k{n}", "c", n, {"id": f"i{n}", "metadata": {"n": n}}, torch.tensor([score]))
            for n, score in enumerate(scores)
        ]
        self.uri, self.limits, self.walks = "", [], 0

    def nearest(self, which, queries, limit, expression, searching):
        assert expression == ""
        self.limits.append((len(queries), limit))
        scored = [[Row(*[*vars(row).values()][:5], None, float(q @ row.vector)) for row in self.all] for q in queries]
        return [sorted(rows, key=lambda row: -row.score)[:limit] for rows in scored]

    def searching(self):
        return "exact"

    def scan(self, which, expression, vectors):
        self.walks += 1
        return iter(self.all)


def found(rows, k, where=None, queries=((1.0,),)):
    filter = None if where is None else read_filter(where)
    asked = QueryVectors(make_model("rvse"), {"text": torch.tensor(queries)}, {"text": torch.ones(len(queries))})
    answers = MilvusStore(rows, Identity("", "", 1)).nearest(asked, "image", k, filter)
    return [[hit.metadata["n"] for hit in own] for own in answers]


def test_once_where_the_first_answers_are_enough():
    store = Remembering([0.1, 0.9, 0.5, 0.7])
    assert found(store, 2, queries=((1.0,), (-1.0,))) == [[1, 3], [0, 2]]
    assert store.limits == [(2, 18)]


def test_equal_scores_at_the_end_are_all_looked_at():
    store = Remembering([0.9, *[0.5] * 200, 0.8])
    assert found(store, 4, queries=((1.0,), (-1.0,))) == [[0, 201, 1, 2], [1, 2, 3, 4]]
    assert store.limits == [(2, 20), (2, 80), (2, 320)]
    assert store.walks == 0


def test_a_filter_that_leaves_few():
    store = Remembering([1 - n / 1000 for n in range(1000)])
    assert found(store, 3, "not n < 300") == [[300, 301, 302]]
    assert [limit for _, limit in store.limits] == [19, 76, 304]


def test_a_filter_that_leaves_nothing_of_the_nearest(monkeypatch):
    monkeypatch.setattr(milvus, "MOST_HITS", 50)
    store = Remembering([1 - n / 5000 for n in range(5000)])
    assert found(store, 3, "not n < 4000") == [[4000, 4001, 4002]]
    assert [limit for _, limit in store.limits] == [19, 50]
    assert store.walks == 1


def test_ties_beyond_what_milvus_gives_are_accepted(monkeypatch):
    monkeypatch.setattr(milvus, "MOST_HITS", 20)
    store = Remembering([0.5] * 100)
    assert found(store, 3) == [[0, 1, 2]]
    assert store.walks == 0


@pytest.mark.parametrize("k", [1, 10])
def test_fewer_than_asked_for(k):
    assert found(Remembering([0.5, 0.6]), k) == [[1, 0][:k]]
    assert found(Remembering([]), k) == [[]]


def test_the_layout_of_rows_stays(uri):
    """Collections that an earlier version wrote have these keys and records."""
    store = Index.create(make_model("rvse"), uri).store
    item = make_item(1, captions=("word5",))
    store.put(store.encoded(make_model("rvse"), [item], "refuse"))
    key, content = hashlib.blake2b(b"item1", digest_size=20).hexdigest(), item.content(Record.of(item))
    (image,), (text,) = store.rows.scan("images"), store.rows.scan("texts")
    assert (image.key, image.owner, image.content) == (key, key, content)
    assert image.record == {"id": "item1", "metadata": dict(item.metadata), "captions": ["word5"]}
    assert (text.key, text.owner, text.content) == (f"{key}{content[:16]}000000", key, content)
    assert text.record == {"id": "item1", "metadata": dict(item.metadata), "caption": "word5"}
    about = store.rows.get("about", ["identity"])["identity"].record
    assert sorted(about) == ["about", "model", "model_name", "selhn", "version", "width"]
    assert about["version"] == 1
