import pytest
import torch
from torch import nn

from selhn.kernels import can_scan, gru_scan


def test_it_is_for_half_precision_on_a_gpu():
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_scan(torch.zeros(2, 3))


def run(scan, sequences, grus, grad):
    leaf = sequences.detach().clone().requires_grad_()
    for gru in grus:
        gru.zero_grad()
    states = scan(leaf, grus)
    states.backward(grad.to(states.dtype))
    return [states.detach(), leaf.grad, *(p.grad.clone() for gru in grus for p in gru.parameters())]


def one_after_the_other(sequences, grus):
    return torch.stack([gru(own)[0] for gru, own in zip(grus, sequences)])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"), [(23, 128, 300, 1024), (1, 3, 7, 16), (5, 9, 32, 600)]
)
def test_it_is_a_gru(steps, batch, width, hidden):
    torch.manual_seed(steps)
    grus = tuple(nn.GRU(width, hidden).cuda() for _ in range(2))
    sequences, grad = torch.randn(2, steps, batch, width).cuda(), torch.randn(2, steps, batch, hidden).cuda()
    exact = tuple(nn.GRU(width, hidden).cuda().double() for _ in range(2))
    for gru, twin in zip(grus, exact):
        twin.load_state_dict(gru.state_dict())
    expected = run(one_after_the_other, sequences.double(), exact, grad.double())
    with torch.autocast("cuda", torch.bfloat16):
        assert can_scan(sequences)
        actual = run(gru_scan, sequences, grus, grad)
    for want, got in zip(expected, actual):
        assert ((got.double() - want).norm() / want.norm().clamp(min=1e-12)).item() < 1e-2


@pytest.mark.gpu
def test_small_gradients_do_not_vanish():
    torch.manual_seed(0)
    grus = (nn.GRU(16, 32).cuda(),)
    sequences = torch.randn(1, 4, 8, 16).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        large = run(gru_scan, sequences, grus, torch.ones(1, 4, 8, 32).cuda())
        small = run(gru_scan, sequences, grus, torch.full((1, 4, 8, 32), 2.0**-40).cuda())
    for big, little in zip(large[1:], small[1:]):
        assert torch.allclose(big, little * 2.0**40, rtol=1e-2, atol=1e-3)
