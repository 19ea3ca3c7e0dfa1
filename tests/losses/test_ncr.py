import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import KINDS, blocks_of, hinge, make_embeddings, make_ids, make_scores

from selhn.base.errors import SelhnError
from selhn.losses import NCR, PairLabels, TripletHN, TripletSelHN

SOFTNESS = {
    "linear": lambda y: y,
    "exponential": lambda y: (10**y - 1) / 9,
    "sin": lambda y: math.sin(math.pi * y - math.pi / 2) / 2 + 0.5,
}
every_softness = pytest.mark.parametrize("softness", SOFTNESS)


def make_labels(batch, seed):
    return torch.rand(batch, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)


def given_labels(loss_fn, labels):
    return lambda scores: loss_fn(scores, given=labels.to(scores))


@every_softness
def test_golden(softness, golden, check_golden_loss):
    _, config = golden(f"loss_ncr_{softness}")
    labels = torch.tensor(config["labels"], dtype=torch.float64)
    check_golden_loss(
        f"loss_ncr_{softness}",
        given_labels(NCR.official(warmup_epochs=0, margin=config["margin"], softness=softness), labels),
    )


def test_golden_warm_up(check_golden_loss):
    check_golden_loss("loss_ncr_warmup", NCR.official(warmup_epochs=1))


def test_golden_pair_losses(golden):
    arrays, config = golden("loss_ncr_eval")
    for k, matrix in enumerate(config["matrices"]):
        scores = torch.from_numpy(arrays["scores"][k]).double().requires_grad_()
        losses = NCR.official(warmup_epochs=0, margin=config["margin"]).pair_losses(scores)
        losses.sum().backward()
        torch.testing.assert_close(
            losses, torch.from_numpy(arrays["loss"][k]), rtol=0, atol=1e-12, msg=matrix
        )
        expected = torch.from_numpy(arrays["grad_scores"][k])
        torch.testing.assert_close(scores.grad, expected, rtol=0, atol=1e-12, msg=matrix)


def test_golden_predictions(golden):
    arrays, config = golden("loss_ncr_predict")
    assert len(config["matrices"]) == len(arrays["scores"]) > 0
    for k, matrix in enumerate(config["matrices"]):
        prediction = NCR.official(warmup_epochs=0, margin=config["margin"]).predict(
            torch.from_numpy(arrays["scores"][k]).double()
        )
        torch.testing.assert_close(
            prediction, torch.from_numpy(arrays["prediction"][k]), rtol=0, atol=1e-12, msg=matrix
        )


def test_golden_clean_pairs(golden):
    arrays, config = golden("loss_ncr_labeled_bxb")
    loss_fn = NCR.official(warmup_epochs=0, margin=config["margin"])
    probability = torch.tensor(config["clean_probability"], dtype=torch.float64)
    assert len(config["matrices"]) == len(arrays["scores"]) > 0
    for k, matrix in enumerate(config["matrices"]):
        scores = torch.from_numpy(arrays["scores"][k]).double().requires_grad_()
        labels = loss_fn.clean_labels(probability, loss_fn.predict(scores))
        expected = torch.from_numpy(arrays["margin_labels"][k])
        torch.testing.assert_close(labels, expected, rtol=0, atol=1e-12, msg=matrix)
        loss = loss_fn(scores, given=labels)
        loss.backward()
        assert abs(loss.item() - arrays["loss"][k]) < 1e-12, matrix
        expected = torch.from_numpy(arrays["grad_scores"][k])
        torch.testing.assert_close(scores.grad, expected, rtol=0, atol=1e-12, msg=matrix)


@every_softness
@given(
    kind=st.sampled_from(KINDS), batch=st.integers(1, 9), seed=st.integers(0, 10_000), with_ids=st.booleans()
)
def test_labels_equal_the_double_loop(softness, kind, batch, seed, with_ids):
    scores, labels = make_scores(kind, batch, seed), make_labels(batch, seed)
    ids = make_ids(batch, seed) if with_ids else None
    same = torch.eye(batch).bool() if ids is None else ids[:, None] == ids
    for margin_of in ("anchor", "image"):
        expected = torch.zeros(2, batch, dtype=torch.float64)
        for direction, rows in enumerate((scores, scores.T)):
            for i in range(batch):
                negatives = [j for j in range(batch) if not same[i, j]]
                owners = [j if margin_of == "image" and direction == 1 else i for j in negatives]
                expected[direction, i] = max(
                    (
                        hinge(
                            rows[i, j].item(),
                            rows[i, i].item(),
                            0.2 * SOFTNESS[softness](labels[owner].item()),
                        )
                        for j, owner in zip(negatives, owners, strict=True)
                    ),
                    default=0.0,
                )
        losses = NCR(warmup_epochs=0, softness=softness, margin_of=margin_of).per_anchor(
            scores, ids, given=labels
        )
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_of_labels_with_equal_columns_is_a_vector():
    scores, labels = make_scores("spread", 7, 0), make_labels(7, 0)
    loss_fn = NCR.official(warmup_epochs=0)
    assert torch.equal(loss_fn(scores, given=labels), loss_fn(scores, given=labels[:, None].expand(7, 7)))


@every_softness
def test_labels_of_one_are_hardest_negative_mining_and_of_zero_have_no_margin(softness):
    scores = make_scores("spread", 9, 0)
    for margin_of in ("anchor", "image"):
        loss_fn = NCR(warmup_epochs=0, softness=softness, margin_of=margin_of)
        torch.testing.assert_close(loss_fn(scores), TripletHN()(scores), rtol=0, atol=0)
        ones = torch.ones(9, dtype=torch.float64)
        torch.testing.assert_close(loss_fn(scores, given=ones), TripletHN()(scores))
        torch.testing.assert_close(loss_fn(scores, given=0 * ones), TripletHN(margin=0)(scores))


def test_from_embeddings_with_labels():
    images, texts = make_embeddings("trained", 30, 8, 0)
    ids, labels, loss_fn = make_ids(30, 0), make_labels(30, 0), NCR(warmup_epochs=0)
    dense = loss_fn(images @ texts.T, ids, given=labels)
    with blocks_of(8):
        from_blocks = loss_fn.from_embeddings(images, texts, ids, given=labels)
    torch.testing.assert_close(from_blocks, dense, rtol=1e-12, atol=1e-12)
    for actual, expected in zip(
        torch.autograd.grad(from_blocks, (images, texts)),
        torch.autograd.grad(dense, (images, texts)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(SelhnError):
        NCR.official(warmup_epochs=0).from_embeddings(images, texts, given=labels)
    warming = NCR.official(warmup_epochs=1)
    torch.testing.assert_close(
        warming.from_embeddings(images, texts, given=labels), warming(images @ texts.T)
    )
    torch.testing.assert_close(
        NCR.official(warmup_epochs=0).from_embeddings(images, texts), TripletHN.official()(images @ texts.T)
    )


def test_gradcheck_with_labels():
    scores = make_scores("spread", 6, 3).requires_grad_()
    for margin_of in ("anchor", "image"):
        loss_fn = NCR(warmup_epochs=0, margin_of=margin_of)
        assert torch.autograd.gradcheck(lambda s, f=loss_fn: f(s, given=make_labels(6, 0)), (scores,))


@pytest.mark.parametrize("margin_of", ["anchor", "image"])
def test_half_precision_is_worked_on_in_float32(margin_of):
    scores, labels = make_scores("collapsed", 9, 2, dtype=torch.bfloat16), make_labels(9, 0)
    loss = NCR(warmup_epochs=0, margin_of=margin_of)(scores, given=labels)
    assert loss.dtype == torch.float32
    assert loss == NCR(warmup_epochs=0, margin_of=margin_of)(scores.float(), given=labels.float())


def test_warm_up_is_the_average_and_does_not_look_at_labels():
    scores = make_scores("spread", 9, 0)
    for loss_fn in (NCR(warmup_epochs=2), NCR(warmup_epochs=2, margin_of="image")):
        for epoch in range(3):
            loss_fn.set_epoch(epoch)
            assert loss_fn.phase == (epoch < 2)
            expected = TripletSelHN(epsilon=torch.inf) if epoch < 2 else TripletHN(margin=0.0)
            labels = torch.zeros(9, dtype=torch.float64)
            torch.testing.assert_close(
                loss_fn(scores, given=labels), expected(scores), rtol=1e-13, atol=1e-13
            )


def test_pair_losses_and_predictions_do_not_depend_on_the_phase_and_mask_same_images():
    scores, ids = make_scores("trained", 9, 0), make_ids(9, 0)
    cold, warm = NCR(warmup_epochs=0), NCR(warmup_epochs=3)
    assert torch.equal(cold.pair_losses(scores, ids), warm.pair_losses(scores, ids))
    assert torch.equal(cold.predict(scores, ids), warm.predict(scores, ids))
    average = TripletSelHN(epsilon=torch.inf, reduction="none")(scores, ids)
    torch.testing.assert_close(cold.pair_losses(scores, ids), average.sum(dim=0))
    assert not torch.equal(cold.pair_losses(scores, ids), cold.pair_losses(scores))


def test_predictions_are_0_where_no_pair_is_told_apart():
    # The authors' program has 0/0 here.
    assert NCR(warmup_epochs=0).predict(1 - torch.eye(5)).tolist() == [0.0] * 5


def test_predictions_are_in_units_of_the_best_tenth():
    scores = torch.eye(12, dtype=torch.float64) * 0.9
    scores[3, 3] = scores[8, 8] = (
        0.1  # every hinge is 0.1, so is the mean, and half of the sum of both directions
    )
    expected = torch.ones(12, dtype=torch.float64)
    expected[[3, 8]] = 0.5
    prediction = NCR(warmup_epochs=0).predict(scores.requires_grad_())
    torch.testing.assert_close(prediction, expected)
    assert not prediction.requires_grad


def test_clean_labels():
    probability, prediction = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.2, 0.4, 0.6])
    torch.testing.assert_close(
        NCR(warmup_epochs=0).clean_labels(probability, prediction), torch.tensor([1.0, 0.7, 0.6])
    )


def test_labels_carry_no_gradient():
    labels = torch.full((4,), 0.5, requires_grad=True)
    assert not NCR(warmup_epochs=0)(torch.zeros(4, 4), given=labels).requires_grad


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.ones(3), r"got \(3,\)"),
        (torch.ones(4, 4), r"got \(4, 4\)"),
        (torch.ones(4).int(), "floating-point"),
        ([1.0] * 4, "list"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(SelhnError, match=message):
        NCR(warmup_epochs=0)(torch.zeros(4, 4), given=labels)
    with pytest.raises(SelhnError):
        NCR.official(warmup_epochs=0)(torch.zeros(4, 4), given=torch.ones(3))


@pytest.mark.parametrize("margin_of", ["anchor", "image"])
def test_labels_of_several_networks(margin_of):
    scores = torch.stack([make_scores("spread", 7, 0), make_scores("trained", 7, 1)])
    labels = torch.stack([make_labels(7, 0), make_labels(7, 1)])
    loss_fn = NCR(warmup_epochs=0, margin_of=margin_of)
    together = loss_fn.per_anchor(scores, given=PairLabels(labels))
    for k in range(2):
        torch.testing.assert_close(
            together[k], loss_fn.per_anchor(scores[k], given=labels[k]), rtol=0, atol=0
        )
    torch.testing.assert_close(loss_fn(scores, given=PairLabels(labels)), together.mean())
    for function in (loss_fn.pair_losses, loss_fn.predict):
        torch.testing.assert_close(function(scores), torch.stack([function(scores[0]), function(scores[1])]))


def test_pairs_that_are_left_out():
    scores, labels = make_scores("spread", 7, 0).requires_grad_(), make_labels(7, 0)
    trained = torch.tensor([True, False, True, True, False, False, True])
    each = NCR(warmup_epochs=0).per_anchor(scores, given=labels)
    loss = NCR(warmup_epochs=0)(scores, given=PairLabels(labels, trained))
    torch.testing.assert_close(loss, each[:, trained].mean())
    loss.backward()
    assert not scores.grad.diagonal()[~trained].any()
    nobody = NCR(warmup_epochs=0)(scores, given=PairLabels(labels, torch.zeros(7, dtype=torch.bool)))
    assert nobody == 0
    warming = NCR(warmup_epochs=1)
    warming.set_epoch(0)
    torch.testing.assert_close(warming(scores, given=PairLabels(labels, trained)), warming(scores))


@pytest.mark.usefixtures("as_a_user")
def test_pair_labels_of_another_batch():
    for labels, trained in ((torch.ones(2, 3), None), (torch.ones(4), torch.ones(2, 4, dtype=torch.bool))):
        with pytest.raises(SelhnError):
            NCR(warmup_epochs=0)(torch.zeros(4, 4), given=PairLabels(labels, trained))


def test_the_mean_loss_is_over_the_pairs_that_are_trained_on():
    scores = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    half = PairLabels(torch.ones(6, dtype=torch.float64), torch.tensor([True, False] * 3))
    for reduction in ("mean", "sum", "none"):
        loss_fn = NCR(warmup_epochs=0, reduction=reduction)
        torch.testing.assert_close(
            loss_fn.reduce(loss_fn.statistics(scores, given=half), "mean"),
            NCR(warmup_epochs=0)(scores, given=half),
        )
    assert (
        NCR(warmup_epochs=0)(scores, given=half)
        > NCR(warmup_epochs=0, reduction="none")(scores, given=half).mean()
    )


def test_no_prediction_is_above_1():
    # The best tenth of twelve pairs are two, of which one beats their mean.
    scores = torch.zeros(12, 12)
    scores.fill_diagonal_(0.05)
    scores[0, 0], scores[1, 1] = 0.19, 0.11
    predicted = NCR(warmup_epochs=0).predict(scores)
    assert predicted[0] == 1
    assert (predicted[2:] < predicted[1]).all()
    assert predicted[1] < 1
