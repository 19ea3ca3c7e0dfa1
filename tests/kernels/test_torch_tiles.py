import pytest
import torch

from selhn.kernels import Terms, torch_tiles
from selhn.kernels.torch_tiles import Side, add_product, negative_scores, pull_tile


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def side(height, first_label, seed, dtype=torch.float64):
    return Side(
        random(height, 4, seed=seed, dtype=dtype),
        torch.arange(first_label, first_label + height),
        torch.zeros(height),
    )


def test_add_product():
    left, right, total = random(3, 7, seed=1), random(7, 4, seed=2), random(3, 4, seed=3)
    expected = total + left @ right
    add_product(total, left, right)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize(("first", "masked"), [(0, 3), (2, 1), (3, 0), (-2, 1), (-9, 0)])
def test_a_mask_wherever_labels_meet(first, masked):
    scores = negative_scores(side(3, 0, 0), side(3, first, 1))
    assert (scores == -torch.inf).sum() == masked


def test_labels_need_no_order():
    rows = Side(random(3, 4), torch.tensor([7, 0, 3]), torch.zeros(3))
    columns = Side(random(2, 4, seed=1), torch.tensor([3, 9]), torch.zeros(2))
    assert (negative_scores(rows, columns) == -torch.inf).tolist() == [
        [False, False],
        [False, False],
        [True, False],
    ]


@pytest.mark.parametrize("name", ["hinge_sum", "log_sum_exp", "softplus_sum", "mined_sum"])
def test_what_rounding_takes_is_told(name):
    rows, columns = side(5, 0, 0, torch.bfloat16), side(6, 9, 1, torch.bfloat16)
    weights = random(5, seed=2).float(), random(6, seed=3).float()
    terms = Terms(margin=0.2, polynomial=(0.03, -0.4, 0.9))
    pulls, (row_sums, column_sums) = pull_tile(name, rows, columns, weights, terms)
    wide_rows, wide_columns = (Side(s.emb.float(), s.label, s.level) for s in (rows, columns))
    exact, *_ = pull_tile(name, wide_rows, wide_columns, weights, terms)
    assert pulls.dtype == torch.bfloat16
    assert not torch.equal(pulls.float(), exact)
    torch.testing.assert_close(pulls.float().sum(1) + row_sums[0], exact.sum(1))
    torch.testing.assert_close(pulls.float().sum(0) + column_sums[0], exact.sum(0))


def test_half_precision_is_multiplied_in_float32():
    left, right = random(3, 8, dtype=torch.bfloat16), random(8, 2, seed=1, dtype=torch.bfloat16)
    actual = torch_tiles.product(left, right)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), left.double() @ right.double(), rtol=1e-6, atol=1e-6)
