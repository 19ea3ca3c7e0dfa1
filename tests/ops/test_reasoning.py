"""The kernels against the formula in float64, on a GPU; or anywhere that has Triton, in its interpreter:

TRITON_INTERPRET=1 pytest -W ignore tests/ops/test_reasoning.py
"""

import os

import pytest
import torch
from torch.nn.functional import linear

from selhn.ops import differences, unit
from selhn.ops.differences import LinearWeights
from selhn.ops.reasoning import can_reason, reasoned

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_gpu = pytest.mark.gpu
fused = pytest.mark.usefixtures("interpreter") if INTERPRETED else on_gpu
# The interpreter has no products in bfloat16.
HALVES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]
# Images, texts, nodes, size of a node, steps: one of everything, as many as fit a program, graphs that fill it.
SIZES = [
    (1, 1, 1, 16, 1),
    (1, 1, 1, 16, 2),
    (2, 7, 24, 32, 3),
    (3, 5, 9, 64, 3),
    (1, 2, 128, 16, 2),
    (1, 6, 25, 256, 3),
]


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr("selhn.ops.reasoning.fusable", lambda *tensors: True)
    monkeypatch.setattr("selhn.kernels.hopper.reasoning.wide_product", lambda a, b: a.float() @ b.float())
    monkeypatch.setattr(differences, "_shared_bytes", lambda device: differences.SHARED_BYTES)


def make(size, half):
    """Nodes in half precision, a mask with padding, and weights of a size that keeps edges apart."""
    num_images, num_texts, places, sim_dim, steps = size
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    mask = torch.ones(num_texts, places, dtype=torch.bool)
    mask[-1, max(1, places - 3) :] = False
    weights = []
    for number in range(steps):
        last = number == steps - 1
        weights += [2 * draw(sim_dim, sim_dim), 0.1 * draw(sim_dim)]
        # Nothing is near 0, where rounding would decide whether ReLU has a slope.
        away = 1.2 * sim_dim**-0.5 * draw(sim_dim).sign()
        weights += [] if last else [0.3 * sim_dim**-0.5 * draw(sim_dim, sim_dim), away]
    nodes = unit(draw(num_images, num_texts, places, sim_dim)).to(half)
    leaves = [part.to(DEVICE).to(half) if part.ndim == 2 else part.to(DEVICE) for part in weights]
    return [nodes.to(DEVICE), *leaves], mask.to(DEVICE), draw(num_images, num_texts, sim_dim).to(DEVICE)


def by_formula(nodes, mask, weights):
    """Step by step, as the paper has it."""
    for first in range(0, len(weights), 4):
        mixed, bias, *value = weights[first : first + 4]
        logits = (linear(nodes, mixed, bias) @ nodes.mT).masked_fill(~mask[:, None, :], -torch.inf)
        nodes = logits.softmax(3) @ nodes
        if value:
            nodes = linear(nodes, *value).relu()
    return nodes[:, :, 0]


def by_kernel(nodes, mask, weights):
    layers = [LinearWeights(*weights[first : first + 2]) for first in range(0, len(weights), 2)]
    return reasoned(nodes, mask, layers[::2], layers[1::2])


def seen_and_grads(leaves, mask, pulls, precise):
    """By the kernels in half precision, or by the formula in float64."""
    leaves = [(leaf.double() if precise else leaf).detach().requires_grad_() for leaf in leaves]
    seen = (by_formula if precise else by_kernel)(leaves[0], mask, leaves[1:])
    return seen, *torch.autograd.grad(seen, leaves, pulls.to(seen.dtype))


def assert_like_float64(leaves, mask, pulls, half):
    seen, *grads = seen_and_grads(leaves, mask, pulls.to(half), False)
    expected, *expected_grads = seen_and_grads(leaves, mask, pulls.to(half), True)
    rounding = torch.finfo(half).eps
    assert seen.dtype == half
    assert (seen.double() - expected).norm() <= 4 * rounding * expected.norm()
    for grad, expected_grad, leaf in zip(grads, expected_grads, leaves, strict=True):
        assert grad.dtype == leaf.dtype
        # Those of edges between nodes that are alike cancel, down to the rounding of their terms.
        allowed = rounding * (8 * expected_grad.norm() + 1e-3)
        assert (grad.double() - expected_grad).norm() <= allowed


@fused
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("half", HALVES)
def test_equals_the_formula(size, half):
    leaves, mask, pulls = make(size, half)
    assert can_reason(leaves[0])
    assert_like_float64(leaves, mask, pulls, half)


@fused
def test_graphs_without_a_gradient_add_nothing():
    # As where negatives are mined: one pair of many has a gradient.
    leaves, mask, pulls = make((3, 11, 24, 32, 3), HALVES[-1])
    some = torch.zeros_like(pulls)
    some[1, 7] = pulls[1, 7]
    assert_like_float64(leaves, mask, some, HALVES[-1])
    grad = seen_and_grads(leaves, mask, some, False)[1]
    assert grad[1, 7].any()
    assert not grad[[0, 2]].any()
    assert not grad[1, :7].any()
    assert not grad[1, 8:].any()


@fused
def test_no_gradient_at_all():
    leaves, mask, pulls = make((2, 3, 5, 16, 3), HALVES[-1])
    assert not any(grad.any() for grad in seen_and_grads(leaves, mask, torch.zeros_like(pulls), False)[1:])


@fused
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_own_graph(wrong):
    leaves, mask, _ = make((2, 7, 9, 32, 3), HALVES[-1])
    with torch.no_grad():
        expected = by_kernel(leaves[0], mask, leaves[1:])
        leaves[0][1, 3, 2, 5] = wrong
        seen = by_kernel(leaves[0], mask, leaves[1:])
    assert seen[1, 3].isnan().all()
    expected[1, 3] = seen[1, 3] = 0
    assert torch.equal(seen, expected)


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_repeatable_and_without_waiting_for_the_device():
    leaves, mask, pulls = make((20, 30, 24, 256, 3), torch.bfloat16)
    first = seen_and_grads(leaves, mask, pulls, False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = seen_and_grads(leaves, mask, pulls, False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second))
