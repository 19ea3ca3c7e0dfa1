"""Every loss in every form, each beside its formula as a double loop over Python numbers. A new loss adds a block."""

import math
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch

from selhn.losses import (
    AOQ,
    BCE,
    NCR,
    SCT,
    SSP,
    STATISTICS,
    TAL,
    UTO,
    AbstractLoss,
    BCEMax,
    InfoNCE,
    MetaSPN,
    MultiPositiveInfoNCE,
    MultiPositiveSigLIP,
    SigLIP,
    Statistic,
    Triplet,
    TripletDistance,
    TripletHN,
    TripletSelHN,
    TripletSHN,
    TripletWarmUp,
    anchors,
    row_gradients,
    rows,
)
from selhn.losses import hinge as hinge_of


class Anchor(NamedTuple):
    """The score of the positive, those of the negatives and of all pairs of the anchor's image; the batch size."""

    p: float
    negatives: list
    positives: list
    batch: int


class Case(NamedTuple):
    """A name in `LOSSES`, a form of that loss, and its formula: (loss, anchor) -> number, None if it does not count."""

    name: str
    make: type
    formula: object


CASES = {}


def add(name, formula, **forms):
    for form, make in forms.items():
        CASES[name if form == "plain" else f"{name}-{form}"] = Case(name, make, formula)


def hinge(negative, positive, margin):
    return max(negative - positive + margin, 0.0)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def log_sum_exp(logits):
    largest = max(logits)
    return math.log(sum(math.exp(x - largest) for x in logits)) + largest


def term(f, negative, positive):
    if f.variant == "nca":
        return softplus((negative - positive) / f.temperature)
    return hinge(negative, positive, f.margin)


def mean_hinge(f, a):
    over = a.batch if f.average_over == "batch" else len(a.negatives)
    return sum(hinge(s, a.p, f.margin) for s in a.negatives) / over


def triplet(f, a):
    return sum(hinge(s, a.p, f.margin) for s in a.negatives)


add("triplet", triplet, plain=Triplet)


def hardest(f, a):
    return hinge(max(a.negatives), a.p, f.margin) if a.negatives else 0.0


def hn(f, a):
    if not a.negatives:
        return 0.0 if f.variant == "hinge" else None
    return term(f, max(a.negatives), a.p)


add("hn", hn, plain=TripletHN, nca=lambda: TripletHN(variant="nca"))


def selhn(f, a):
    if not a.negatives:
        return 0.0
    gap = abs(max(a.negatives) - a.p)
    mines = gap > f.epsilon or (f.mine_at_epsilon and gap == f.epsilon)
    return hinge(max(a.negatives), a.p, f.margin) if mines else mean_hinge(f, a)


add(
    "selhn",
    selhn,
    plain=TripletSelHN,
    wide=lambda: TripletSelHN(epsilon=0.15),
    paper=TripletSelHN.paper,
    official=TripletSelHN.official,
)


def shn(f, a):
    below = [s for s in a.negatives if s < a.p or (s == a.p and f.variant == "nca")]
    if not below:
        return 0.0 if f.variant == "hinge" else None
    return term(f, max(below), a.p)


add("shn", shn, plain=TripletSHN, nca=TripletSHN.official)


def sct(f, a):
    if not a.negatives:
        return 0.0 if f.variant == "hinge" else None
    n = max(a.negatives)
    if f.variant == "hinge":
        return hinge(n, a.p, f.margin) if n < a.p else n
    if n > a.p or n > f.hard_threshold:
        return f.weight * n
    return term(f, n, a.p) if n < a.p and n < f.hard_threshold else None


add("sct", sct, plain=SCT, nca=lambda: SCT(variant="nca", weight=0.7, hard_threshold=0.4))


def warmup(f, a):
    return triplet(f, a) if f.warming_up else hardest(f, a)


def warmed_up():
    loss_fn = TripletWarmUp(warmup_epochs=2)
    loss_fn.set_epoch(2)
    return loss_fn


add("warmup", warmup, plain=TripletWarmUp, over=warmed_up)


def infonce(f, a):
    return log_sum_exp([s / f.temperature for s in [a.p, *a.negatives]]) - a.p / f.temperature


add("infonce", infonce, plain=InfoNCE, soft=lambda: InfoNCE(temperature=0.5, reduction="sum"))


def siglip(f, a):
    of_negatives = [softplus(s / f.temperature + f.bias) for s in a.negatives]
    return softplus(-(a.p / f.temperature + f.bias)) + sum(of_negatives) if a.negatives else 0.0


add("siglip", siglip, plain=SigLIP, even=lambda: SigLIP(0.25, 0.5, learn=False))


def multi_positive(f, a):
    if not a.negatives:
        return 0.0
    log_sum = log_sum_exp([s / f.temperature for s in [*a.positives, *a.negatives]])
    return sum(log_sum - s / f.temperature for s in a.positives) / len(a.positives)


add(
    "multi_positive",
    multi_positive,
    plain=MultiPositiveInfoNCE,
    soft=lambda: MultiPositiveInfoNCE(temperature=0.5, reduction="sum"),
)


def siglip_multi(f, a):
    of_positives = [softplus(-(s / f.temperature + f.bias)) for s in a.positives]
    return (
        sum(of_positives) + sum(softplus(s / f.temperature + f.bias) for s in a.negatives)
        if a.negatives
        else 0.0
    )


add("siglip_multi", siglip_multi, plain=lambda: MultiPositiveSigLIP(0.25, 0.5, learn=False))
PULLS_POSITIVES_TOGETHER = ("multi_positive", "multi_positive-soft", "siglip_multi")
"""Losses in which pairs of one image are more than not negatives of each other."""


def tal(f, a):
    if not a.negatives:
        return 0.0
    return hinge(f.temperature * log_sum_exp([s / f.temperature for s in a.negatives]), a.p, f.margin)


add("tal", tal, plain=TAL, soft=lambda: TAL.official(margin=0.2, temperature=0.3))


def uto(f, a):
    if not a.negatives:
        return 0.0
    largest = log_sum_exp([0.0] + [(s - f.threshold) / f.temperature for s in a.negatives])
    return f.temperature * largest - math.log(1 + max(a.p, 0.0)) / 2


add("uto", uto, plain=lambda: UTO(temperature=0.2, threshold=0.1))


def distance_weight(f, s):
    """log w, or None out of reach; a distance is imaginary for what is no cosine."""
    far = math.sqrt(max(2 - 2 * s, 0.0))
    if far >= f.farthest:
        return None
    far = max(far, f.nearest)
    return (2 - f.dim) * math.log(far) + (3 - f.dim) / 2 * math.log(1 - far**2 / 4)


def distance(f, a):
    weighted = [(w, s) for s in a.negatives if (w := distance_weight(f, s)) is not None]
    if not weighted:
        return 0.0
    total = log_sum_exp([w for w, _ in weighted])
    return sum(math.exp(w - total) * hinge(s, a.p, f.margin) for w, s in weighted)


add("distance", distance, plain=TripletDistance, low=lambda: TripletDistance.official(dim=16, farthest=1.9))
HELD = ("distance", "distance-low")
"""Losses whose weights are constants to the gradient."""


def powers(coefficients, s):
    return sum(c * s**q for q, c in enumerate(coefficients))


def powers_slope(coefficients, s):
    return sum(c * q * s ** (q - 1) for q, c in enumerate(coefficients) if q)


def ssp(f, a):
    mined = [s for s in a.negatives if s > a.p - f.margin]
    if not mined or a.p >= f.positive_below:
        return 0.0
    falls = not f.one_way or powers_slope(f.positive, a.p) <= 0
    of_positive = max(powers(f.positive, a.p), 0.0) if falls else 0.0
    chosen = mined if f.mining == "average" else [max(mined)]
    rising = [s for s in chosen if not f.one_way or powers_slope(f.negative, s) >= 0]
    return f.weight * (of_positive + sum(max(powers(f.negative, s), 0.0) for s in rising) / len(chosen))


add(
    "ssp",
    ssp,
    plain=SSP,
    official=SSP.official,
    average=lambda: SSP(mining="average"),
    cubic=lambda: SSP.official(mining="average", negative=(0.1, -0.2, 0.3, 0.4)),
)


def log_likely(s):
    return math.log(min(max(s, 1e-6), 1 - 1e-6))


def log_miss(s):
    return math.log(1 - min(max(s, 1e-6), 1 - 1e-6))


def bce_all(f, a):
    return -log_likely(a.p) - sum(map(log_miss, a.negatives)) / a.batch if a.negatives else 0.0


def bce_max(f, a):
    return -log_likely(a.p) - log_miss(max(a.negatives)) if a.negatives else 0.0


add("bce_all", bce_all, plain=BCE)
add("bce_max", bce_max, plain=BCEMax, official=BCEMax.official)


def ncr(f, a):
    return mean_hinge(f, a) if a.negatives and f.warming_up else hardest(f, a)


add(
    "ncr",
    ncr,
    plain=lambda: NCR(warmup_epochs=0),
    warming=lambda: NCR(warmup_epochs=1),
    official=lambda: NCR.official(warmup_epochs=1),
)

add("aoq", hardest, plain=AOQ)
add("meta_spn", hardest, plain=MetaSPN)


STATISTICS["five_hardest"] = Statistic(
    lambda terms: terms.topk(min(5, terms.shape[-1]), dim=-1).values.mean(dim=-1)
)


class MeanOfHardest(AbstractLoss):
    """A loss of another package with a statistic of its own, which says nothing about derivatives."""

    needs = ("five_hardest",)

    def anchor_loss(self, anchors):
        return hinge_of(anchors["five_hardest"], anchors.positive, self.margin)


def per_anchor(case, loss_fn, scores, image_ids=None):
    """The (2, B) values of a case's formula, None for anchors that do not count in a mean."""
    batch = len(scores)
    ids = list(range(batch)) if image_ids is None else [int(i) for i in image_ids]
    losses = []
    for row_of in (lambda i, j: scores[i][j], lambda i, j: scores[j][i]):
        for i in range(batch):
            split = {
                same: [row_of(i, j) for j in range(batch) if (ids[j] == ids[i]) == same]
                for same in (True, False)
            }
            losses.append(
                CASES[case].formula(loss_fn, Anchor(scores[i][i], split[False], split[True], batch))
            )
    return [losses[:batch], losses[batch:]]


@contextmanager
def blocks_of(height):
    """Statistics are computed in blocks of so many rows; None leaves the size as it is."""
    with pytest.MonkeyPatch.context() as patch:
        if height is not None:
            patch.setattr(anchors, "FEW", 0)
            patch.setattr(row_gradients, "SMALL", 0)
            patch.setattr(rows, "BLOCK", 0)
            patch.setattr(rows, "ROWS", height)
        yield


@contextmanager
def plain_torch():
    """Statistics of a matrix by their definition, and gradients by autograd."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "in_plain_torch", lambda scores: True)
        yield


KINDS = ("spread", "collapsed", "trained", "ties", "large")


def make_scores(kind, batch, seed, dtype=torch.float64):
    """A B x B matrix as it is met before, during and after training; "large" is no cosine."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, batch, generator=generator, dtype=torch.float64)
    scores = {
        "spread": 0.3 * noise,
        "collapsed": 0.9 + 0.002 * noise,
        "trained": 0.1 + 0.1 * noise + 0.4 * torch.eye(batch, dtype=torch.float64),
        "ties": (4 * noise).round() / 16,
        "large": 30 * noise - 100,
    }[kind]
    return scores.to(dtype)


def make_embeddings(kind, batch, width, seed, dtype=torch.float64):
    """Two B x d matrices whose products look like `make_scores`; "ties" repeats rows of exact binary fractions."""
    generator = torch.Generator().manual_seed(seed)
    images, texts = torch.randn(2, batch, width, generator=generator, dtype=torch.float64)
    if kind == "collapsed":
        images, texts = 1 + 0.02 * images, 1 + 0.02 * texts
    if kind == "trained":
        texts = images + texts
    if kind == "ties":
        images, texts = (images.round() / 4, texts.round() / 4)
        texts[batch // 2 :] = texts[: batch - batch // 2].clone()
    else:
        images, texts = (
            torch.nn.functional.normalize(images, dim=1),
            torch.nn.functional.normalize(texts, dim=1),
        )
    return images.to(dtype).requires_grad_(), texts.to(dtype).requires_grad_()


def make_ids(batch, seed):
    """Image ids with repeats, not in order."""
    return (
        torch.randint(0, max(1, 2 * batch // 3), (batch,), generator=torch.Generator().manual_seed(seed)) * 7
        - 3
    )
