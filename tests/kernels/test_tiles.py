"""`from_embeddings` against the dense form: values, gradients, ties, and what it does not compute."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, make_embeddings, make_ids

from selhn.base.types import Products
from selhn.kernels import STATISTICS, Terms, tile_traversal, tiled_statistics, tiles, torch_tiles
from selhn.losses import NCR, SSP, TAL, MultiPositiveInfoNCE, Triplet, TripletHN, TripletSelHN

pytestmark = pytest.mark.filterwarnings("ignore::selhn.base.errors.SelhnWarning")  # equations of any numbers
every_case = pytest.mark.parametrize("case", CASES)


def both_ways(loss_fn, images, texts, ids, tile):
    dense = loss_fn(images @ texts.T, image_ids=ids)
    tiled = loss_fn.from_embeddings(images, texts, image_ids=ids, tile=tile)
    return (dense, *torch.autograd.grad(dense, (images, texts))), (
        tiled,
        *torch.autograd.grad(tiled, (images, texts)),
    )


def assert_equal_to(dense, tiled, tolerance):
    for expected, actual in zip(dense, tiled, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@every_case
@settings(max_examples=15)
@given(
    kind=st.sampled_from(["spread", "collapsed", "trained", "ties"]),
    batch=st.integers(1, 150),
    tile=st.sampled_from([1, 7, 64, 100, 1024]),
    with_ids=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_tiled_equals_dense(case, kind, batch, tile, with_ids, seed):
    batch = min(batch, 6 * tile)  # 36 tiles are enough
    images, texts = make_embeddings(kind, batch, 8, seed)
    ids = make_ids(batch, seed) if with_ids else None
    # The slope 1 / (1 - s) of a cross-entropy is thousands for embeddings that are alike, and so is the rounding.
    tolerance = 1e-9 if case.startswith("bce") else 1e-12
    assert_equal_to(*both_ways(CASES[case].make(), images, texts, ids, tile), tolerance)


@every_case
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_smallest_batches(case, batch):
    images, texts = make_embeddings("spread", batch, 4, 0)
    assert_equal_to(*both_ways(CASES[case].make(), images, texts, None, None), tolerance=1e-12)


def test_one_image_only_gives_zero_and_finite_gradients():
    images, texts = make_embeddings("spread", 9, 4, 0)
    for case in CASES.values():
        loss = case.make().from_embeddings(images, texts, image_ids=[3] * 9, tile=4)
        grads = torch.autograd.grad(loss, (images, texts))
        assert loss == 0
        assert not any(grad.any() for grad in grads)


def test_reduction_none_and_gradients_of_chosen_anchors():
    images, texts = make_embeddings("trained", 50, 8, 0)
    loss_fn = TripletSelHN(epsilon=0.1, reduction="none")
    dense, tiled = loss_fn(images @ texts.T), loss_fn.from_embeddings(images, texts, tile=16)
    torch.testing.assert_close(tiled, dense, rtol=1e-12, atol=1e-12)
    weight = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for expected, actual in zip(
        torch.autograd.grad((weight * dense).sum(), (images, texts)),
        torch.autograd.grad((weight * tiled).sum(), (images, texts)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_gradcheck():  # of one: the others have the gradients of their dense form, which is checked in test_table.py
    images, texts = make_embeddings("trained", 6, 3, 1)
    ids, loss_fn = make_ids(6, 1), TripletSelHN()
    assert torch.autograd.gradcheck(
        lambda v, t: loss_fn.from_embeddings(v, t, image_ids=ids, tile=4), (images, texts)
    )


@pytest.fixture
def products(monkeypatch):
    """The shapes of all tile products that are computed."""
    shapes, compute = [], torch_tiles.product

    def spy(left, right):
        shapes.append((len(left), right.shape[1]))
        return compute(left, right)

    monkeypatch.setattr(torch_tiles, "product", spy)
    return shapes


@pytest.mark.parametrize(
    "case", ["hn", "hn-nca", "shn", "shn-nca", "sct", "sct-nca", "warmup-over", "ssp", "ncr"]
)
def test_backward_of_mined_anchors_touches_no_tile(case, products):
    images, texts = make_embeddings("spread", 64, 8, 0)
    loss = CASES[case].make().from_embeddings(images, texts, tile=16)
    assert len(products) == 4 + 16  # the diagonal for the positives, then every tile once for both directions
    products.clear()
    loss.backward()
    assert products == []


def test_backward_of_selhn_visits_only_pairs_of_averaging_anchors(products):
    images, texts = make_embeddings("trained", 96, 8, 0)
    loss_fn = TripletSelHN(epsilon=0.02)
    loss = loss_fn.from_embeddings(images, texts, tile=16)
    products.clear()
    loss.backward()
    rows, columns = (~loss_fn.mined(images.detach() @ texts.detach().T)).sum(dim=1).tolist()
    assert 0 < rows < 40
    assert 0 < columns < 40
    visited = sum(height * width for height, width in products[::3])  # score, then two gradient products
    assert visited == (rows + columns) * 96
    assert max(height for height, _ in products[::3]) <= 16


def test_float32_stays_close_to_float64():
    images, texts = make_embeddings("trained", 200, 32, 0)
    for loss_fn in (Triplet(), TripletHN(), TripletSelHN()):
        expected = loss_fn(images @ texts.T)
        actual = loss_fn.from_embeddings(images.float(), texts.float(), tile=64)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["collapsed", "trained"])
def test_half_precision_embeddings_are_multiplied_exactly(dtype, kind):
    images, texts = (emb.detach().to(dtype).requires_grad_() for emb in make_embeddings(kind, 70, 16, 0))
    exact = [emb.detach().double().requires_grad_() for emb in (images, texts)]
    for loss_fn in (Triplet(), TripletHN(), TripletSelHN()):
        loss = loss_fn.from_embeddings(images, texts, tile=32)
        grads = torch.autograd.grad(loss, (images, texts))
        expected = loss_fn(exact[0] @ exact[1].T)
        expected_grads = torch.autograd.grad(expected, exact)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            assert grad.dtype == dtype
            scale = expected_grad.abs().max().item()
            torch.testing.assert_close(grad.double(), expected_grad, rtol=0.01, atol=0.01 * scale)


def test_a_statistic_without_a_kernel_is_served_by_torch(monkeypatch):
    chosen = []
    monkeypatch.setattr(tiles, "can_fuse", lambda emb: True)
    monkeypatch.setattr(tile_traversal, "arithmetic_of", lambda tile: chosen.append(tile) or torch_tiles)
    images, texts = make_embeddings("trained", 20, 4, 0)
    SSP(mining="average").from_embeddings(images, texts).backward()
    assert set(chosen) == {1024}
    for loss_fn in (
        SSP(),
        MultiPositiveInfoNCE(),
        TAL(),
        NCR(),
    ):  # all that these need of a tile, the kernels have
        assert all(STATISTICS[name].fused for name in loss_fn.needs if name != "positive_mean")


def test_a_count_carries_no_gradient():
    images, texts = make_embeddings("trained", 20, 4, 0)
    terms = Terms(0.2, polynomial=(0.0, 1.0))
    anchors = tiled_statistics(Products(images, texts), None, ("mined_count", "mined_sum"), terms)
    assert not anchors["mined_count"].requires_grad
    assert anchors["mined_sum"].requires_grad


def test_positive_means_of_half_precision_are_in_float32():
    images, texts = (emb.detach().bfloat16() for emb in make_embeddings("trained", 50, 8, 0))
    ids = make_ids(50, 0)
    same = ids[:, None] == ids
    anchors = tiled_statistics(Products(images, texts, tile=16), ids, ("positive_mean",), Terms())
    scores = images.double() @ texts.double().T * same
    expected = torch.stack([scores.sum(dim=1), scores.sum(dim=0)]) / same.sum(dim=1)
    assert anchors["positive_mean"].dtype == torch.float32
    torch.testing.assert_close(anchors["positive_mean"].double(), expected, rtol=1e-6, atol=1e-6)


def test_autocast_does_not_round_the_scores():
    images, texts = make_embeddings("collapsed", 40, 16, 0, dtype=torch.float32)
    expected = TripletSelHN().from_embeddings(images, texts, tile=16)
    expected_grad = torch.autograd.grad(expected, images)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = TripletSelHN().from_embeddings(images, texts, tile=16)
        grad = torch.autograd.grad(loss, images)[0]
    assert torch.equal(loss, expected)
    assert torch.equal(grad, expected_grad)


def test_frozen_side():
    images, texts = make_embeddings("trained", 30, 8, 0)
    loss = TripletSelHN().from_embeddings(images, texts.detach(), tile=8)
    expected = TripletSelHN()(images @ texts.detach().T)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, images)[0] for x in (loss, expected)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("images", "texts", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(5, 4), "must have one shape"),
        (torch.zeros(3), torch.zeros(3), r"image_emb must have shape \(B, d\)"),
        (torch.zeros(0, 4), torch.zeros(0, 4), r"B, d >= 1, got \(0, 4\)"),
        (torch.zeros(3, 4), torch.zeros(3, 4).double(), "must agree in dtype and device"),
        (
            torch.zeros(3, 4),
            torch.full((3, 4), torch.nan),
            r"text_emb has a NaN or infinite value, first at \[0, 0\]",
        ),
        (torch.zeros(3, 4).int(), torch.zeros(3, 4), "image_emb must hold floating-point numbers"),
        ([[1.0]], torch.zeros(1, 1), "image_emb must be a torch tensor, got list"),
    ],
)
def test_bad_embeddings(images, texts, message):
    with pytest.raises(ValueError, match=message):
        TripletSelHN().from_embeddings(images, texts)


def test_bad_tile():
    with pytest.raises(ValueError, match="tile must be at least 1, got 0"):
        TripletSelHN().from_embeddings(torch.zeros(2, 2), torch.zeros(2, 2), tile=0)


@pytest.mark.parametrize("case", ["infonce", "multi_positive", "tal", "selhn"])
def test_near_collapse_half_precision_rounds_only_the_sum_of_all_pulls(case):
    embs = [emb.detach().bfloat16().requires_grad_() for emb in make_embeddings("collapsed", 300, 13, 0)]
    exact = [emb.detach().double().requires_grad_() for emb in embs]
    loss_fn, ids = CASES[case].make(), make_ids(300, 0)
    grads = torch.autograd.grad(loss_fn.from_embeddings(*embs, ids, tile=128), embs)
    expected = torch.autograd.grad(loss_fn(exact[0] @ exact[1].T, ids), exact)
    for grad, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad.double(), right, rtol=0.005, atol=0.005 * right.abs().max().item())
