"""The verbs of the store in Milvus, and how it asks for more rows until enough pass the filter."""

import hashlib
import signal
import sys
import time
from unittest.mock import patch

import pytest
import torch
from index_cases import make_item
from model_cases import make_model
from programs import run

from selhn.base.errors import NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index, Item, Record
from selhn.search.query import QueryVectors
from selhn.search.stores import milvus
from selhn.search.stores.milvus import MilvusStore
from selhn.search.stores.milvus_rows import IDENTITY, MilvusRows, Row
from selhn.search.stores.server import key_of
from selhn.search.where import read_filter


def row(score, added):
    return Row("k", "k", "c", added, {"id": "a", "captions": ["x"], "metadata": {"n": 1}}, None, score)


@pytest.fixture
def remote(lite, model):
    index = Index.create(towers_of(model), lite)
    index.add(make_item(number) for number in range(20))
    return index


def test_keys_are_letters_and_digits():
    names = ["a", "A", 'a"', "\udcff", "x" * 4096, "é"]
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(key.isalnum() and len(key) == 40 for key in keys)


def test_order_is_that_of_scores_then_of_adding():
    rows = [row(0.5, 3), row(0.9, 4), row(0.5, 1), row(0.9, 2)]
    passing = milvus._passing(rows, None, None)
    assert [(one.score, one.added) for one in passing] == [(0.9, 2), (0.9, 4), (0.5, 1), (0.5, 3)]


def test_rows_as_answers():
    assert row(0, 1).item == Record("a", ("x",), {"n": 1})
    image = row(0.5, 7).item.hit(0.5)
    assert (image.score, image.kind, image.name, image.captions, image.id) == (0.5, "image", "a", ("x",), "a")
    text = Row("k0", "k", "c", 8, {"id": "a", "caption": "x", "metadata": {}}).item.hit(0.1, "x")
    assert (text.kind, text.name, text.captions) == ("text", "x", ())


def test_what_has_to_be_encoded(lite):
    model = make_model("rvse")
    store, items = Index.create(towers_of(model), lite).store, [make_item(number) for number in range(4)]

    def names(items, existing):
        return [one.record.id for batch in store.encoded(towers_of(model), items, existing) for one in batch]

    assert store.put(store.encoded(towers_of(model), items[:2], "refuse")) == 2
    assert (store.count("image"), store.count("text")) == (2, 4)
    assert names(items, "skip") == ["item2", "item3"]
    assert names(items, "replace") == ["item2", "item3"]
    other = make_item(0, captions=("word9",))
    assert names([other, items[2]], "replace") == ["item0", "item2"]
    # The last of several with one id counts, and that is what is stored.
    assert names([other, items[0]], "replace") == []
    assert names([items[2], items[3], items[2]], "skip") == ["item2", "item3"]
    store.put(store.encoded(towers_of(model), [make_item(1, captions=("word5",))], "replace"))
    assert [one.record["caption"] for one in store.rows.scan("texts") if one.owner == key_of("item1")] == [
        "word5"
    ]
    assert store.count("text") == 3


def test_no_two_rows_have_the_same_time(remote):
    remote.add([make_item(number) for number in range(100, 110)])
    times = [row.added for which in ("images", "texts") for row in remote.store.rows.scan(which)]
    assert len(set(times)) == len(times) == 90
    assert max(times) < 2**53


class Remembering(MilvusRows):
    """A store of rows whose scores are given, which counts what is asked of it."""

    finds_within = True

    def __init__(self, scores):
        self.all = [
            Row(f"k{n}", f"k{n}", "c", n, {"id": f"i{n}", "metadata": {"n": n}}, torch.tensor([score]))
            for n, score in enumerate(scores)
        ]
        self.uri, self.limits, self.walks = "", [], 0

    def nearest(self, which, queries, limit, expression, searching):
        assert expression == ""
        self.limits.append((len(queries), limit))
        scored = [
            [Row(*[*vars(row).values()][:5], None, float(q @ row.vector)) for row in self.all]
            for q in queries
        ]
        return [sorted(rows, key=lambda row: -row.score)[:limit] for rows in scored]

    def searching(self):
        return "exact"

    def scan(self, which, expression, vectors):
        self.walks += 1
        return iter(self.all)


def store_of(rows):
    with patch.object(milvus, "MilvusRows", lambda uri: rows):
        store = MilvusStore("")
    store.found_by = "exact"
    return store


def found(rows, k, where=None, queries=((1.0,),)):
    filter = None if where is None else read_filter(where)
    asked = QueryVectors(
        towers_of(make_model("rvse")), {"text": torch.tensor(queries)}, {"text": torch.ones(len(queries))}
    )
    answers = store_of(rows).nearest(asked, "image", k, filter)
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


def test_the_layout_of_rows_stays(lite):
    """Collections that an earlier version wrote have these keys and records."""
    store = Index.create(towers_of(make_model("rvse")), lite).store
    item = make_item(1, captions=("word5",))
    store.put(store.encoded(towers_of(make_model("rvse")), [item], "refuse"))
    key, content = hashlib.blake2b(b"item1", digest_size=20).hexdigest(), item.content(Record.of(item))
    (image,), (text,) = store.rows.scan("images"), store.rows.scan("texts")
    assert (image.key, image.owner, image.content) == (key, key, content)
    assert image.record == {"id": "item1", "metadata": dict(item.metadata), "captions": ["word5"]}
    assert (text.key, text.owner, text.content) == (f"{key}{content[:16]}000000", key, content)
    assert text.record == {"id": "item1", "metadata": dict(item.metadata), "caption": "word5"}
    about = store.rows.get("about", ["identity"])["identity"].record
    assert sorted(about) == ["about", "born", "model", "model_name", "selhn", "version", "width"]
    assert about["version"] == 1


def test_texts_that_a_writer_left_who_was_stopped_are_no_answers(remote, exact, same_answers, monkeypatch):
    """Texts are written before their image, and count only with it."""
    own = MilvusRows.put

    def stopped(self, which, rows):
        if which == "images":
            raise KeyboardInterrupt
        own(self, which, rows)

    changed = [make_item(4, captions=("word1",)), make_item(50)]
    monkeypatch.setattr(MilvusRows, "put", stopped)
    with pytest.raises(KeyboardInterrupt):
        remote.add(changed, existing="replace")
    same_answers(remote, exact, "word1", 100, "text")
    assert remote.num_texts == exact.num_texts
    monkeypatch.setattr(MilvusRows, "put", own)
    for index in (remote, exact):
        index.add(changed, existing="replace")
    same_answers(remote, exact, "word1", 100, "text")
    assert remote.num_texts == exact.num_texts


def test_a_server_that_goes_away_and_comes_back(milvus_server, model, exact, same_answers, monkeypatch):
    uri, start = milvus_server
    monkeypatch.setattr("selhn.search.stores.milvus_rows.TIMEOUT", 5.0)
    process = start()
    remote = Index.create(towers_of(model), uri)
    remote.add(make_item(number) for number in range(20))
    same_answers(remote, exact, "word3 word8")
    process.send_signal(signal.SIGKILL)
    process.wait()
    for call in (
        lambda: remote.search("word3"),
        lambda: remote.add([make_item(30)]),
        lambda: remote.delete(["item3"]),
        lambda: remote.refresh(),
        lambda: list(remote.records()),
        lambda: Index.load(uri, towers_of(model)),
    ):
        with pytest.raises(ConnectionError, match=rf"{uri} .*: Milvus is not responding\. No data was lost"):
            call()
    start()
    for _ in range(300):  # connections are tried again after a while
        try:
            remote.search("word3")
            break
        except ConnectionError:
            time.sleep(0.1)
    same_answers(remote, exact, "word3 word8", 30)
    remote.add([make_item(30)])
    assert len(Index.load(uri, towers_of(model))) == 21


def test_opened_again_in_another_process(model, exact, same_answers, tmp_path):
    model.save(tmp_path / "model")
    uri = str(tmp_path / "pictures.db")
    code = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
import selhn
from selhn.search import Index
from index_cases import make_item
index = Index.create(selhn.open_towers({str(tmp_path / "model")!r}), {uri!r}, about={{"who": "a test"}})
index.add(make_item(number) for number in range(20))
index.delete(["item7"])
index.add([make_item(7)])
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    exact.delete(["item7"])
    exact.add([make_item(7)])
    assert Index.exists(uri)
    remote = Index.load(uri, towers_of(model))
    assert remote.about == {"who": "a test"}
    assert same_answers(remote, exact, "word3 word8", 30)
    assert same_answers(remote, exact, "word3 word8", 30, "text", where="year > 2004")


def test_collections_of_another_width_are_refused(remote, lite, model):
    remote.store.rows.remove("about", [IDENTITY])
    with pytest.raises(SelhnError, match="have 16 numbers, this model has 8"):
        Index.create(towers_of(make_model("rvse", dim=8)), lite)
    with pytest.raises(NotFound):
        Index.load(lite, towers_of(model))
    client, name = remote.store.rows._client, remote.store.rows.name
    for which in ("about", "texts", "images"):
        client.drop_collection(f"{name}_{which}")
    assert not Index.exists(lite)
    with pytest.raises(NotFound, match="the index was removed, make it again"):
        remote.search("word3")


def test_collections_of_somebody_else_are_refused(lite, model):
    client, name = MilvusRows(lite)._client, lite.partition("#")[2]
    for which in ("about", "images"):
        client.create_collection(f"{name}_{which}", dimension=16)
        with pytest.raises(
            SelhnError, match=f"the collection {name}_{which} has something else in it, choose another"
        ):
            Index.create(towers_of(model), lite)
        client.drop_collection(f"{name}_{which}")


@pytest.fixture
def asked(remote, monkeypatch):
    """The requests to Milvus from now on: what is called, of which collection, and how it is to be consistent."""
    requests, own = [], MilvusRows._call

    def noted(self, method, which, *given, **named):
        requests.append((method, which, named.get("consistency_level", "")))
        return own(self, method, which, *given, **named)

    monkeypatch.setattr(MilvusRows, "_call", noted)
    return requests


def test_few_requests_that_wait_for_nobody(remote, asked):
    remote.search_many(["word1", "word2", "word3"], find="text")
    assert asked == [("search", "texts", "Session"), ("get", "images", "Session")]
    asked.clear()
    remote.update([Item(f"item{number}", metadata={"year": number}) for number in range(10)])
    assert [(method, which) for method, which, _ in asked[:2]] == [("get", "images")] * 2, (
        "vectors, and what is there"
    )
    assert [one[0] for one in asked[2:]] == ["upsert", "query", "query", "delete", "query"]
    asked.clear()
    remote.add([make_item(number) for number in range(30, 60)])
    assert [one[:2] for one in asked] == [("get", "images"), ("upsert", "texts"), ("upsert", "images")]
    remote.store.refresh()
    assert asked[-2] == ("query", "images", "Strong"), "others may have written"
