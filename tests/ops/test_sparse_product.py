"""`sparse_product` against a dense matrix, on the CPU and, marked, on a GPU."""

import pytest
import torch

from selhn.ops.sparse_product import Base, Edges, sparse_product


def make_edges(rows, columns, number, seed, collapsed=False):
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, rows, (number,), generator=generator)
    if collapsed:  # nearly all in one row, which then has many chunks
        at[5:] = rows // 2
    weights = torch.randn(number, generator=generator)
    weights[::7] = 0
    return Edges(at, torch.randint(0, columns, (number,), generator=generator), weights)


def dense(edges, rows, columns):
    matrix = torch.zeros(rows, columns, dtype=torch.float64)
    return matrix.index_put_((edges.rows, edges.columns), edges.weights.double(), accumulate=True)


CASES = [(1, 1, 3, 1), (5, 7, 24, 20), (40, 30, 129, 300), (300, 200, 1032, 3000)]


def assert_like_dense(rows, columns, width, number, device, dtype, collapsed, with_base):
    edges = make_edges(rows, columns, number, 0, collapsed)
    generator = torch.Generator().manual_seed(1)
    emb = torch.randn(columns, width, generator=generator).to(dtype)
    total, lost, mean = (
        torch.randn(*shape, generator=generator) for shape in ((rows, width), (rows,), (width,))
    )
    base = Base(total, lost, mean, torch.tensor(0.3)) if with_base else None
    expected = dense(edges, rows, columns) @ emb.double()
    if with_base:
        expected += 0.3 * (total + lost[:, None] * mean).double()
    on_device = Edges(*(field.to(device) for field in edges))
    base = base and Base(*(field.to(device) for field in base))
    actual, again = (sparse_product(on_device, emb.to(device), rows, base, torch.float32) for _ in range(2))
    assert torch.equal(actual, again)
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-5, atol=1e-4)
    assert sparse_product(on_device, emb.to(device), rows, base, dtype).dtype == dtype


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_dense(dtype, collapsed, with_base):
    for case in CASES:
        assert_like_dense(*case, "cpu", dtype, collapsed, with_base)


@pytest.mark.gpu
@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_dense_on_a_gpu(dtype, collapsed, with_base):
    for case in CASES:
        assert_like_dense(*case, "cuda", dtype, collapsed, with_base)
