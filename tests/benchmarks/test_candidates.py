"""Our candidates: each formula once more as a loop over Python numbers, and what each was made for."""

import math
import statistics

import pytest
import torch
from candidates import CANDIDATES, SCREEN
from loss_cases import hinge, make_ids, make_scores, softplus

from selhn.losses import LOSSES, create_loss
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


def test_candidates_are_not_public_until_entered():
    assert not set(CANDIDATES) & set(LOSSES)
    for form in SCREEN:
        name, *settings = form.split()
        assert name in CANDIDATES or create_loss(name, **key_values(settings))
