"""The kernels against the formula in float64, on a GPU; or anywhere that has Triton, in its interpreter:

TRITON_INTERPRET=1 pytest -W ignore tests/ops/test_block_cosines.py
"""

import os
import sys
from dataclasses import replace

import pytest
import torch
from model_cases import make_batch, make_model, score_batch

from selhn.models import encode_batch
from selhn.ops import unit
from selhn.ops.block_cosines import attended_blocks, can_attend_in_blocks

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_gpu = pytest.mark.gpu
fused = pytest.mark.usefixtures("interpreter") if INTERPRETED else on_gpu
# Contexts, their fragments, queries, their fragments, channels, blocks: one of everything, odd ones, several tiles.
SIZES = [
    (1, 1, 1, 1, 16, 1),
    (2, 20, 3, 7, 64, 4),
    (3, 36, 9, 10, 64, 2),
    (2, 5, 17, 9, 64, 1),
    (1, 100, 2, 4, 128, 2),
]
LARGE = (20, 36, 30, 23, 1024, 16)


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr("selhn.ops.gpu.fusable", lambda *tensors: True)


def make(size, seed=0):
    """Weights, contexts and queries, some of them padding; and gradients of both results."""
    contexts, fragments, queries, length, dim, blocks = size
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    logits = 3 * draw(contexts, fragments, length, queries)
    logits[-1, 3:] = -torch.inf
    leaves = [logits.softmax(1), unit(draw(contexts, fragments, dim)), unit(draw(queries, length, dim))]
    leaves[1][-1, 3:], leaves[2][-1, 2:] = 0, 0
    pulls = [draw(contexts, queries, length, blocks) for _ in range(2)]
    return [leaf.to(DEVICE) for leaf in leaves], [pull.to(DEVICE) for pull in pulls]


def by_formula(weights, contexts, queries, blocks):
    seen = torch.einsum("cklq,ckd->cqld", weights, contexts).unflatten(3, (blocks, -1))
    return (seen * queries.unflatten(2, (blocks, -1))).sum(4), seen.square().sum(4)


def numbers_and_grads(leaves, pulls, exact=False):
    """By the kernels, or by the formula in float64."""
    dtype, make_blocks = (torch.float64, by_formula) if exact else (torch.float32, attended_blocks)
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    found = make_blocks(*leaves, pulls[0].shape[3])
    return *found, *torch.autograd.grad(found, leaves, [pull.to(dtype) for pull in pulls])


def assert_like_float64(leaves, pulls):
    for ours, expected in zip(
        numbers_and_grads(leaves, pulls), numbers_and_grads(leaves, pulls, True), strict=True
    ):
        assert ours.dtype == torch.float32
        assert ours.shape == expected.shape
        assert (ours.double() - expected).norm() <= 2 * torch.finfo(torch.float16).eps * expected.norm()


@fused
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_formula(size):
    assert_like_float64(*make(size))


@on_gpu
def test_equals_the_formula_at_full_size():
    assert_like_float64(*make(LARGE))


@fused
def test_weights_in_any_order_of_memory():
    leaves, pulls = make((2, 5, 3, 4, 32, 2))
    in_order = numbers_and_grads(leaves, pulls)
    leaves[0] = leaves[0].permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1)
    assert all(torch.equal(a, b) for a, b in zip(in_order, numbers_and_grads(leaves, pulls)))


@fused
def test_pairs_without_a_gradient_add_nothing():
    # As where negatives are mined: one pair of many has a gradient. One that is far larger harms only itself.
    leaves, pulls = make((2, 6, 40, 7, 64, 2))
    pulls = [
        torch.zeros_like(pull).index_put((torch.tensor(1), torch.tensor(21)), pull[1, 21]) for pull in pulls
    ]
    assert_like_float64(leaves, pulls)
    grads = numbers_and_grads(leaves, pulls)[2:]
    assert not grads[0][0].any()
    assert not grads[1][0].any()
    assert not grads[2][:21].any()
    pulls[0][0, 3] = 1e9
    again = numbers_and_grads(leaves, pulls)[2:]
    assert torch.equal(again[1][1], grads[1][1])
    assert torch.equal(again[2][21], grads[2][21])


@fused
def test_nan_shows():
    leaves, pulls = make((2, 4, 3, 5, 32, 2))
    leaves[1][0, 1, 5] = torch.nan
    dot, square, *grads = numbers_and_grads(leaves, pulls)
    for numbers in (dot, square):
        assert numbers[0, :, :, 0].isnan().all()
        assert numbers[1].isfinite().all()
        assert numbers[0, :, :, 1].isfinite().all()
    assert grads[0][0].isnan().all()


def made_by_kernels(monkeypatch):
    """What the layer gets from the kernels, from now on."""
    made = []

    def watched(*given):
        made.append(attended_blocks(*given))
        return made[-1]

    # The layer has the name of its module.
    monkeypatch.setattr(sys.modules["selhn.ops.block_cosines"], "attended_blocks", watched)
    return made


@fused
@pytest.mark.parametrize("name", ["gsmn_dense", "gsmn_sparse"])
def test_models_score_by_the_kernels(name, monkeypatch):
    batch, made = make_batch(9), made_by_kernels(monkeypatch)
    with torch.no_grad():
        expected = score_batch(make_model(name, dim=64).double(), make_double(batch))
        assert not made
        scores = score_batch(make_model(name, dim=64).to(DEVICE), batch.to(DEVICE))
    assert len(made) == 2
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.cpu().double(), expected, rtol=0, atol=1e-3)


def make_double(batch):
    return replace(batch, regions=batch.regions.double())


@fused
def test_models_learn_by_the_kernels_only_in_half_precision(monkeypatch):
    batch, made = make_batch(5), made_by_kernels(monkeypatch)
    pulls = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))

    def grads(model, batch, halves):
        images, texts = encode_batch(model, batch)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=halves):
            scores = model.score(images, texts)
        (scores * pulls.to(scores)).sum().backward()
        return {key: p.grad.cpu().double() for key, p in model.named_parameters() if p.grad is not None}

    expected = grads(make_model("gsmn_dense", dim=64).double().train(), make_double(batch), False)
    plain = grads(make_model("gsmn_dense", dim=64).to(DEVICE).train(), batch.to(DEVICE), False)
    assert not made
    ours = grads(make_model("gsmn_dense", dim=64).to(DEVICE).train(), batch.to(DEVICE), True)
    assert len(made) == 2
    for key, grad in expected.items():
        # The recurrence of words may be in TF32 on a GPU.
        assert (plain[key] - grad).norm() <= 1e-2 * grad.norm() + 1e-5, key
        assert (ours[key] - grad).norm() <= 2e-2 * grad.norm() + 1e-5, key


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_repeatable_and_without_waiting_for_the_device():
    leaves, pulls = make(LARGE)
    first = numbers_and_grads(leaves, pulls)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = numbers_and_grads(leaves, pulls)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@on_gpu
def test_the_step_of_a_model_in_a_cuda_graph():
    model, batch = make_model("gsmn_dense", dim=64).train().cuda(), make_batch(20).to("cuda")
    with torch.no_grad():
        images, texts = encode_batch(model, batch)
    leaves = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            scores = model.score(images, texts)
        return scores.detach(), *torch.autograd.grad(scores.square().sum(), leaves)

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for ours, theirs in zip(captured, expected):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3 * theirs.abs().max().item())


@on_gpu
def test_where_the_kernels_work():
    contexts, queries = torch.zeros(2, 36, 64, device="cuda"), torch.zeros(3, 23, 64, device="cuda")
    assert can_attend_in_blocks(contexts, queries, 4)
    assert not can_attend_in_blocks(contexts, queries, 8), "blocks of 8 channels are too narrow"
    assert not can_attend_in_blocks(contexts[:, :, :60], queries[:, :, :60], 2)
    assert not can_attend_in_blocks(contexts.double(), queries.double(), 4)
    assert not can_attend_in_blocks(contexts[:0], queries, 4)
    assert not can_attend_in_blocks(torch.zeros(2, 200, 64, device="cuda"), queries, 4)
