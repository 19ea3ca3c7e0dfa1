"""More is asked for until enough stand the filter, against a store that only remembers what it was asked."""

import pytest
import torch

from selhn.search.milvus import nearest
from selhn.search.milvus.nearest import nearest_rows
from selhn.search.milvus.rows import Row
from selhn.search.milvus.store import MilvusStore
from selhn.search.where import read_filter


class Remembering(MilvusStore):
    """A store of rows whose scores are given, which counts what is asked of it."""

    def __init__(self, scores):
        self.all = [
            Row(f"k{n}", f"k{n}", "c", n, {"id": f"i{n}", "metadata": {"n": n}}, torch.tensor([score]))
            for n, score in enumerate(scores)
        ]
        self.limits, self.walks = [], 0

    def nearest(self, which, queries, limit, expression, searching):
        assert expression == ""
        self.limits.append((len(queries), limit))
        scored = [[Row(*[*vars(row).values()][:5], None, float(q @ row.vector)) for row in self.all] for q in queries]
        return [sorted(rows, key=lambda row: -row.score)[:limit] for rows in scored]

    def rows(self, which, expression, vectors):
        self.walks += 1
        return iter(self.all)


def found(store, k, where=None, queries=((1.0,),)):
    filter = None if where is None else read_filter(where)
    rows = nearest_rows(store, "exact", torch.tensor(queries), "image", k, filter)
    return [[row.added for row in own] for own in rows]


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
    monkeypatch.setattr(nearest, "MOST_HITS", 50)
    store = Remembering([1 - n / 5000 for n in range(5000)])
    assert found(store, 3, "not n < 4000") == [[4000, 4001, 4002]]
    assert [limit for _, limit in store.limits] == [19, 50]
    assert store.walks == 1


def test_ties_beyond_what_milvus_gives_are_accepted(monkeypatch):
    monkeypatch.setattr(nearest, "MOST_HITS", 20)
    store = Remembering([0.5] * 100)
    assert found(store, 3) == [[0, 1, 2]]
    assert store.walks == 0


@pytest.mark.parametrize("k", [1, 10])
def test_fewer_than_asked_for(k):
    assert found(Remembering([0.5, 0.6]), k) == [[1, 0][:k]]
    assert found(Remembering([]), k) == [[]]
