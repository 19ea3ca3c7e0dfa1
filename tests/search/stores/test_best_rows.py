import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import Damaged
from selhn.search.stores.best_rows import nearest, top
from selhn.search.stores.vectors import Vectors


def brute_force(scores, rows, k):
    return [row for _, row in sorted(zip([-s for s in scores], rows))[:k]]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 8)
)
def test_ties_stand_in_the_order_of_their_columns(rows, k):
    scores = torch.tensor(rows).float()
    best = top(scores, k)
    for own, found, values in zip(rows, best.rows.tolist(), best.scores.tolist()):
        assert found == brute_force(own, range(6), k)
        assert values == [own[row] for row in found]


@given(st.data())
def test_blocks_and_masks_change_nothing(data):
    number, k = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 10))
    vectors = torch.tensor(data.draw(st.lists(st.integers(-2, 2), min_size=3 * number, max_size=3 * number)))
    vectors = vectors.float().reshape(number, 3)
    queries = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=number, max_size=number)))
    mask = None if data.draw(st.booleans()) else mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selhn.search.stores.vectors.BLOCK_BYTES", 12 * data.draw(st.integers(1, 40)))
        patch.setattr("selhn.search.stores.best_rows.SCORES_AT_ONCE", data.draw(st.integers(0, 60)))
        cut = data.draw(st.integers(0, number))
        parts = [(0, slice(cut)), (cut, slice(cut, None))]
        places = [(first, Vectors(vectors[own]), None if mask is None else mask[own]) for first, own in parts]
        best = nearest(lambda block: queries @ block.T, places, k, 2)
    allowed = [row for row in range(number) if mask is None or mask[row]]
    for query, found in zip(queries, best.rows.tolist()):
        scores = (vectors[allowed] @ query).tolist()
        assert [row for row in found if row >= 0] == brute_force(scores, allowed, k)


def test_nothing_to_find():
    best = nearest(
        lambda block: block.T, [(0, Vectors(torch.ones(3, 1)), torch.zeros(3, dtype=torch.bool))], 2, 1
    )
    assert best.rows.numel() == 0


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_no_numbers_are_refused(number):
    with pytest.raises(Damaged, match="NaN or infinity"):
        nearest(lambda block: block.T, [(0, Vectors(torch.tensor([[1.0], [number]])), None)], 1, 1)


def test_large_scores_are_numbers():
    large = torch.full((4, 1), 3e38)
    assert nearest(lambda block: block.T, [(0, Vectors(large), None)], 1, 1).rows.tolist() == [[0]]
