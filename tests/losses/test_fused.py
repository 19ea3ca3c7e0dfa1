"""`from_embeddings` in Triton against the dense form in float64, on a GPU; what it waits for, and what it keeps.

Or anywhere that has Triton, in its interpreter: TRITON_INTERPRET=1 pytest -W ignore tests/losses/test_fused.py
"""

import contextlib
import math
import os

import pytest
import torch
from loss_cases import CASES, make_embeddings, make_ids
from torch.nn.functional import pad

from selhn.base.types import Products
from selhn.kernels.hopper import sides
from selhn.kernels.hopper.sides import can_fuse
from selhn.losses import (
    LOSSES,
    InfoNCE,
    Triplet,
    TripletHN,
    TripletSelHN,
    anchors,
    create_loss,
    row_statistics,
)
from selhn.losses.anchors import anchor_statistics
from selhn.losses.row_statistics import row_statistics as statistics_of
from selhn.losses.rows import Plan

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter has no products in bfloat16.
HALF = torch.float16 if INTERPRETED else torch.bfloat16
CANNOT = torch.cuda.is_available() and not can_fuse(torch.zeros(1, 8, device="cuda"), torch.bfloat16)
pytestmark = [
    pytest.mark.usefixtures("interpreter") if INTERPRETED else pytest.mark.gpu,
    pytest.mark.skipif(CANNOT, reason="needs Triton and a GPU of the Hopper generation"),
    pytest.mark.filterwarnings("ignore::selhn.base.errors.SelhnWarning"),  # equations of any numbers
]
on_a_gpu_only = pytest.mark.skipif(INTERPRETED, reason="is about a GPU, or too large for the interpreter")
SIZES = [(1, 8, False), (2, 3, False), (127, 40, True), (129, 64, False), (300, 13, True), (1000, 100, True)]
SIZES = [(2, 8, False), (129, 13, True)] if INTERPRETED else SIZES


@pytest.fixture
def interpreter(monkeypatch):
    """The kernels on a CPU, with the products that only a GPU has."""

    def addmm(total, left, right, dtype, out):
        out.add_(left.float() @ right.float())

    monkeypatch.setattr(anchors, "FEW", 0)
    monkeypatch.setattr(sides, "fusable", lambda *tensors: True)
    monkeypatch.setattr(row_statistics, "can_fuse", lambda emb, dtype: dtype in sides.HALVES)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: contextlib.nullcontext())
    monkeypatch.setattr("selhn.kernels.hopper.fused.add_wide", addmm)


def skip_softplus(name):
    if INTERPRETED and ("siglip" in name or "softplus" in name):
        pytest.skip("the interpreter has no fast division")


def on_gpu(kind, batch, width, seed=0, dtype=HALF):
    return tuple(
        emb.detach().to(DEVICE, dtype).requires_grad_() for emb in make_embeddings(kind, batch, width, seed)
    )


def value_and_grads(loss, embs):
    return loss, torch.autograd.grad(loss, embs)


def dense_in_float64(loss_fn, embs, ids=None):
    exact = [emb.detach().double().requires_grad_() for emb in embs]
    return value_and_grads(loss_fn(exact[0] @ exact[1].T, ids), exact)


def assert_like_dense(loss_fn, embs, ids=None):
    assert row_statistics.can_fuse(embs[0], embs[0].dtype)
    loss, grads = value_and_grads(loss_fn.from_embeddings(*embs, ids), embs)
    expected, expected_grads = dense_in_float64(loss_fn, embs, ids)
    assert loss.dtype == torch.float32
    # A learnt scale is multiplied into the embeddings, in their precision.
    of_loss, of_grads = (2e-3, 0.02) if loss_fn.learnt() else (2e-6, 0.005)
    torch.testing.assert_close(loss.double(), expected, rtol=of_loss, atol=of_loss)
    for grad, expected_grad, emb in zip(grads, expected_grads, embs, strict=True):
        assert grad.dtype == emb.dtype
        scale = expected_grad.abs().max().item()
        torch.testing.assert_close(grad.double(), expected_grad, rtol=of_grads, atol=of_grads * scale)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["spread", "collapsed", "trained", "ties"])
def test_equals_dense(case, kind):
    skip_softplus(case)
    for seed, (batch, width, with_ids) in enumerate(SIZES):
        ids = make_ids(batch, seed).to(DEVICE) if with_ids else None
        embs = on_gpu(kind, batch, width, seed)
        if case.startswith("ssp"):  # which has a kink at a score of 1
            embs = tuple((0.9 * emb.detach()).requires_grad_() for emb in embs)
        if case.startswith("bce"):  # of probabilities: scores become s / 16 + 0.49, with the same ties
            # Not those near 1, which are probabilities: 0.49 would cost the bits that decide between them.
            more = 0.0 if kind == "collapsed" else 0.7
            embs = tuple(pad(emb.detach() / 4, (0, 1), value=more).requires_grad_() for emb in embs)
        loss_fn = CASES[case].make().to(DEVICE)
        if loss_fn.learnt() and kind == "collapsed":
            pytest.skip("its gradients cancel to less than the rounding of embeddings times a learnt scale")
        assert_like_dense(loss_fn, embs, ids)


@pytest.mark.parametrize("kind", ["collapsed", "trained"])
def test_float16(kind):
    for batch, width, with_ids in SIZES:
        ids = make_ids(batch, 0).to(DEVICE) if with_ids else None
        assert_like_dense(TripletSelHN(), on_gpu(kind, batch, width, dtype=torch.float16), ids)


@on_a_gpu_only
def test_several_launches_and_parts(monkeypatch):
    from selhn.kernels.hopper import fused

    monkeypatch.setattr(fused, "SUMS_PER_LAUNCH", 1000 * 512)
    monkeypatch.setattr(fused, "BACKWARD_TILE", 512)
    for loss_fn in (TripletSelHN(epsilon=0.05), TripletSelHN(epsilon=math.inf), InfoNCE()):
        assert_like_dense(loss_fn, on_gpu("trained", 1000, 24), make_ids(1000, 0).to(DEVICE))


@on_a_gpu_only
def test_equal_pairs_have_equal_scores_wherever_they_stand():
    images, texts = on_gpu("spread", 3000, 1000)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    texts = texts.detach().clone()
    texts[order[1500:]] = texts[order[:1500]]
    anchors = anchor_statistics(Products(images, texts), None, ("hardest_below", "hardest_up_to"))
    assert torch.equal(anchors["hardest_up_to"][0], anchors.positive[0])
    assert (anchors["hardest_below"][0] < anchors.positive[0]).all()


@on_a_gpu_only
def test_the_lowest_of_equal_negatives_has_all_of_the_gradient():
    images, texts = on_gpu("spread", 1000, 16)
    texts = texts.detach()[:1].repeat(1000, 1).requires_grad_()
    anchor_statistics(Products(images, texts), None, ("hardest",))["hardest"][0].sum().backward()
    assert texts.grad.any(dim=1).nonzero()[:, 0].tolist() == [0, 1]


@on_a_gpu_only
def test_near_collapse_rounded_pulls_still_cancel():
    # The gradient is what is left of pulls that differ, with the number of negatives, by more than bfloat16 holds.
    ids = torch.arange(500).clamp(min=150)
    images, texts = make_embeddings("collapsed", 500, 64, 0)
    images = images + torch.tensor([0.1, -0.1]).repeat(32)  # two points at an angle, not one
    embs = [emb.detach().to(DEVICE, HALF).requires_grad_() for emb in (images, texts)]
    assert_like_dense(TripletSelHN(epsilon=math.inf), embs, ids.to(DEVICE))


@on_a_gpu_only
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", LOSSES)
def test_repeatable_and_without_waiting_for_the_device(name):
    loss_fn, embs, ids = (
        create_loss(name).to(DEVICE),
        on_gpu("trained", 1000, 32),
        make_ids(1000, 0).to(DEVICE),
    )
    first = loss_fn.from_embeddings(*embs, ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = loss_fn.from_embeddings(*embs, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)


@pytest.mark.parametrize("case", [case for case in CASES if case != "sct-nca"])
def test_nan_shows(case):
    for place in ((0, 0), (299, 5)):
        images, texts = on_gpu("trained", 300, 16)
        with torch.no_grad():
            texts[place] = math.nan
        loss = CASES[case].make().to(DEVICE).from_embeddings(images, texts)
        loss.sum().backward()
        assert loss.isnan()
        torch.cuda.synchronize()


def test_rows_of_a_wider_matrix():
    wide = on_gpu("trained", 400, 41)
    embs = [emb[::2, 1:] for emb in wide]
    loss, grads = value_and_grads(TripletSelHN().from_embeddings(*embs), wide)
    expected, expected_grads = dense_in_float64(TripletSelHN(), embs)
    torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=2e-6)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(
            grad[::2, 1:].double(), expected_grad, rtol=0.005, atol=0.005 * expected_grad.max().item()
        )


@on_a_gpu_only
def test_which_embeddings_are_fused(monkeypatch):
    images, texts = on_gpu("trained", 64, 16)
    assert can_fuse(images, torch.bfloat16)
    assert not can_fuse(images.float(), torch.float32)
    assert not can_fuse(images.cpu(), torch.bfloat16)
    for loss_fn in (TripletHN(), Triplet(), InfoNCE()):
        fused = value_and_grads(loss_fn.from_embeddings(images, texts), (images, texts))
        with monkeypatch.context() as patch:
            patch.setattr(row_statistics, "can_fuse", lambda emb, dtype: False)
            in_torch = value_and_grads(loss_fn.from_embeddings(images, texts), (images, texts))
        torch.testing.assert_close(fused, in_torch, rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("name", ["hardest", "hinge_sum", "log_sum_exp", "softplus_sum"])
def test_own_images_with_all_texts(name):
    """What a process of several computes."""
    skip_softplus(name)
    images, texts = on_gpu("trained", 129, 24)
    own, labels = images[40:70], make_ids(129, 0).to(DEVICE, torch.int32)
    constants = {"hinge_sum": (0.2,), "log_sum_exp": (0.01,), "softplus_sum": (0.1, -1.0)}.get(name, ())
    plan, found = Plan({name: constants}, both=False, first=40), []
    weight = torch.randn(2, 30, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for part, every in ((own, texts), (own.double(), texts.double())):  # the kernels, then blocks of rows
        positive, values = statistics_of(plan, (labels[40:70], labels), part, every)
        value = values[name]
        total = (weight[0] * positive).sum() + (weight[1] * value[0]).sum()
        found.append([value, *torch.autograd.grad(total, (images, texts), retain_graph=True)])
    for fused, exact in zip(*found, strict=True):
        near = 0.005 * exact.abs().max().item()
        torch.testing.assert_close(fused.double(), exact.double(), rtol=0.005, atol=near)


def test_backward_of_mined_anchors_computes_no_scores(monkeypatch):
    from selhn.kernels.hopper import fused

    loss = TripletSelHN(epsilon=0).from_embeddings(*on_gpu("trained", 300, 16))
    monkeypatch.setattr(fused, "add_pulls", None)
    loss.backward()


@on_a_gpu_only
def test_memory_stays_far_below_the_matrix():
    batch = 32768
    for loss_fn in (TripletSelHN(epsilon=math.inf), InfoNCE()):
        embs = on_gpu("collapsed", batch, 64)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss_fn.from_embeddings(*embs).backward()
        assert torch.cuda.max_memory_allocated() - before < 2 * batch**2 / 4
