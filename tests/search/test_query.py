import pytest
import torch
from model_cases import FEATURE_DIM, make_model

from selhn.base.errors import NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index, Query
from selhn.search.encoding import encode_queries_of_images, encode_queries_of_text

REGIONS = torch.rand(3, FEATURE_DIM, generator=torch.Generator().manual_seed(9))


@pytest.fixture(params=["rvse", "vsepp_order"])
def searched(request, make_item):
    model = make_model(request.param)
    index = Index.create(towers_of(model))
    index.add(make_item(number) for number in range(20))
    return index


def vectors(index, kind):
    return torch.cat([segment.vectors[kind].take(slice(None)) for segment in index.store.snapshot.segments])


def expected(index, parts, kind):
    """Scores by the definition: (weight, modality, vector) of every part of a query."""
    rows, total, score = vectors(index, kind), 0, index.towers.matcher.score
    for weight, modality, vector in parts:
        if modality == kind:
            scores = rows @ vector
        elif kind == "image":
            scores = score(rows, vector[None])[:, 0]
        else:
            scores = score(vector[None], rows)[0]
        total = total + weight * scores
    return total


def names(index, kind):
    """The id and the name of every answer there could be, in the order of rows."""
    if kind == "image":
        return [(name, name) for name in index.ids()]
    return [(record.id, caption) for record in index.records() for caption in record.captions]


def check(index, hits, scores, k):
    best = scores.topk(k)
    torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), best.values, rtol=1e-4, atol=1e-5)
    assert [(hit.id, hit.name) for hit in hits] == [
        names(index, hits[0].kind)[row] for row in best.indices.tolist()
    ]


@torch.no_grad()
def test_every_direction(searched):
    text = torch.from_numpy(encode_queries_of_text(searched.towers, ["word1 word2"])[0])
    image = torch.from_numpy(encode_queries_of_images(searched.towers, [REGIONS])[0])
    for kind in ("image", "text"):
        check(
            searched,
            searched.search(text="word1 word2", find=kind),
            expected(searched, [(1, "text", text)], kind),
            5,
        )
        check(
            searched,
            searched.search(image=REGIONS, find=kind),
            expected(searched, [(1, "image", image)], kind),
            5,
        )
        both = [(0.75, "text", text), (-0.25, "image", image)]
        weights = {"text": 3, "image": -1}
        hits = searched.search(text="word1 word2", image=REGIONS, weights=weights, find=kind)
        check(searched, hits, expected(searched, both, kind), 5)
        other = torch.from_numpy(encode_queries_of_text(searched.towers, ["word3"])[0])
        away = [(2 / 3, "text", text), (-1 / 3, "text", other)]
        hits = searched.search(Query("word1 word2", without="word3", find=kind))
        check(searched, hits, expected(searched, away, kind), 5)


@torch.no_grad()
def test_more_like_this_is_not_this(searched):
    own = vectors(searched, "image")[4]
    scores = expected(searched, [(1, "image", own)], "image")
    scores[4] = -torch.inf
    check(searched, searched.search(like="item4", k=19), scores, 19)
    assert len(searched.search(like="item4", k=50)) == 19
    assert {hit.id for hit in searched.search(like="item4", find="text", k=40)} >= {"item4"}


def test_what_is_found_when_nothing_is_said(searched, make_item):
    kinds = [
        searched.search(**query, k=1)[0].kind
        for query in ({"text": "word1"}, {"image": REGIONS}, {"like": "item1"})
    ]
    assert kinds == ["image", "image", "image"]
    assert searched.search(text="word1", image=REGIONS)[0].kind == "image"
    assert searched.search(image=REGIONS, find="text")[0].kind == "text"
    without = Index.create(searched.towers)
    without.add([make_item(1, captions=())])
    assert without.search(image=REGIONS)[0].kind == "image"
    assert without.search("word1", find="text") == []


def test_many_queries_are_each_answered(searched, monkeypatch):
    monkeypatch.setattr("selhn.search.answering.AT_ONCE", 3)
    queries = [
        *(f"word{n} word1" for n in range(7)),
        Query(like="item3"),
        REGIONS,
        Query("word2", REGIONS, "item5"),
    ]
    assert searched.search(queries, k=4) == searched.search_many(queries, k=4)
    with pytest.raises(SelhnError, match="given twice"):
        searched.search(queries, like="item3")
    for query, hits in zip(queries, searched.search_many(queries, k=4)):
        alone = searched.search(query, k=4)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], rel=1e-4, abs=1e-5)


def test_filters(searched):
    hits = searched.search("word1", k=20, where="even = true and year >= 2010")
    assert {hit.id for hit in hits} == {f"item{n}" for n in range(10, 20, 2)}
    every = [hit.id for hit in searched.search("word1", k=20)]
    assert [hit.id for hit in hits] == [name for name in every if name in {hit.id for hit in hits}]
    texts = searched.search("word1", k=20, where={"year": 2003}, find="text")
    assert {hit.id for hit in texts} == {"item3"}
    assert len(texts) == 2
    assert searched.search("word1", where="year = 1") == []
    for where in (
        "yaer = 2003",
        {"yaer": 2003},
        "year = 1 or yaer like '*'",
        "year.month = 3 and even = true",
    ):
        with pytest.raises(NotFound, match=r"no item has a field 'y.*': .*year"):
            searched.search("word1", where=where)
    assert searched.search("word1", where="yaer != 2003"), "true of all"
    empty = Index.create(searched.towers)
    assert empty.search("word1", where="yaer = 2003") == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({}, "the query is empty: give a text, an image, or the id"),
        ({"text": ""}, "the query is empty"),
        ({"like": "nobody"}, "there is no item 'nobody'"),
        ({"text": "word1", "k": 0}, "k must be at least 1, got 0"),
        ({"text": "word1", "weights": {"image": 1}}, "but no such part: this query has text"),
        ({"query": "word1", "text": "word1"}, "the query is given twice"),
    ],
)
def test_queries_that_are_refused(searched, query, sentence):
    with pytest.raises(ValueError, match=sentence):
        searched.search(**query)


def test_an_empty_index(model):
    index = Index.create(towers_of(model))
    assert index.search("word1") == []
    assert len(index) == 0


def test_each_query_has_its_own_filter_kind_and_number(searched):
    queries = [
        Query("word1", where="even = true", k=3),
        Query("word2", find="text", k=7),
        Query("word1", where={"even": True}, k=2),
        Query("word3"),
    ]
    found = searched.search_many(queries)
    assert [len(hits) for hits in found] == [3, 7, 2, 5]
    for query, hits in zip(queries, found):
        assert [hit.id for hit in hits] == [hit.id for hit in searched.search(query)]
        assert {hit.kind for hit in hits} == {query.find}
    assert found[0][:2] == found[2]
    assert all(hit.metadata["even"] for hit in found[0])
    overruled = searched.search_many(queries, 4, "image", where="even = false")
    assert all(len(hits) == 4 and not any(hit.metadata["even"] for hit in hits) for hits in overruled)


@pytest.mark.usefixtures("as_a_user")
def test_a_query_is_checked_when_it_is_made():
    with pytest.raises(SelhnError, match="k must be at least 1"):
        Query("word1", k=0)
    with pytest.raises(SelhnError, match='find must be "image" or "text"'):
        Query("word1", find="pictures")


def test_a_model_in_training_mode_answers_as_in_evaluation_mode(searched):
    model = searched.towers.matcher.train()
    found = searched.search("word1 word2", 3)
    assert model.training
    model.eval()
    assert searched.search("word1 word2", 3) == found
