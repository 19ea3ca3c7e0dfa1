"""An index in Milvus answers as the exact one does, whatever is done to both."""

import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from model_cases import make_model

from selhn.base.errors import NotFound, SelhnError
from selhn.search import Index, Item
from selhn.search.stores.milvus import IDENTITY
from selhn.search.stores.milvus_rows import MilvusRows

FILTERS = [
    "year >= 2005",
    "year < 2003 or year = 2010",
    "even = true",
    "even = 1",
    "not even = true and year > 2002",
    "missing != 3",
    "missing = 3",
    "not (year > 2002 and even = false)",
    "id in (item1, item2, item99)",
    'id like "item1*"',
    'id like "*9"',
    {"year": [2001, 2002, 1999]},
    {"year": {"in": []}},
]


@pytest.mark.parametrize("find", ["image", "text"])
def test_the_same_answers_as_the_exact_index(remote, exact, make_item, same_answers, find):
    regions = make_item(77).regions
    assert same_answers(remote, exact, "word3 word8", 7, find)
    assert same_answers(remote, exact, text="word3 word8", like="item4", weights={"text": 2, "like": -1}, find=find)
    assert same_answers(remote, exact, image=regions, text="word5", find=find)
    assert same_answers(remote, exact, image=regions, find=find)
    assert len(same_answers(remote, exact, like="item4", k=100, find=find)) == (19 if find == "image" else 40)
    queries = ["word3", "word9 word2"]
    assert [[hit.name for hit in hits] for hits in remote.search_many(queries, 3, find)] == [
        [hit.name for hit in hits] for hits in exact.search_many(queries, 3, find)
    ]


def test_images_are_found_whether_or_not_there_are_captions(remote, exact, make_item, same_answers):
    regions = make_item(5).regions
    assert {hit.kind for hit in same_answers(remote, exact, regions)} == {"image"}
    for index in (remote, exact):
        index.update([Item(name, metadata=index.get(name).metadata) for name in sorted(index.ids())])
    assert remote.num_texts == exact.num_texts == 0
    assert {hit.kind for hit in same_answers(remote, exact, regions)} == {"image"}
    assert same_answers(remote, exact, regions, find="text") == []


def test_filters(remote, exact, same_answers):
    for where in FILTERS:
        if where == "missing = 3":
            for index in (remote, exact):
                for ask in (partial(index.search, "word3 word8"), index.records, index.count):
                    with pytest.raises(NotFound, match="no item has a field 'missing'"):
                        list(ask(where=where))
            continue
        for find in ("image", "text"):
            same_answers(remote, exact, "word3 word8", 30, find, where=where)
            same_answers(remote, exact, "word3 word8", 2, find, where=where)
        found = {record.id for record in remote.records(where)}
        assert found == {record.id for record in exact.records(where)}, where
        assert remote.count(where) == exact.count(where) == len(found)


TIMES = [
    {"taken": "2019-06-14 15:03:22", "modified": "2024-01-01 00:00:00"},
    {"taken": "2019-06-30 23:59:59"},
    {"taken": "2018-12-31T23:59:59+01:00"},
    {"modified": "2019-07-01 00:00:00.500000", "taken": None},
    {"modified": "2020-01-01 00:00:00", "folder": "2019-06"},
    {"folder": "2019-06-14"},
    {"year": 2019},
]


def test_dates_and_order(uri, model, make_item, same_answers, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.milvus.SORTED_AT_ONCE", 2)
    remote, exact = Index.create(model, uri), Index.create(model)
    for index in (remote, exact):
        index.add(make_item(number, metadata=times) for number, times in enumerate(TIMES))
    for field in ("taken", "date", "folder"):
        for value in ("2019", "2019-6", "'2019-06-14 15:03:22'"):
            for operator in ("=", "!=", "<", "<=", ">", ">="):
                same_answers(remote, exact, "word3", where=f"{field} {operator} {value}")
            same_answers(remote, exact, "word3", where=f"{field} in (2018, {value})")
    for order, ids in (("newest", "4310265"), ("oldest", "2013456")):
        for index in (remote, exact):
            found = [record.id.removeprefix("item") for record in index.records(order=order)]
            assert "".join(found[:5]) == ids[:5]
            assert set(found[5:]) == {"5", "6"}, "those without a date are last"
            assert [record.id for record in index.records("date = 2019", order, first=1)] == [
                f"item{number}" for number in ids if number in "013"
            ][1:]


def test_changes_of_both_give_the_same(remote, exact, make_item, same_answers):
    for index in (remote, exact):
        index.delete(["item3", "item4", "item3"])
        index.update([Item("item5", metadata={"year": 1}), make_item(6, captions=("word1 word2 word9",))])
        index.add(
            [make_item(30, captions=("word4 word9 word20",)), make_item(7, metadata={"year": 5})], existing="replace"
        )
        index.add([make_item(8, captions=("word7",)), make_item(31, captions=("word2 word1",))], existing="skip")
        with index.writing():
            index.add([make_item(32, captions=())])
    assert len(remote) == len(exact) == 21
    assert remote.num_texts == exact.num_texts
    for find in ("image", "text"):
        same_answers(remote, exact, "word1 word2", 100, find)
        same_answers(remote, exact, "word1 word2", 3, find, where="year < 10")
    for name in exact.ids():
        assert remote.get(name) == exact.get(name)
    assert "item3" not in remote
    assert "item5" in remote


def test_what_is_refused(remote, exact, make_item):
    for index in (remote, exact):
        for wrong, words in [
            (lambda index: index.add([make_item(40), make_item(3)]), "there is an item 'item3' already"),
            (lambda index: index.add([make_item(50), make_item(50)]), "there is an item 'item50' already"),
            (lambda index: index.delete(["item1", "nobody"]), "there is no item 'nobody'"),
            (lambda index: index.update([Item("nobody")]), "there is no item 'nobody'"),
            (lambda index: index.get("nobody"), "there is no item 'nobody'"),
            (lambda index: index.search(like="nobody"), "there is no item 'nobody'"),
            (lambda index: index.search("word1", 0), "k must be at least 1"),
            (lambda index: index.search("word1", text="word2"), "given twice"),
            (lambda index: index.add([Item("x", torch.full((1, 12), torch.nan))]), "NaN or infinity"),
        ]:
            with pytest.raises(ValueError, match=words):
                wrong(index)
    assert len(remote) == 20
    with pytest.raises(ValueError, match="at most 65,000 are stored"):
        remote.add([make_item(70, metadata={"long": "x" * 70_000})])


def test_equal_scores_stand_in_the_order_in_which_they_were_added(uri, model, make_item, same_answers):
    regions = make_item(1).regions
    remote, exact = Index.create(model, uri), Index.create(model)
    for index in (remote, exact):
        index.add(make_item(1, f"copy{(number * 37) % 100:03}", regions=regions) for number in range(100))
        index.add([make_item(2)])
    hits = same_answers(remote, exact, "word3 word8", 5)
    assert [hit.id for hit in hits if hit.id != "item2"][:3] == ["copy000", "copy037", "copy074"]
    same_answers(remote, exact, like="copy037", k=80)


def test_a_filter_that_leaves_none_of_the_nearest(remote, exact, same_answers, monkeypatch):
    """Where Milvus is not told the filter, and gives no more rows, all are looked at."""
    monkeypatch.setattr("selhn.search.stores.milvus.MOST_HITS", 4)
    for find in ("image", "text"):
        found = same_answers(remote, exact, "word3 word8", 3, find, where='not id like "item1*"')
        assert len(found) == 3
        same_answers(remote, exact, "word3 word8", 3, find, where="not year > 2000")


def test_what_is_there_is_not_encoded_again(remote, make_item, monkeypatch):
    encoded = []
    own = type(remote.model).encode_images

    def counted(self, regions, mask):
        encoded.append(len(regions))
        return own(self, regions, mask)

    monkeypatch.setattr(type(remote.model), "encode_images", counted)
    items = [make_item(number) for number in range(22)]
    assert remote.add(items, existing="replace") == 2
    assert sum(encoded) == 2
    items[4] = make_item(4, regions=torch.rand(2, 12))
    assert remote.add(items, existing="replace") == 1
    assert sum(encoded) == 3
    before = remote.generation
    assert remote.add(items, existing="skip") == 0
    assert remote.generation == before
    remote.delete(["item4"])
    assert remote.generation != before


def test_opened_again_in_another_process(uri, model, make_item, exact, same_answers, tmp_path):
    model.save(tmp_path / "model")
    code = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
import selhn
from selhn.search import Index
from index_cases import make_item
index = Index.create(selhn.load_model({str(tmp_path / "model")!r}), {uri!r}, about={{"who": "a test"}})
index.add(make_item(number) for number in range(20))
index.delete(["item7"])
index.add([make_item(7)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    exact.delete(["item7"])
    exact.add([make_item(7)])
    assert Index.exists(uri)
    remote = Index.load(uri, model)
    assert remote.about == {"who": "a test"}
    assert same_answers(remote, exact, "word3 word8", 30)
    assert same_answers(remote, exact, "word3 word8", 30, "text", where="year > 2004")


def test_another_model_or_width_is_refused(remote, uri, model):
    other = make_model("rvse")
    other.image.fc.bias.data += 1
    with pytest.raises(ValueError, match="was written by another model"):
        Index.load(uri, other)
    with pytest.raises(SelhnError, match="was written by another model"):
        Index.load(uri, make_model("rvse", dim=8))
    with pytest.raises(ValueError, match="is an index already"):
        Index.create(model, uri)
    with pytest.raises(ValueError, match="has no model .*: give it with --model"):
        Index.load(uri)
    remote.store.rows.put("about", [])
    remote.store.rows.remove("about", [IDENTITY])
    with pytest.raises(ValueError, match="have 16 numbers, this model has 8"):
        Index.create(make_model("rvse", dim=8), uri)
    with pytest.raises(NotFound):
        Index.load(uri, model)


def test_models_that_do_not_score_by_products_are_refused(uri):
    with pytest.raises(ValueError, match="does not score by products"):
        Index.create(make_model("vsepp_order"), uri)
    with pytest.raises(ValueError, match="no single vector per image"):
        Index.create(make_model("saf"), uri)


def test_the_ready_model_is_named(uri, model, monkeypatch):
    monkeypatch.setattr("selhn.pictures.ready.load_ready_model", lambda: model)
    Index.create(model, uri, about={"model": "ready"})
    assert Index.load(uri).model is model


def test_several_indices_at_one_place(remote, uri, model, make_item):
    assert not Index.exists(f"{uri}#cats")
    cats = Index.create(model, f"{uri}#cats")
    cats.add([make_item(3)])
    assert (len(cats), len(remote)) == (1, 20)
    assert cats.path.endswith("#cats")
    for which in ("about", "texts", "images"):
        cats.store.rows._client.drop_collection(f"cats_{which}")
    assert not Index.exists(f"{uri}#cats")
    assert Index.exists(uri)


def test_asking_makes_no_file(tmp_path):
    assert not Index.exists(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


def test_by_a_graph(remote, exact, same_answers):
    remote.approximate("hnsw")
    assert remote.found_by == "hnsw"
    same_answers(remote, exact, "word3 word8", 5)
    remote.refresh()
    assert remote.found_by == "hnsw"
    remote.approximate("auto")
    assert remote.found_by == "exact"
    same_answers(remote, exact, "word3 word8", 5, where="year > 2007")
    with pytest.raises(ValueError, match="exact or hnsw, not ivf"):
        remote.approximate("ivf")


def test_texts_that_a_writer_left_who_was_stopped_are_no_answers(remote, exact, make_item, same_answers, monkeypatch):
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
    monkeypatch.setattr(MilvusRows, "put", own)
    for index in (remote, exact):
        index.add(changed, existing="replace")
    same_answers(remote, exact, "word1", 100, "text")
    assert remote.num_texts == exact.num_texts


def test_a_server_that_goes_away_and_comes_back(milvus_server, model, make_item, exact, same_answers, monkeypatch):
    uri, start = milvus_server
    monkeypatch.setattr("selhn.search.stores.milvus_rows.TIMEOUT", 5.0)
    process = start()
    remote = Index.create(model, uri)
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
        lambda: Index.load(uri, model),
    ):
        with pytest.raises(ConnectionError, match=f"Milvus at {uri} is not responding .* No data was lost"):
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
    assert len(Index.load(uri, model)) == 21
