"""The kernels against the torch form in float64, on a GPU; or anywhere that has Triton, in its interpreter:

TRITON_INTERPRET=1 pytest -W ignore tests/ops/test_cross_scores.py
"""

import os

import pytest
import torch

from selhn.models.scan import StackedAttention
from selhn.ops import Fragments, Pairing, cross_scores, pairing, unit
from selhn.ops.cross_scores import AttentionSettings, attention_scores, can_attend

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_gpu = pytest.mark.gpu
fused = pytest.mark.usefixtures("interpreter") if INTERPRETED else on_gpu
HEADS = {
    "scan_t2i_avg": lambda: StackedAttention(("t2i",), 9.0),
    "scan_t2i_lse": lambda: StackedAttention(("t2i",), 9.0, 6.0),
    "scan_i2t_avg": lambda: StackedAttention(("i2t",), 4.0),
    "scan_i2t_lse": lambda: StackedAttention(("i2t",), 4.0, 20.0),
    "bfan_equal": lambda: StackedAttention(("t2i", "i2t"), 20.0, focus="equal"),
    "bfan_prob": lambda: StackedAttention(("t2i", "i2t"), 20.0, focus="prob"),
}
# Images, regions, texts, words: all odd, one of everything, more queries than a program takes, the largest tiles.
SIZES = [(1, 1, 1, 1), (2, 2, 3, 8), (3, 5, 19, 40), (18, 36, 3, 23), (2, 37, 2, 17), (2, 126, 2, 63)]
WIDTH = 64


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr("selhn.ops.gpu.fusable", lambda *tensors: True)
    monkeypatch.setattr("selhn.kernels.cross_scores.wide_product", lambda a, b: a.float() @ b.float())


def make(items, size, seed, shared=0.5):
    """Vectors with something in common, and masks of 2 to all fragments.

    One fragment alone weighs all it sees by f(s) / |f(s)|, which is 1: what BFAN then keeps is decided by rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(items, size, WIDTH, generator=generator)
    vectors += shared * torch.randn(WIDTH, generator=torch.Generator().manual_seed(99))
    lengths = torch.randint(min(2, size), size + 1, (items,), generator=generator)
    lengths[0] = size
    return vectors.to(DEVICE), (torch.arange(size) < lengths[:, None]).to(DEVICE)


def kernel_scores(head, images, texts):
    """What a head computes, by the kernels: the heads themselves keep to torch."""
    settings = AttentionSettings(head.smooth, head.focus, head.lambda_lse)

    def score(some):
        sides = (side for items in (some.contexts, some.queries) for side in (items.vectors, items.mask))
        return attention_scores(*sides, head.directions, settings)

    return Pairing(images, texts).scored(score, products=6)


def scores_and_grads(head, images, texts, pulls, dtype):
    leaves = [vectors.detach().to(dtype).requires_grad_() for vectors, _ in (images, texts)]
    sides = [Fragments.of(unit(leaf), mask) for leaf, (_, mask) in zip(leaves, (images, texts))]
    assert can_attend(sides[0].vectors, sides[1].vectors) == (dtype == torch.float32)
    scores = kernel_scores(head, *sides) if dtype == torch.float32 else head(Pairing(*sides))
    return scores, *torch.autograd.grad(scores, leaves, pulls.to(dtype))


def assert_like_float64(head, images, texts, pulls=None):
    pulls = torch.randn(len(images[1]), len(texts[1])).to(DEVICE) if pulls is None else pulls
    scores, *grads = scores_and_grads(head, images, texts, pulls, torch.float32)
    expected, *expected_grads = scores_and_grads(head, images, texts, pulls, torch.float64)
    assert scores.dtype == torch.float32
    focused = head.focus is not None
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-5 if focused else 2e-4)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.isfinite().all()
        # One vector with another has hardly a gradient: that of the rounded vectors is compared with nothing.
        least = 1e-3 * pulls.abs().max().item()
        assert (grad.double() - expected_grad).norm() <= 2e-3 * expected_grad.norm() + least


@fused
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_torch_form(name, size):
    torch.manual_seed(0)
    num_images, regions, num_texts, words = size
    assert_like_float64(HEADS[name](), make(num_images, regions, 1), make(num_texts, words, 2))


@fused
@pytest.mark.parametrize("name", HEADS)
def test_nothing_to_see(name):
    torch.manual_seed(0)
    images, texts = make(3, 4, 1), make(3, 5, 2)
    for side in (images, texts):
        side[1][1] = False
        assert_like_float64(HEADS[name](), images, texts)


@fused
@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_equal_fragments_stay_or_go_together(focus):
    (vectors, _), (texts, token_mask) = make(3, 9, 1), make(3, 8, 2)
    vectors[0] = vectors[0, :1]
    vectors[1, 3:7] = vectors[1, 1:3].repeat(2, 1)
    mask = torch.ones(3, 9, dtype=torch.bool, device=DEVICE)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = vectors.to(dtype).requires_grad_()
        images, words = Fragments.of(unit(leaf), mask), Fragments.of(unit(texts.to(dtype)), token_mask)
        if dtype == torch.float32:
            settings = AttentionSettings(20.0, focus)
            scores = attention_scores(images.vectors, mask, words.vectors, token_mask, ("t2i",), settings)
        else:
            scores = StackedAttention(("t2i",), 20.0, focus=focus)(Pairing(images, words))
        results.append((scores.double(), torch.autograd.grad(scores.square().sum(), leaf)[0].double()))
    (scores, grad), (expected, expected_grad) = results
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    assert (grad - expected_grad).norm() < 2e-3 * expected_grad.norm()


@fused
@pytest.mark.parametrize("name", ["scan_t2i_avg", "bfan_prob"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_gradients_keep_their_digits_whatever_their_size(name, scale):
    # As where negatives are mined: most have no gradient, some a small one.
    pulls = torch.zeros(4, 5)
    pulls[0, 0], pulls[1, 2], pulls[3, 4], pulls[2, 2] = -1, 1, 0.5, 1 / 4096
    images, texts = make(4, 6, 1), make(5, 7, 2)
    results = [
        scores_and_grads(HEADS[name](), images, texts, scale * pulls.to(DEVICE), dtype)[1:]
        for dtype in (torch.float32, torch.float64)
    ]
    for grad, expected in zip(*results):
        # Every item for itself, also the one whose gradient is small.
        error = (grad.double() - expected).flatten(1).norm(dim=1)
        assert (error <= 2e-3 * expected.flatten(1).norm(dim=1)).all()


@fused
def test_near_collapse_the_gradient_is_that_of_the_differences():
    torch.manual_seed(0)
    images, texts = make(3, 12, 1, shared=20.0), make(4, 9, 2, shared=20.0)
    pulls = torch.randn(3, 4).to(DEVICE)
    head = HEADS["scan_t2i_avg"]()
    for grad, expected in zip(
        *(scores_and_grads(head, images, texts, pulls, dtype)[1:] for dtype in (torch.float32, torch.float64))
    ):
        assert (grad.double() - expected).norm() < 0.02 * expected.norm()


@fused
@pytest.mark.parametrize("name", ["scan_i2t_lse", "bfan_equal"])
def test_in_blocks(name, monkeypatch):
    images, texts, pulls = make(5, 6, 1), make(7, 4, 2), torch.randn(5, 7).to(DEVICE)
    whole = scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32)
    monkeypatch.setattr(pairing, "default_byte_budget", lambda device: 6 * 4 * 32 * 9)
    for ours, expected in zip(scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32), whole):
        torch.testing.assert_close(ours, expected, rtol=0, atol=2e-3 * expected.abs().max().item())


@fused
@pytest.mark.parametrize("name", HEADS)
def test_nan_shows(name):
    (images, region_mask), texts = make(2, 3, 1), make(3, 4, 2)
    images[1, 0, 5] = torch.nan
    scores, *grads = scores_and_grads(
        HEADS[name](), (images, region_mask), texts, torch.ones(2, 3).to(DEVICE), torch.float32
    )
    assert scores.isnan().tolist() == [[False] * 3, [True] * 3]
    assert grads[0][1].isnan().any()


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", HEADS)
def test_repeatable_and_without_waiting_for_the_device(name):
    images, texts, pulls = make(40, 36, 1), make(50, 23, 2), torch.randn(40, 50).to(DEVICE)
    first = scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@on_gpu
@pytest.mark.parametrize("name", ["scan_t2i_lse", "bfan_prob"])
def test_in_a_cuda_graph(name):
    images, texts, pulls = make(20, 36, 1), make(30, 23, 2), torch.randn(20, 30).to(DEVICE)
    expected = scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = scores_and_grads(HEADS[name](), images, texts, pulls, torch.float32)
    graph.replay()
    for ours, theirs in zip(captured, expected):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3 * theirs.abs().max().item())


@on_gpu
def test_which_fragments_are_taken():
    images, texts = torch.zeros(2, 36, 8, device="cuda"), torch.zeros(2, 23, 8, device="cuda")
    assert can_attend(images, texts)
    assert not can_attend(images.double(), texts.double())
    assert not can_attend(images.bfloat16(), texts)
    assert not can_attend(images, torch.zeros(2, 65, 8, device="cuda"))
    assert not can_attend(images[:0], texts)
    assert not can_attend(images.cpu(), texts)


@pytest.mark.parametrize(("exact", "error"), [(False, 1e-3), (True, 5e-7)])  # 2^-10 and 2^-21
def test_halves_have_the_products_of_the_vectors(exact, error):
    images, texts = (unit(torch.randn(shape)) for shape in ((3, 4, 16), (2, 5, 16)))
    rows, columns = cross_scores.rounded(images, texts, exact)
    assert rows.dtype == columns.dtype == torch.float16
    assert torch.equal(rows[:, :16], images.flatten(0, 1).half())
    assert torch.equal(columns[:, :16], texts.flatten(0, 1).half())
    expected = images.double().flatten(0, 1) @ texts.double().flatten(0, 1).T
    torch.testing.assert_close(rows.double() @ columns.double().T, expected, rtol=0, atol=error)
