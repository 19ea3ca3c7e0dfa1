import copy

import pytest
import torch

from selhn.ops import BiGRU
from selhn.ops.gru import can_scan


def test_it_is_for_half_precision_on_a_gpu():
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_scan(torch.zeros(2, 3))


def run(bigru, sequences, mask, grad):
    leaf = sequences.detach().clone().requires_grad_()
    bigru.zero_grad()
    states = bigru(leaf, mask)
    states.backward(grad.to(states.dtype))
    return [states.detach(), leaf.grad, *(p.grad.clone() for p in bigru.parameters())]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"),
    [(23, 128, 300, 1024), (1, 3, 7, 16), (5, 9, 32, 600), (6, 70, 8, 40)],
)
def test_it_is_a_bidirectional_gru(steps, batch, width, hidden):
    torch.manual_seed(steps)
    bigru = BiGRU(width, hidden).cuda()
    sequences, grad = torch.randn(batch, steps, width).cuda(), torch.randn(batch, steps, hidden).cuda()
    lengths = torch.randint(0, steps + 1, (batch,), device="cuda")
    lengths[0] = steps
    mask = torch.arange(steps, device="cuda") < lengths[:, None]
    expected = run(copy.deepcopy(bigru).double(), sequences.double(), mask, grad.double())
    with torch.autocast("cuda", torch.bfloat16):
        assert can_scan(sequences)
        actual = run(bigru, sequences, mask, grad)
    assert not actual[0][~mask].any()
    assert not actual[1][~mask].any()
    for want, got in zip(expected, actual):
        assert ((got.double() - want).norm() / want.norm().clamp(min=1e-12)).item() < 1e-2


@pytest.mark.gpu
def test_small_gradients_do_not_vanish():
    torch.manual_seed(0)
    bigru, mask = BiGRU(16, 32).cuda(), torch.ones(8, 4, dtype=torch.bool).cuda()
    sequences = torch.randn(8, 4, 16).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        large = run(bigru, sequences, mask, torch.ones(8, 4, 32).cuda())
        small = run(bigru, sequences, mask, torch.full((8, 4, 32), 2.0**-40).cuda())
    for big, little in zip(large[1:], small[1:]):
        assert torch.allclose(big, little * 2.0**40, rtol=1e-2, atol=1e-3)
