"""An index answers as that in memory does, wherever it is and whatever is done to both."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from model_cases import make_model
from picture_cases import stand_in
from store_cases import HOSTILE, SERVERS

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index, Item, Record
from selhn.search.embedded import EmbeddedRow
from selhn.search.shards import Shards, index_embeddings
from selhn.search.stores.postgres import is_postgres
from selhn.search.stores.store import Identity

on_servers = pytest.mark.parametrize("place", SERVERS, indirect=True)

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
    'id like "item[12]?"',
    'not id like "item[12]*"',
    "not year < 3000",
    {"year": [2001, 2002, 1999]},
    {"year": {"in": []}},
]


@pytest.mark.parametrize("find", ["image", "text"])
def test_the_same_answers_as_the_exact_index(stored, exact, make_item, same_answers, find):
    regions = make_item(77).regions
    assert same_answers(stored, exact, "word3 word8", 7, find)
    assert same_answers(
        stored, exact, text="word3 word8", like="item4", weights={"text": 2, "like": -1}, find=find
    )
    assert same_answers(stored, exact, image=regions, text="word5", find=find)
    assert same_answers(stored, exact, image=regions, find=find)
    assert len(same_answers(stored, exact, like="item4", k=100, find=find)) == (19 if find == "image" else 40)
    queries = ["word3", "word9 word2"]
    assert [[hit.name for hit in hits] for hits in stored.search_many(queries, 3, find)] == [
        [hit.name for hit in hits] for hits in exact.search_many(queries, 3, find)
    ]


def test_images_are_found_whether_or_not_there_are_captions(stored, exact, make_item, same_answers):
    regions = make_item(5).regions
    assert {hit.kind for hit in same_answers(stored, exact, regions)} == {"image"}
    for index in (stored, exact):
        index.update([Item(name, metadata=index.get(name).metadata) for name in sorted(index.ids())])
    assert stored.num_texts == exact.num_texts == 0
    assert {hit.kind for hit in same_answers(stored, exact, regions)} == {"image"}
    assert same_answers(stored, exact, regions, find="text") == []


def test_filters(stored, exact, same_answers):
    for where in FILTERS:
        if where == "missing = 3":
            for index in (stored, exact):
                for ask in (partial(index.search, "word3 word8"), index.records, index.count):
                    with pytest.raises(NotFound, match="no item has a field 'missing'"):
                        list(ask(where=where))
            continue
        for find in ("image", "text"):
            same_answers(stored, exact, like="item4", k=30, find=find, where=where)
            same_answers(stored, exact, like="item4", k=2, find=find, where=where)
        found = {record.id for record in stored.records(where)}
        assert found == {record.id for record in exact.records(where)}, where
        assert stored.count(where) == exact.count(where) == len(found)


TIMES = [
    {"taken": "2019-06-14 15:03:22", "modified": "2024-01-01 00:00:00"},
    {"taken": "2019-06-30 23:59:59"},
    {"taken": "2018-12-31T23:59:59+01:00"},
    {"modified": "2019-07-01 00:00:00.500000", "taken": None},
    {"modified": "2020-01-01 00:00:00", "folder": "2019-06"},
    {"folder": "2019-06-14"},
    {"year": 2019},
]


def test_dates_and_order(place, same_answers, monkeypatch):
    monkeypatch.setattr("selhn.search.stores.milvus.SORTED_AT_ONCE", 2)
    stored, exact = both(place, {f"item{number}": times for number, times in enumerate(TIMES)}, "item9")
    for field in ("taken", "date", "folder"):
        for value in ("2019", "2019-6", "'2019-06-14 15:03:22'"):
            for operator in ("=", "!=", "<", "<=", ">", ">="):
                same_answers(stored, exact, like="item9", where=f"{field} {operator} {value}")
                same_answers(stored, exact, like="item9", where=f"not {field} {operator} {value}")
            same_answers(stored, exact, like="item9", where=f"{field} in (2018, {value})")
    for index in (stored, exact):
        for ask in (partial(index.search, like="item9"), index.records, index.count):
            with pytest.raises(SelhnError, match="taken holds dates, but 'june' is not a date"):
                list(ask(where="not taken < june"))
            with pytest.raises(SelhnError, match="taken holds dates, but 3 is not a date"):
                list(ask(where="taken < 3"))
    for order, ids in (("newest", "4310256"), ("oldest", "2013456")):
        for index in (stored, exact):
            found = [record.id.removeprefix("item") for record in index.records(order=order)]
            assert "".join(found[:5]) == ids[:5]
            assert found[5:] == ["5", "6", "9"], "those without a date are last"
            assert [record.id for record in index.records("date = 2019", order, first=1)] == [
                f"item{number}" for number in ids if number in "013"
            ][1:]


def test_changes_of_both_give_the_same(stored, exact, make_item, same_answers):
    for index in (stored, exact):
        index.delete(["item3", "item4", "item3"])
        index.update([Item("item5", metadata={"year": 1}), make_item(6, captions=("word1 word2 word9",))])
        index.add(
            [make_item(30, captions=("word4 word9 word20",)), make_item(7, metadata={"year": 5})],
            existing="replace",
        )
        index.add(
            [make_item(8, captions=("word7",)), make_item(31, captions=("word2 word1",))], existing="skip"
        )
        with index.writing():
            index.add([make_item(32, captions=())])
    assert len(stored) == len(exact) == 21
    assert stored.num_texts == exact.num_texts
    for find in ("image", "text"):
        same_answers(stored, exact, "word1 word2", 100, find)
        same_answers(stored, exact, "word1 word2", 3, find, where="year < 10")
    for name in exact.ids():
        assert stored.get(name) == exact.get(name)
    assert "item3" not in stored
    assert "item5" in stored


def test_what_is_refused(stored, exact, make_item):
    for index in (stored, exact):
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
    assert len(stored) == 20
    longest = stored.store.longest_record
    with pytest.raises(SelhnError, match=f"at most {longest:,} are stored"):
        stored.add([make_item(70, metadata={"long": "x" * longest})])


def test_equal_scores_stand_in_the_order_in_which_they_were_added(place, model, make_item, same_answers):
    regions = make_item(1).regions
    stored, exact = Index.create(towers_of(model), place), Index.create(towers_of(model))
    for index in (stored, exact):
        index.add(make_item(1, f"copy{(number * 37) % 100:03}", regions=regions) for number in range(100))
        index.add([make_item(2)])
    hits = same_answers(stored, exact, "word3 word8", 5)
    assert [hit.id for hit in hits if hit.id != "item2"][:3] == ["copy000", "copy037", "copy074"]
    same_answers(stored, exact, like="copy037", k=80)


def test_a_filter_that_leaves_none_of_the_nearest(stored, exact, same_answers, monkeypatch):
    """Where Milvus is not told the filter, and gives no more rows, all are looked at."""
    monkeypatch.setattr("selhn.search.stores.milvus.MOST_HITS", 4)
    for find in ("image", "text"):
        found = same_answers(stored, exact, "word3 word8", 3, find, where='not id like "item1*"')
        assert len(found) == 3
        same_answers(stored, exact, "word3 word8", 3, find, where="not year > 2000")


@on_servers
def test_what_is_there_is_not_encoded_again(stored, make_item, monkeypatch):
    encoded = []
    own = type(stored.towers.matcher).encode_images

    def counted(self, regions, mask):
        encoded.append(len(regions))
        return own(self, regions, mask)

    monkeypatch.setattr(type(stored.towers.matcher), "encode_images", counted)
    items = [make_item(number) for number in range(22)]
    assert stored.add(items, existing="replace") == 2
    assert sum(encoded) == 2
    items[4] = make_item(4, regions=torch.rand(2, 12))
    assert stored.add(items, existing="replace") == 1
    assert sum(encoded) == 3
    before = stored.generation
    assert stored.add(items, existing="skip") == 0
    assert stored.generation == before
    stored.delete(["item4"])
    assert stored.generation != before


@on_servers
def test_models_that_do_not_score_by_products_are_refused(place):
    with pytest.raises(ValueError, match="does not score by products"):
        Index.create(towers_of(make_model("vsepp_order")), place)
    with pytest.raises(ValueError, match="no single vector per image"):
        Index.create(towers_of(make_model("saf")), place)


@on_servers
def test_the_ready_model_is_named(place, model, monkeypatch):
    stand_in(lambda: model, None, monkeypatch)
    Index.create(towers_of(model), place, about={"model": "ready"})
    assert Index.load(place).towers.matcher is model


def test_asking_makes_no_file(tmp_path):
    assert not Index.exists(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


@on_servers
def test_by_a_graph(stored, exact, same_answers):
    stored.approximate("hnsw")
    assert stored.found_by == "hnsw"
    same_answers(stored, exact, "word3 word8", 5)
    stored.refresh()
    assert stored.found_by == "hnsw"
    stored.approximate("auto")
    assert stored.found_by == "exact"
    same_answers(stored, exact, "word3 word8", 5, where="year > 2007")
    with pytest.raises(ValueError, match="exact or hnsw, not ivf"):
        stored.approximate("ivf")


def test_opened_again(stored, place, model, exact, make_item, same_answers):
    assert Index.exists(place)
    for index in (stored, exact):
        index.delete(["item7"])
        index.add([make_item(7)])
    again = Index.load(place, towers_of(model))
    assert (str(again.path), again.about) == (place, {})
    assert same_answers(again, exact, "word3 word8", 30)
    assert same_answers(again, exact, "word3 word8", 30, "text", where="year > 2004")
    again.add([make_item(30)])
    before = stored.generation
    stored.refresh()
    assert stored.generation != before
    assert "item30" in stored


def test_another_model_or_width_is_refused(stored, place, model):
    other = make_model("rvse")
    other.image.fc.bias.data += 1
    for wrong in (other, make_model("rvse", dim=8)):
        with pytest.raises(SelhnError, match="was written by another model"):
            Index.load(place, towers_of(wrong))
    with pytest.raises(SelhnError, match="is an index already"):
        Index.create(towers_of(model), place)


@on_servers
def test_an_index_of_another_version(stored, place, model, monkeypatch):
    with pytest.raises(SelhnError, match="has no model .*: give it with --model"):
        Index.load(place)
    monkeypatch.setattr("selhn.search.stores.server.VERSION", 2)
    with pytest.raises(Damaged, match=r"has version 1 \(selhn .*\), this selhn reads 2: install another"):
        Index.load(place, towers_of(model))


@on_servers
def test_several_indices_at_one_place(stored, place, model, make_item):
    assert not Index.exists(f"{place}_cats")
    with pytest.raises(NotFound, match="there is no index at .*: make one with `selhn index"):
        Index.load(f"{place}_cats", towers_of(model))
    cats = Index.create(towers_of(model), f"{place}_cats")
    cats.add([make_item(3)])
    assert (len(cats), len(stored)) == (1, 20)
    assert cats.path.endswith("_cats")


@on_servers
@pytest.mark.parametrize("name", ["a b", "1a", "a-b", "ä", "x" * 300, 'a"'])
def test_names(place, name):
    with pytest.raises(SelhnError, match="is not a name: use letters, digits and _"):
        Index.exists(f"{place.partition('#')[0]}#{name}")


def both(place, metadata, asked="asked"):
    """The same items there and in memory, beside one that is not found but asked for what is like it."""
    model = make_model("rvse")
    items = [Item(name, torch.rand(2, 12), metadata=own) for name, own in {asked: {}, **metadata}.items()]
    stored, exact = Index.create(towers_of(model), place), Index.create(towers_of(model))
    for index in (stored, exact):
        index.add(items)
    return stored, exact


def test_hostile_values_find_what_they_find_in_memory(place, same_answers):
    values = [value for value in HOSTILE if "\0" not in value or not is_postgres(place)]
    metadata = {
        f"{number}{value}": {"value": value, "tags": [value, number], value or "empty": number}
        for number, value in enumerate(values)
    }
    stored, exact = both(place, metadata)
    for number, (own, value) in enumerate(zip(metadata, values)):
        for where in (
            {"value": value},
            {"tags": {"contains": value}},
            {value or "empty": number},
            {"id": own},
        ):
            assert [hit.id for hit in same_answers(stored, exact, like="asked", k=50, where=where)] == [own]
        for where in ({"contains": value}, {">": value}, {"!=": value}):
            same_answers(stored, exact, like="asked", k=50, where={"value": where})
        same_answers(stored, exact, like="asked", k=50, where={"id": {"like": f"{own}*"}})
        assert stored.get(own) == exact.get(own)
    stored.delete(metadata)
    assert stored.ids() == ["asked"]


def test_types_are_told_apart_as_in_memory(place, same_answers):
    values = [
        1,
        1.0,
        True,
        "1",
        [1],
        {"a": 1},
        None,
        "true",
        0,
        False,
        2,
        "x",
        -1,
        1.5,
        10**12,
        [True],
        ["1", "x"],
    ]
    stored, exact = both(place, {f"i{n}": {"v": value} for n, value in enumerate(values)} | {"none": {}})
    for operator in ("=", "!=", "<", "<=", ">", ">=", "contains", "like"):
        for value in [1, 1.0, True, "1", None, 0, False, "x", 1.5, 10**12]:
            same_answers(stored, exact, like="asked", k=50, where={"v": {operator: value}})
    same_answers(stored, exact, like="asked", k=50, where={"v": [1, "x"]})
    for words in ("v.a = 1", "not v = 1", "not v.a = 1", "not (v > 0 or v = x)", "v = 1 and not v = true"):
        same_answers(stored, exact, like="asked", k=50, where=words)


def test_shards_of_embeddings(place, model, tmp_path, same_answers):
    """What `selhn embed` writes, also if it is stopped, or a shard is cut off, in the middle."""
    pytest.importorskip("pyarrow", reason="shards need the extra export")
    names = [[f"a/{number}.jpg" for number in range(first, first + 5)] for first in (0, 5, 10)]
    entries = [[{"path": name} for name in own] for own in names]
    shards = Shards.plan(
        tmp_path / "shards", Identity.of(towers_of(model), "float32", {"features": "x"}), {}, entries
    )
    for shard, own in enumerate(names):
        vectors = torch.randn(5, 16, generator=torch.Generator().manual_seed(shard)).numpy()
        facts = [
            {"year": 2000 + shard, "taken": None if place else "2019-06-14 15:03:22"} for place in range(5)
        ]
        captions = ["word3 word8", "word2", "", "word1 word9", "é"]
        rows = zip((Record(name, (), fact) for name, fact in zip(own, facts)), vectors, captions, vectors)
        shards.write(shard, [EmbeddedRow(*row) for row in rows], [])
    cut = shards.folder / "img_emb" / "img_emb_1.npy"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-20])
    with pytest.raises(Damaged, match="img_emb_1.npy is missing, cut off or not what was written"):
        index_embeddings(shards.folder, place, towers_of(model), quiet=True)
    assert len(Index.load(place, towers_of(model))) == 5, "the first shard is there"
    cut.write_bytes(whole)
    for _ in range(2):
        stored = index_embeddings(shards.folder, place, towers_of(model), quiet=True)
    exact = Index.create(towers_of(model))
    exact.add(shards.items())
    assert (len(stored), stored.num_texts) == (len(exact), exact.num_texts) == (15, 12)
    for find in ("image", "text"):
        assert same_answers(stored, exact, "word3 word8", 15, find)
        assert len(same_answers(stored, exact, like="a/7.jpg", k=15, find=find, where="year = 2001")) == 4
    assert [record.id for record in stored.records("taken = 2019-06", "oldest")] == [
        "a/0.jpg",
        "a/10.jpg",
        "a/5.jpg",
    ]
    with pytest.raises(SelhnError, match="was made with other features"):
        index_embeddings(replaced_features(shards), place, towers_of(model), quiet=True)


def replaced_features(shards):
    """The same shards, as if another vision model had made them."""
    about = replace(shards.identity, about={"features": "y"})
    return Shards.plan(shards.folder.parent / "others", about, {}, [[{"path": "a"}]]).folder
