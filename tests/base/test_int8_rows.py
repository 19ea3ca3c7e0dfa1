import pytest
import torch

from selhn.base.types import to_int8


@pytest.mark.parametrize("shape", [(50, 32), (4, 6, 32), (0, 32)])
def test_rows_come_back_within_half_a_step(shape):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    codes, scale = to_int8(rows)
    assert (codes.dtype, codes.shape, scale.shape) == (torch.int8, rows.shape, rows.shape[:-1])
    largest = rows.abs().amax(-1, keepdim=True)
    assert ((codes * scale[..., None] - rows).abs() <= 0.501 / 127 * largest).all()


def test_zeros_and_tiny_rows_stay_finite():
    rows = torch.tensor([[0.0, 0.0], [-2.0, 1.0], [1e-30, 0.0], [1e-44, 0.0]])
    codes, scale = to_int8(rows)
    assert codes.abs().max() <= 127
    torch.testing.assert_close(codes * scale[:, None], rows, rtol=0.01, atol=1e-37)
