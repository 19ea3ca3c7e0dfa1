"""Our candidates: each formula once more as a loop over Python numbers, and what each was made for."""

import math
import statistics

import pytest
import torch
from candidates import CANDIDATES, SCREEN, LogMeanExp, OwnTemperature, SoftHardest
from loss_cases import hinge, make_embeddings, make_ids, make_scores, plain_torch, softplus

from selhn.losses import LOSSES, TAL, create_loss
from selhn.training.config import key_values

pytestmark = pytest.mark.filterwarnings("ignore::selhn.base.errors.SelhnWarning")  # equations of any numbers
FORMS = [form for form in SCREEN if form.split()[0] in CANDIDATES]


def make(form):
    name, *settings = form.split()
    return CANDIDATES[name].loss(**key_values(settings))


def soft_maximum(scores, t, reference):
    largest = max(scores)
    mean = statistics.fmean(math.exp((s - largest) / t) for s in scores)
    return largest + t * math.log(reference * mean)


def average(p, negatives, f):
    return statistics.fmean(hinge(s, p, f.margin) for s in negatives)


def anchor(form, f, p, negatives, direction):
    """The loss of one anchor; `direction` has positives and negatives of all anchors of its direction."""
    name = form.split()[0]
    if not negatives:
        return 0.0
    if name in ("lme", "tal_n", "select_soft", "earned") and f.temperature:
        soft = hinge(soft_maximum(negatives, f.temperature, f.reference), p, f.margin)
    if name in ("lme", "tal_n"):
        return soft
    if name in ("margin_infonce", "related"):
        above = soft_maximum(negatives, f.temperature, len(negatives)) - p + f.margin
        return softplus(above / f.temperature)
    if name == "select_soft":
        beyond = abs(max(negatives) - p) - f.epsilon
        share = 1 / (1 + math.exp(-beyond / f.width)) if f.width else float(beyond > 0)
        return share * soft + (1 - share) * average(p, negatives, f)
    if name == "earned":
        first = (
            statistics.fmean(float(not others or own > max(others)) for own, others in direction) ** f.power
        )
        mined = hinge(max(negatives), p, f.margin) if f.hard else soft
        return first * mined + (1 - first) * average(p, negatives, f)
    filled = [(own, others or [0.0]) for own, others in direction]
    gap = statistics.fmean(own - statistics.fmean(others) for own, others in filled)
    noise = statistics.fmean(statistics.pvariance(others) for _, others in filled)
    if name == "graded":
        z = min(max(gap / max(math.sqrt(noise), 1e-12), 0.0), 6.0)
        k, n = min(math.exp(z * z / 2), f.most), len(negatives)
        weights = [((n - rank) / n) ** k - ((n - rank - 1) / n) ** k for rank in range(n)]
        return sum(
            w * hinge(s, p, f.margin) for w, s in zip(weights, sorted(negatives, reverse=True), strict=True)
        )
    mean, deviation = statistics.fmean(negatives), statistics.pstdev(negatives)
    if name == "select_spread":
        sign = deviation if f.by == "deviation" else (p - mean) / max(deviation, 1e-12)
        return hinge(max(negatives), p, f.margin) if sign > f.threshold else average(p, negatives, f)
    if f.rule == "spread":
        t = f.c * deviation
    elif f.rule == "earned":
        first = statistics.fmean(float(not others or own > max(others)) for own, others in direction)
        t = f.temperature**first * f.c ** (1 - first)
    elif f.rule == "opening":
        t = f.temperature + f.c * max(0.0, 1 - abs(max(negatives) - p) / 0.1)
    else:
        t = f.c * noise / gap if gap > 0 else 10.0
    return hinge(soft_maximum(negatives, min(max(t, f.temperature), 10.0), f.reference), p, f.margin)


def alike(first, second):
    """The correlation of two profiles, where it is above 0."""
    if len(set(first)) == 1 or len(set(second)) == 1:
        return 0.0
    return max(0.0, statistics.correlation(first, second))


def by_loops(form, f, rows, ids):
    losses, columns = [], list(map(list, zip(*rows)))
    discount = getattr(f, "discount", 0.0)
    for own, other in ((rows, columns), (columns, rows)):
        everyone = range(len(rows))

        def counted(i, j, own=own, other=other):
            return own[i][j] - (discount * alike(other[i], other[j]) if discount else 0.0)

        direction = [(rows[i][i], [counted(i, j) for j in everyone if ids[j] != ids[i]]) for i in everyone]
        losses.append([anchor(form, f, p, negatives, direction) for p, negatives in direction])
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["spread", "collapsed", "trained"])
@pytest.mark.parametrize("batch", [1, 2, 9])
def test_equals_the_loop(form, kind, batch):
    loss_fn, scores, ids = make(form), make_scores(kind, batch, seed=batch), make_ids(batch, seed=3)
    for own_ids in (None, ids):
        expected = by_loops(
            form, loss_fn, scores.tolist(), list(range(batch)) if own_ids is None else ids.tolist()
        )
        ours = loss_fn.per_anchor(scores, image_ids=own_ids)
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
        assert math.isclose(
            loss_fn(scores, own_ids).item(), expected.mean().item(), rel_tol=1e-10, abs_tol=1e-12
        )


def frozen(form, f):
    """Whether a weight or temperature without gradient is in it, so that differences of the value are not it."""
    name = form.split()[0]
    return name in ("own_temperature", "graded", "related") or (name == "select_soft" and f.width > 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["spread", "collapsed", "trained"])
def test_gradient(form, kind):
    loss_fn, scores, ids = make(form), make_scores(kind, 5, seed=5), make_ids(5, seed=2)
    scores.requires_grad_()
    if frozen(form, loss_fn):
        (grad,) = torch.autograd.grad(loss_fn(scores, ids), scores)
        assert grad.isfinite().all()
        # All scores may be raised together: with a temperature held fixed, the gradients of an anchor cancel.
        assert abs(grad.sum()) < 1e-12
    else:
        torch.autograd.gradcheck(lambda s: loss_fn(s, ids), scores, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("rule", ["spread", "opening", "safe", "earned"])
def test_the_gradient_of_a_temperature_held_fixed(rule):
    """With the temperatures it chose written down as constants, the difference quotient is the gradient."""
    loss_fn, scores = OwnTemperature(rule), make_scores("spread", 6, seed=1).requires_grad_()
    anchors = loss_fn.statistics(scores, None)
    chosen = loss_fn.temperatures(anchors.given, anchors.positive.detach())
    (grad,) = torch.autograd.grad(loss_fn(scores), scores)
    loss_fn.temperatures = lambda rows, positive: chosen
    torch.autograd.gradcheck(loss_fn, scores, atol=1e-7, rtol=1e-5)
    (again,) = torch.autograd.grad(loss_fn(scores), scores)
    torch.testing.assert_close(again, grad, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_finite_where_an_anchor_has_no_negatives(form):
    scores = make_scores("spread", 4, seed=0).float().requires_grad_()
    loss = make(form)(scores, image_ids=[1, 1, 1, 1])
    loss.backward()
    assert loss == 0
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("form", [form for form in FORMS if make(form).needs])
def test_from_embeddings(form):
    images, texts = make_embeddings("trained", 40, 8, seed=0)
    with plain_torch():
        dense = make(form)(images @ texts.T)
    from_blocks = make(form).from_embeddings(images, texts)
    torch.testing.assert_close(from_blocks, dense, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(from_blocks, (images, texts)), torch.autograd.grad(dense, (images, texts))
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_log_mean_exp_averages_close_scores_and_mines_distant_ones():
    close, distant = make_scores("collapsed", 8, 0), 100 * make_scores("spread", 8, 0)
    off = ~torch.eye(8, dtype=torch.bool)
    for scores, wanted in ((close, lambda row: row.mean()), (distant, lambda row: row.max())):
        loss = LogMeanExp(margin=1e3, temperature=0.5).per_anchor(scores)
        rows = torch.stack([wanted(scores[i][off[i]]) - scores[i, i] for i in range(8)]) + 1e3
        assert (loss[0] - rows).abs().max() < 0.5 * math.log(7) + 1e-9
    assert (
        LogMeanExp(margin=1, temperature=0.5).per_anchor(close)[0] - rows_of_means(close)
    ).abs().max() < 1e-4


def rows_of_means(scores):
    off = ~torch.eye(len(scores), dtype=torch.bool)
    return torch.stack([scores[i][off[i]].mean() - scores[i, i] + 1 for i in range(len(scores))])


def test_the_reference_keeps_a_margin_over_batch_sizes():
    """Every negative twice: TAL changes by t log 2, the corrected one not at all."""
    ids = [0, 1, 2, 3, 4, 5, 6, 7]
    scores = make_scores("spread", 8, 3)
    twice = scores.repeat(2, 2)
    ours = SoftHardest(margin=1.0, temperature=0.1)
    torch.testing.assert_close(ours(twice, image_ids=ids * 2), ours(scores, image_ids=ids))
    tal = TAL(margin=1.0, temperature=0.1)
    assert math.isclose(tal(twice, ids * 2) - tal(scores, ids), 0.1 * math.log(2), abs_tol=1e-9)


def test_the_safe_temperature_does_not_pull_the_scores_together():
    """Noise with a faint positive: moving apart raises TAL, and lowers the loss at c = 2 by half of the gap."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.2 * torch.randn(64, 64, generator=generator, dtype=torch.float64)
    scores = noise.fill_diagonal_(0.06)

    def slope(loss_fn):
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(loss_fn(scale * scores), scale)[0].item()

    gap = (scores.diagonal().mean() - (scores.sum() - scores.trace()) / (64 * 63)).item()
    assert slope(TAL(margin=2.0, temperature=0.05)) > 2 * gap
    # The rule holds to second order in the spread; here the next orders are not small.
    assert abs(slope(OwnTemperature("safe", c=1.0, margin=2.0))) < 0.25 * gap
    assert -0.75 * gap < slope(OwnTemperature("safe", c=2.0, margin=2.0)) < -0.25 * gap
    assert math.isclose(slope(OwnTemperature("safe", c=1e6, margin=2.0)), -gap, rel_tol=0.1)


def test_candidates_are_not_public_until_entered():
    assert not set(CANDIDATES) & set(LOSSES)
    for form in SCREEN:
        name, *settings = form.split()
        assert name in CANDIDATES or create_loss(name, **key_values(settings))
