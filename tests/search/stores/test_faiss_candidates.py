import random
from importlib.util import find_spec

import pytest
import torch

from selhn.export import towers_of
from selhn.search import Index, Item, Query
from selhn.search.stores import faiss_candidates
from selhn.search.stores.faiss_candidates import chosen_kind, require_faiss

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs FAISS: pip install 'selhn[faiss]'")
KINDS = ["hnsw", "ivf", "ivf_int8"]


def clustered(number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, 16, generator=generator)
    chosen = torch.randint(20, (number,), generator=generator)
    return torch.nn.functional.normalize(
        centres[chosen] + 0.3 * torch.randn(number, 16, generator=generator), dim=1
    )


def items(number, first=0):
    vectors = clustered(number, seed=first)
    return [Item(f"i{first + n}", vector=vectors[n], metadata={"n": first + n}) for n in range(number)]


@pytest.fixture
def large(model, tmp_path):
    index = Index.create(towers_of(model), tmp_path / "i")
    index.add(items(600))
    index.add(items(400, first=600))
    return index


def found(index, names, **settings):
    return [[hit.id for hit in index.search(like=name, k=10, **settings)] for name in names]


def recall_of(index, exact, names, **settings):
    pairs = zip(found(index, names, **settings), exact)
    return sum(len(set(own) & set(true)) for own, true in pairs) / sum(map(len, exact))


def test_what_a_size_asks_for():
    assert [chosen_kind(rows) for rows in (0, 49_999, 50_000, 499_999, 500_000)] == [
        "exact", "exact", "hnsw", "hnsw", "ivf_int8",
    ]  # fmt: skip


def test_without_faiss_it_says_what_to_install(large, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"needs FAISS: pip install .*\[faiss\]"):
        large.approximate("hnsw")
    large.approximate("auto")
    assert len(large.search(like="i3")) == 5


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_kind(large):
    with pytest.raises(ValueError, match="approximate is 'lsh': choose one of auto, exact, hnsw"):
        large.approximate("lsh")


@needs_faiss
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_scored_exactly_and_kept_on_disk(large, model, kind):
    names = [f"i{n}" for n in range(0, 1000, 50)]
    exact = found(large, names)
    scores = {hit.id: hit.score for hit in large.search(like="i7", k=1000)}
    large.approximate(kind)
    assert recall_of(large, exact, names) > 0.9
    again = Index.load(large.path, towers_of(model))
    assert again.found_by == kind
    assert found(again, names) == found(large, names)
    for hit in again.search(like="i7", k=10):
        assert hit.score == pytest.approx(scores[hit.id], abs=1e-6)
    large.check()


@needs_faiss
@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_later_is_seen_at_once(large, model, kind):
    large.approximate(kind)
    best = large.search(like="i5", k=3)
    large.delete([best[0].id])
    assert best[0].id not in {hit.id for hit in large.search(like="i5", k=50)}
    twin = Item("twin", vector=large.store.get(["i5"], vectors=True)["i5"].vector, metadata={"n": -1})
    large.add([twin])
    assert large.search(like="i5", k=3)[0].id == "twin"
    for n in range(20):
        large.add(items(1, first=2000 + n))
    assert Index.load(large.path, towers_of(model)).search(like="i5", k=3)[0].id == "twin"
    names = [f"i{n}" for n in range(0, 1000, 50) if f"i{n}" in large]
    with_filter = {"where": "n < 700"}
    large_exact = Index.create(towers_of(model))
    stored = large.store.get(large.ids(), vectors=True).values()
    large_exact.add(Item(one.record.id, vector=one.vector, metadata=one.record.metadata) for one in stored)
    exact = found(large_exact, names, **with_filter)
    assert recall_of(large, exact, names, **with_filter) > 0.9
    few = {"where": "n in (3, 4, 5, 900)"}
    assert found(large, names, **few) == found(large_exact, names, **few), (
        "where few are left all are looked at"
    )


@needs_faiss
def test_compacting_gives_it_up(large):
    large.approximate("hnsw")
    assert list((large.path / "approximate").iterdir())
    large.compact()
    assert not list((large.path / "approximate").iterdir())
    assert large.found_by == "exact"
    large.approximate("hnsw")
    large.approximate("exact")
    assert not list((large.path / "approximate").iterdir())


@needs_faiss
def test_a_damaged_file_never_reaches_faiss(large, model, monkeypatch):
    large.approximate("ivf_int8")
    path = next((large.path / "approximate").iterdir())
    whole = path.read_bytes()
    chance = random.Random(0)
    monkeypatch.setattr(require_faiss(), "deserialize_index", lambda content: pytest.fail("was read"))
    for _ in range(20):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="so search is exact: call index.approximate.. again"):
            assert Index.load(large.path, towers_of(model)).found_by == "exact"
    path.unlink()
    with pytest.warns(UserWarning, match="so search is exact"):
        index = Index.load(large.path, towers_of(model))
    assert index.search("word1", k=3) == large.search("word1", k=3)
    with pytest.raises(ValueError, match="damaged"):
        index.check()
    index.approximate("exact")
    index.check()


@needs_faiss
def test_a_model_that_does_not_score_by_products(make_item):
    from model_cases import make_model

    index = Index.create(towers_of(make_model("vsepp_order")))
    index.add(make_item(n) for n in range(5))
    with pytest.raises(ValueError, match="vsepp_order does not score by products of vectors"):
        index.approximate("hnsw")


class Stub:
    """What is called of FAISS, by looking at everything: tests the way to it and back where it is not installed."""

    METRIC_INNER_PRODUCT = 0

    class IndexHNSWFlat:
        def __init__(self, width, neighbours, metric):
            self.vectors, self.hnsw = torch.empty(0, width), self

        ntotal = property(lambda self: len(self.vectors))

        def add(self, rows):
            self.vectors = torch.cat([self.vectors, torch.from_numpy(rows)])

        def search(self, queries, k, params):
            scores = torch.from_numpy(queries) @ self.vectors.T
            if "sel" in params:
                scores[:, ~params["sel"][: len(self.vectors)]] = -torch.inf
            best = scores.topk(k)
            return best.values.numpy(), best.indices.masked_fill(best.values == -torch.inf, -1).numpy()

    @staticmethod
    def SearchParametersHNSW(**settings):  # noqa: N802
        return settings

    @staticmethod
    def IDSelectorBitmap(bits):  # noqa: N802
        import numpy as np

        return torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()


def test_the_way_to_candidates_and_back(model, monkeypatch):
    monkeypatch.setattr(faiss_candidates, "require_faiss", lambda: Stub)
    exact, index = Index.create(towers_of(model)), Index.create(towers_of(model))
    for one in (exact, index):
        one.add(items(300))
    index.approximate("hnsw")
    for one in (exact, index):
        one.delete([f"i{n}" for n in range(10, 30)])
        one.add(items(50, first=500))
    names = [f"i{n}" for n in (0, 50, 299, 510)]
    for settings in ({}, {"where": "n < 250"}, {"where": "n = 3"}):
        assert found(index, names, **settings) == found(exact, names, **settings)
    together = index.search_many([Query(like=name) for name in names], k=10)
    assert [[hit.id for hit in hits] for hits in together] == found(exact, names)
