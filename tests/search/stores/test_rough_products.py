import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, normalize

from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item
from selhn.search.stores import rough_products
from selhn.search.stores.best_rows import nearest
from selhn.search.stores.rough_products import ERROR, rows_to_score
from selhn.search.stores.vectors import Vectors
from selhn.text import Vocabulary

NUMBER, WIDTH = 2000, 48


def halves(vectors, cut):
    return [Vectors.of(part, "float16") for part in (vectors[:cut], vectors[cut:])]


def drawn(seed, near):
    """Rows in a cloud around one direction; the nearer, the more of them tie in float16."""
    generator = torch.Generator().manual_seed(seed)
    cloud = near * torch.randn(1, WIDTH, generator=generator) + torch.randn(
        NUMBER, WIDTH, generator=generator
    )
    return normalize(cloud, dim=1), torch.randn(1, WIDTH, generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99),
    st.floats(0, 3),
    st.integers(1, 12),
    st.integers(0, NUMBER),
    st.floats(0.1, 9),
    st.booleans(),
)
def test_the_best_rows_are_among_those_to_score(seed, near, k, cut, length, masked):
    vectors, query = drawn(seed, near)
    vectors[1::7] = vectors[0]  # ties
    parts = halves(length * vectors, cut)
    mask = torch.arange(NUMBER) % 3 != 1
    masks = [mask[:cut], mask[cut:]] if masked else [None, None]
    found = rows_to_score(query, parts, masks, k)
    best = nearest(lambda block: query @ block.T, zip((0, cut), parts, masks), k, 1)
    if found is not None:
        assert set(best.rows[0].tolist()) <= set(found[0].tolist())
        assert not masked or bool(mask[found[0]].all())


def test_few_rows_are_scored_again():
    vectors, query = drawn(0, 0.0)
    assert rows_to_score(query, halves(vectors, 700), [None, None], 10).shape[1] < 0.02 * NUMBER


@pytest.mark.parametrize(
    "change", ["float32", "int8", "all alike", "zero query", "few allowed", "long", "not finite"]
)
def test_all_rows_are_scored(change):
    """Where rough products would not be quicker, or could be wrong."""
    vectors, query = drawn(0, 0.0)
    mask = None
    if change == "all alike":
        vectors[:] = vectors[0]
    elif change == "zero query":
        query = torch.zeros(1, WIDTH)
    elif change == "few allowed":
        mask = torch.arange(NUMBER) < 3
    elif change == "long":
        vectors = 2000 * vectors
    elif change == "not finite":
        vectors[5, 5] = torch.nan
    parts = [Vectors.of(vectors, change if change in ("float32", "int8") else "float16")]
    assert rows_to_score(query, parts, [mask], 10) is None


def test_a_processor_that_sums_in_float16(monkeypatch):
    def summed_in_float16(query, rows):
        found = torch.zeros(1, len(rows), dtype=torch.float16)
        for column in range(rows.shape[1]):
            found += query[:, column] * rows[:, column]
        return found

    vectors, query = drawn(0, 0.0)
    monkeypatch.setattr(rough_products, "linear", summed_in_float16)
    rough_products._sums_in_float32.cache_clear()
    wide = normalize(torch.rand(64, 4096), dim=1).half()
    assert (
        summed_in_float16(wide[:1], wide) - linear(wide[:1].float(), wide.float())
    ).abs().max() > ERROR / 2
    assert not rough_products._sums_in_float32(4096)
    rough_products._sums_in_float32.cache_clear()


def test_an_index_answers_the_same(monkeypatch):
    vectors, queries = drawn(3, 0.5)[0], drawn(4, 0.0)[0][:20]
    model = create_model("vse_fc", tokenizer=Vocabulary.build(["a dog"], 1), dim=WIDTH, feature_dim=8).eval()
    index = Index.create(towers_of(model), precision="float16")
    index.add(Item(f"{row:04}", vector=vector) for row, vector in enumerate([*vectors, *queries]))
    index.delete([f"{row:04}" for row in range(0, NUMBER, 5)])
    asked = [f"{NUMBER + row:04}" for row in range(len(queries))]
    found = [[(hit.id, hit.score) for hit in index.search(like=name, k=9)] for name in asked]
    used = []
    monkeypatch.setattr("selhn.search.stores.best_rows.rows_to_score", lambda *_: used.append(1))
    for name, own in zip(asked, found, strict=True):
        expected = index.search(like=name, k=9)
        assert [one for one, _ in own] == [hit.id for hit in expected]
        torch.testing.assert_close(
            torch.tensor([score for _, score in own]), torch.tensor([h.score for h in expected])
        )
    assert len(used) == len(asked)


def test_a_search_draws_no_random_numbers_and_a_small_one_reads_no_lengths():
    vectors, query = drawn(0, 0.0)
    rough_products._sums_in_float32.cache_clear()
    before = torch.get_rng_state()
    assert rows_to_score(query, halves(vectors, 700), [None, None], 10) is not None
    assert torch.equal(torch.get_rng_state(), before)
    small = [Vectors.of(vectors[:99], "float16")]
    assert rows_to_score(query, small, [None], 10) is None
    assert "longest" not in vars(small[0])
