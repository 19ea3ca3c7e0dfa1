import pytest
import torch
from torch import nn

from selhn.ops import differences
from selhn.ops.differences import projected_differences


def plain(weights, regions, words, layer):
    return layer((weights @ regions - words).square())


@pytest.mark.parametrize("chunk", [1, 300, 2**21])
@pytest.mark.parametrize("own_words", [False, True])
def test_equals_the_formula(own_words, chunk, monkeypatch):
    monkeypatch.setattr(differences, "CHUNK_BYTES", chunk)
    torch.manual_seed(0)
    layer = nn.Linear(6, 3).double()
    shapes = (4, 5, 2), (4, 2, 6), (4 if own_words else 1, 5, 6)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    ours, expected = projected_differences(*inputs, layer), plain(*inputs, layer)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-13)
    upstream = torch.randn(ours.shape, dtype=torch.float64)
    asked = [*inputs, *layer.parameters()]
    mine, theirs = (torch.autograd.grad((out * upstream).sum(), asked) for out in (ours, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_under_autocast_products_are_in_half_precision():
    layer, inputs = nn.Linear(6, 3), (torch.randn(4, 5, 2), torch.randn(4, 2, 6), torch.randn(1, 5, 6))
    with torch.autocast("cpu", torch.bfloat16):
        ours = projected_differences(*inputs, layer)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), plain(*inputs, layer), rtol=0.1, atol=0.1)
