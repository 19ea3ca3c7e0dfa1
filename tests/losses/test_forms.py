"""Every loss in every form against its definition: values, gradients, ties, and what is not computed.

The definition is `Statistic.of_rows` on the matrix, with the gradients of autograd; the forms are a matrix in blocks
of rows and embeddings in blocks of rows. Several processes are in tests/training/test_ranks.py.
"""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, blocks_of, make_embeddings, make_ids, make_scores, plain_torch
from torch import func

from selhn.base.errors import SelhnError
from selhn.base.types import Products
from selhn.losses import TAL, InfoNCE, Triplet, TripletHN, TripletSelHN, anchors, rows, score_blocks
from selhn.losses.anchors import anchor_statistics

pytestmark = pytest.mark.filterwarnings("ignore::selhn.base.errors.SelhnWarning")  # equations of any numbers
every_case = pytest.mark.parametrize("case", CASES)


def with_grads(call, *inputs):
    value = call(*inputs)
    return value, *torch.autograd.grad(value, inputs)


def in_all_forms(loss_fn, images, texts, ids, height):
    """The loss and its gradients by the embeddings: the definition, the matrix, the embeddings."""

    def dense(images, texts):
        return loss_fn(images @ texts.T, image_ids=ids)

    with plain_torch():
        truth = with_grads(dense, images, texts)
    with blocks_of(height):
        matrix = with_grads(dense, images, texts)
        return (
            truth,
            matrix,
            with_grads(lambda v, t: loss_fn.from_embeddings(v, t, image_ids=ids), images, texts),
        )


def assert_equal(truth, *forms, tolerance):
    for form in forms:
        for expected, actual in zip(truth, form, strict=True):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@every_case
@settings(max_examples=15)
@given(
    kind=st.sampled_from(["spread", "collapsed", "trained", "ties"]),
    batch=st.integers(1, 150),
    height=st.sampled_from([1, 7, 64, 150]),
    with_ids=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_all_forms_are_the_definition(case, kind, batch, height, with_ids, seed):
    batch = min(batch, 6 * height)  # six blocks are enough
    images, texts = make_embeddings(kind, batch, 8, seed)
    ids = make_ids(batch, seed) if with_ids else None
    # The slope 1 / (1 - s) of a cross-entropy is thousands for embeddings that are alike, and so is the rounding.
    tolerance = 1e-9 if case.startswith("bce") else 1e-12
    assert_equal(*in_all_forms(CASES[case].make(), images, texts, ids, height), tolerance=tolerance)


@pytest.mark.parametrize("case", ["hn", "shn", "selhn", "triplet", "infonce", "siglip", "uto", "ssp-average"])
@pytest.mark.parametrize("kind", ["collapsed", "trained", "ties"])
def test_batches_of_many_blocks_and_chunks(case, kind):
    images, texts = make_embeddings(kind, 700, 8, 0)
    assert_equal(*in_all_forms(CASES[case].make(), images, texts, None, None), tolerance=1e-12)


@every_case
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_smallest_batches(case, batch):
    images, texts = make_embeddings("spread", batch, 4, 0)
    assert_equal(*in_all_forms(CASES[case].make(), images, texts, None, 8), tolerance=1e-12)


def test_one_image_only_gives_zero_and_finite_gradients():
    images, texts = make_embeddings("spread", 9, 4, 0)
    for case in CASES.values():
        with blocks_of(4):
            loss = case.make().from_embeddings(images, texts, image_ids=[3] * 9)
            grads = torch.autograd.grad(loss, (images, texts))
        assert loss == 0
        assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("loss_fn", [TripletSelHN(epsilon=0.1, reduction="none"), TAL(reduction="none")])
def test_reduction_none_and_gradients_of_chosen_anchors(loss_fn):
    images, texts = make_embeddings("trained", 50, 8, 0)
    weight = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight[:, ::2] = 0
    weight[1, 10:] = 0

    def weighted(*inputs):
        return (weight * loss_fn(*inputs)).sum()

    with plain_torch():
        truth = with_grads(lambda v, t: weighted(v @ t.T), images, texts)
    with blocks_of(16):
        found = with_grads(lambda v, t: (weight * loss_fn.from_embeddings(v, t)).sum(), images, texts)
    assert_equal(truth, found, tolerance=1e-12)


def test_several_matrices_in_blocks_are_each_by_itself():
    scores = torch.stack([make_scores(kind, 40, 0) for kind in ("spread", "trained", "collapsed")])
    scores = scores.unflatten(0, (3, 1)).requires_grad_()
    loss_fn = TripletSelHN(reduction="sum")
    with blocks_of(16):
        found = loss_fn(scores)
        (grad,) = torch.autograd.grad(found, scores)
    with plain_torch():
        each = [torch.autograd.functional.vjp(loss_fn, matrix[0].detach()) for matrix in scores]
    torch.testing.assert_close(found, sum(value for value, _ in each), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad[:, 0], torch.stack([one for _, one in each]), rtol=1e-12, atol=1e-12)


def test_gradcheck():  # of one: the others have the gradients of their dense form, which is checked in test_table.py
    images, texts = make_embeddings("trained", 6, 3, 1)
    ids, loss_fn = make_ids(6, 1), TripletSelHN()
    with blocks_of(4):
        assert torch.autograd.gradcheck(
            lambda v, t: loss_fn.from_embeddings(v, t, image_ids=ids), (images, texts)
        )


@pytest.fixture
def products(monkeypatch):
    """The shapes of all products of which scores are computed."""
    shapes, compute = [], score_blocks.product

    def spy(left, right):
        shapes.append((len(left), right.shape[1]))
        return compute(left, right)

    monkeypatch.setattr(score_blocks, "product", spy)
    return shapes


@pytest.mark.parametrize(
    "case", ["hn", "hn-nca", "shn", "shn-nca", "sct", "sct-nca", "warmup-over", "ssp", "ncr"]
)
def test_backward_of_mined_anchors_computes_no_scores(case, products):
    images, texts = make_embeddings("spread", 64, 8, 0)
    with blocks_of(16):
        loss = CASES[case].make().from_embeddings(images, texts)
        assert products == [
            (64, 64),
            *[(16, 64)] * 4,
        ]  # for the positives, then every row for both directions
        products.clear()
        loss.backward()
    assert products == []


def test_backward_of_selhn_visits_only_pairs_of_averaging_anchors(products):
    images, texts = make_embeddings("trained", 96, 8, 0)
    loss_fn = TripletSelHN(epsilon=0.02)
    with blocks_of(16):
        loss = loss_fn.from_embeddings(images, texts)
        products.clear()
        loss.backward()
    rows, columns = (~loss_fn.mined(images.detach() @ texts.detach().T)).sum(dim=1).tolist()
    assert 0 < rows < 40
    assert 0 < columns < 40
    assert sum(height * width for height, width in products) == (rows + columns) * 96
    assert max(height for height, _ in products) <= 16


@pytest.mark.parametrize("case", ["hn", "selhn", "infonce", "ssp-average"])
def test_no_more_than_a_block_of_scores_exists(case, products):
    batch, images, texts = 3000, *make_embeddings("collapsed", 3000, 4, 0, dtype=torch.float32)
    CASES[case].make().from_embeddings(images, texts).backward()
    assert {width for _, width in products[batch // score_blocks.SQUARE + 1 :]} == {batch}
    assert max(height * width for height, width in products) <= rows.ROWS * batch < batch**2 / 10


def test_what_is_kept_for_the_backward_pass_is_not_a_matrix():
    images, texts = make_embeddings("trained", 2000, 4, 0, dtype=torch.float32)
    gc.collect()
    losses = [CASES[case].make().from_embeddings(images, texts) for case in ("hn", "selhn", "infonce")]
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.numel() >= 2000 * 2000]
    assert losses
    assert kept == []


def test_a_second_derivative_and_torch_func_see_the_definition(monkeypatch):
    images, texts = make_embeddings("trained", 6, 4, 0)
    scores = (images @ texts.T).detach().requires_grad_()
    for loss_fn in (Triplet(), InfoNCE(), TripletSelHN()):
        monkeypatch.setattr(anchors, "FEW", 0)
        assert torch.autograd.gradgradcheck(loss_fn, (scores,))
        assert torch.autograd.gradgradcheck(loss_fn.from_embeddings, (images, texts))
        (expected,) = torch.autograd.grad(loss_fn(scores), scores)
        torch.testing.assert_close(func.grad(loss_fn)(scores), expected)


def test_float32_stays_close_to_float64():
    images, texts = make_embeddings("trained", 200, 32, 0)
    for loss_fn in (Triplet(), TripletHN(), TripletSelHN()):
        expected = loss_fn(images @ texts.T)
        with blocks_of(64):
            actual = loss_fn.from_embeddings(images.float(), texts.float())
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["collapsed", "trained"])
def test_half_precision_embeddings_are_multiplied_exactly(dtype, kind):
    images, texts = (emb.detach().to(dtype).requires_grad_() for emb in make_embeddings(kind, 70, 16, 0))
    exact = [emb.detach().double().requires_grad_() for emb in (images, texts)]
    for loss_fn in (Triplet(), TripletHN(), TripletSelHN()):
        with blocks_of(32):
            loss = loss_fn.from_embeddings(images, texts)
        grads = torch.autograd.grad(loss, (images, texts))
        expected = loss_fn(exact[0] @ exact[1].T)
        expected_grads = torch.autograd.grad(expected, exact)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            assert grad.dtype == dtype
            scale = expected_grad.abs().max().item()
            torch.testing.assert_close(grad.double(), expected_grad, rtol=0.01, atol=0.01 * scale)


def test_a_count_carries_no_gradient():
    images, texts = make_embeddings("trained", 20, 4, 0)
    needs = {"mined_count": (0.2,), "mined_sum": (0.2, 0, 0.0, 1.0)}
    with blocks_of(8):
        anchors = anchor_statistics(Products(images, texts), None, needs)
    (of_count,) = torch.autograd.grad(anchors["mined_count"].sum(), images, retain_graph=True)
    (of_sum,) = torch.autograd.grad(anchors["mined_sum"].sum(), images)
    assert not of_count.any()
    assert of_sum.any()


def test_positive_means_of_half_precision_are_in_float32():
    images, texts = (emb.detach().bfloat16() for emb in make_embeddings("trained", 50, 8, 0))
    ids = make_ids(50, 0)
    same = ids[:, None] == ids
    anchors = anchor_statistics(Products(images, texts), ids, ("positive_mean",))
    scores = images.double() @ texts.double().T * same
    expected = torch.stack([scores.sum(dim=1), scores.sum(dim=0)]) / same.sum(dim=1)
    assert anchors["positive_mean"].dtype == torch.float32
    torch.testing.assert_close(anchors["positive_mean"].double(), expected, rtol=1e-6, atol=1e-6)


def test_autocast_does_not_round_the_scores():
    images, texts = make_embeddings("collapsed", 40, 16, 0, dtype=torch.float32)
    with blocks_of(16):
        expected = TripletSelHN().from_embeddings(images, texts)
    expected_grad = torch.autograd.grad(expected, images)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with blocks_of(16):
            loss = TripletSelHN().from_embeddings(images, texts)
        grad = torch.autograd.grad(loss, images)[0]
    assert torch.equal(loss, expected)
    assert torch.equal(grad, expected_grad)


def test_frozen_side():
    images, texts = make_embeddings("trained", 30, 8, 0)
    with blocks_of(8):
        loss = TripletSelHN().from_embeddings(images, texts.detach())
    expected = TripletSelHN()(images @ texts.detach().T)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, images)[0] for x in (loss, expected)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("images", "texts", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(5, 4), "one shape"),
        (torch.zeros(3), torch.zeros(3), "image_emb must have shape"),
        (torch.zeros(0, 4), torch.zeros(0, 4), ">= 1"),
        (torch.zeros(3, 4), torch.zeros(3, 4).double(), "dtype"),
        (torch.zeros(3, 4), torch.full((3, 4), torch.nan), "text_emb has a NaN"),
        (torch.zeros(3, 4).int(), torch.zeros(3, 4), "floating-point"),
        ([[1.0]], torch.zeros(1, 1), "list"),
    ],
)
def test_bad_embeddings(images, texts, message):
    with pytest.raises(SelhnError, match=message):
        TripletSelHN().from_embeddings(images, texts)


@pytest.mark.parametrize("case", ["infonce", "multi_positive", "tal", "selhn"])
def test_near_collapse_half_precision_rounds_only_the_sum_of_all_pulls(case):
    embs = [emb.detach().bfloat16().requires_grad_() for emb in make_embeddings("collapsed", 300, 13, 0)]
    exact = [emb.detach().double().requires_grad_() for emb in embs]
    loss_fn, ids = CASES[case].make(), make_ids(300, 0)
    with blocks_of(128):
        grads = torch.autograd.grad(loss_fn.from_embeddings(*embs, ids), embs)
    expected = torch.autograd.grad(loss_fn(exact[0] @ exact[1].T, ids), exact)
    for grad, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad.double(), right, rtol=0.005, atol=0.005 * right.abs().max().item())


@pytest.mark.parametrize("turned", [False, True])
def test_an_anchor_whose_exponentials_vanish_beside_all_others_keeps_its_gradient(turned):
    scores = make_scores("spread", 40, 0)
    scores[3] -= 100  # of the sum of all exponentials, its own are exp(-1000)
    scores = (scores.mT if turned else scores).clone().requires_grad_()
    loss_fn = TAL(temperature=0.1, reduction="none")
    weight = torch.randn(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with plain_torch():
        truth = torch.autograd.grad((weight * loss_fn(scores)).sum(), scores)
    with blocks_of(16):
        found = torch.autograd.grad((weight * loss_fn(scores)).sum(), scores)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)
