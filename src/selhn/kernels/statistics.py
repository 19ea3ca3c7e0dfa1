"""The basis of every loss: a few numbers per anchor, each a maximum or a sum over the anchor's negatives.

Image i is an anchor among the texts (row i of `scores`), text i among the images (column i). Both directions
are reduced by the same function of "rows", so a loss is written once and for both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

PerAnchor: TypeAlias = Float[Tensor, "*K 2 B"]
"""One number per anchor of a batch: image anchors, then text anchors."""


@dataclass(frozen=True)
class Terms:
    """What the statistics depend on besides the scores."""

    margin: float = 0.0
    temperature: float = 1.0
    bias: float = 0.0
    polynomial: tuple[float, ...] = (0.0,)
    """Coefficients of the `penalty` of a mined negative, the constant first."""
    one_way: bool = True
    """Whether that penalty counts only where it rises."""
    distances: tuple[float, float, float] = (2.0, 1.0, -1.0)
    """For `log_weight`: the dimension, the cosine above which weights are equal, and below which 0."""
    mask_same_image: bool = True
    """Whether other pairs of an anchor's image are left out of its candidates."""
    scale: Float[Tensor, ""] | None = None
    shift: Float[Tensor, ""] | None = None
    """Learnt: statistics are of `scale * scores + shift`, with gradients for both."""
    added: Float[Tensor, "*K B _"] | None = None
    """Added to the scores of the negatives, (B, B) or one number per image; only for a matrix of scores."""


@dataclass(frozen=True)
class AnchorStatistics:
    """Statistics of the 2B anchors of a batch: `anchors["hardest"]`.

    Axis -2 is (image anchors, text anchors). Only those in `values` were computed; a loss names the ones it
    needs. An anchor without a candidate has -inf, and a sum of 0. If negatives tie, the one with the lowest
    index is taken and receives all of the gradient. `given` is what a loss was handed beyond the scores;
    `raw` has the statistics of the unchanged scores, if they were asked for.
    """

    positive: Float[Tensor, "*K 1 B"]
    num_negatives: Int[Tensor, " B"]
    values: Mapping[str, PerAnchor]
    given: Any = None
    raw: "AnchorStatistics | None" = None

    def __getitem__(self, name: str) -> PerAnchor:
        return self.values[name]


Rows = Callable[[Tensor, Tensor, Terms], Tensor]
"""A function of negatives (A, C), of one number per anchor (A, 1), and of the terms."""


@dataclass(frozen=True)
class Statistic:
    """One number per anchor, a reduction of one term per negative; all but its Triton kernel is here.

    Args:
        reduction: how the terms become one number.
        term: of every negative, from its score and that of the positive; a negative at -inf must add nothing.
        derivative: of a sum or log-sum-exp by every score, divided by `steepness`, so that it is in [0, 1];
            from the scores and the `level` of their anchor. None if the statistic has no gradient.
        steepness: the largest derivative by a score.
        has_positive: whether the derivative by the positive is minus the sum of those by the negatives.
        fused: whether the Triton kernels have it; a loss that needs another one is served by torch.
    """

    reduction: Literal["max", "sum", "logsumexp"]
    term: Rows
    derivative: Rows | None = None
    steepness: Callable[[Terms], float] = lambda terms: 1.0
    has_positive: bool = False
    fused: bool = True

    @property
    def empty(self) -> float:
        """The value over no negatives."""
        return 0.0 if self.reduction == "sum" else -torch.inf

    def of_rows(
        self, negatives: Float[Tensor, "*K A C"], positive: Float[Tensor, "*K A"], terms: Terms
    ) -> Float[Tensor, "*K A"]:
        """The value of A anchors over C candidates; `negatives` is -inf at pairs that are not negatives."""
        return self.reduce(self.term(negatives, positive.unsqueeze(-1), terms), dim=-1)

    def reduce(self, values: Tensor, dim: int) -> Tensor:
        """One value from the terms along an axis, or from the values over parts of the negatives."""
        if self.reduction == "max":
            return values.max(dim=dim).values
        return values.sum(dim=dim) if self.reduction == "sum" else values.logsumexp(dim=dim)

    def merge(self, first: Tensor, second: Tensor) -> Tensor:
        """The value of a sum or log-sum-exp over all candidates, from those over two parts of them."""
        return first + second if self.reduction == "sum" else torch.logaddexp(first, second)

    def level(self, positive: Float[Tensor, " B"], value: Float[Tensor, "2 B"]) -> Float[Tensor, "2 B *L"]:
        """What `derivative` needs from an anchor: its positive, the value of a log-sum-exp, or both."""
        if self.reduction == "sum":
            return positive.expand(2, -1)
        # Without negatives there is no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) would be NaN.
        value = value.masked_fill(value == -torch.inf, torch.inf)
        return torch.stack([positive.expand(2, -1), value], dim=-1) if self.has_positive else value


def is_mined(
    negatives: Float[Tensor, "*#K"], positive: Float[Tensor, "*#K"], margin: float
) -> Bool[Tensor, "*#K"]:
    """Whether `s_n > s_p - margin`, written so that a NaN is mined and shows."""
    return ~(negatives <= positive - margin)


def polynomial(coefficients: Sequence[float], x: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
    """`sum_q c_q x^q`."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def slope(coefficients: Sequence[float]) -> tuple[float, ...]:
    """The coefficients of a polynomial's derivative."""
    return tuple(power * coefficient for power, coefficient in enumerate(coefficients))[1:]


def penalty(coefficients: Sequence[float], x: Float[Tensor, "*K"], direction: int) -> Float[Tensor, "*K"]:
    """`[G(x)]+` of a polynomial G. For `direction` 1 it is 0 where G falls, for -1 where G rises."""
    against = direction * polynomial(slope(coefficients), x.detach()) < 0
    return polynomial(coefficients, x).relu().masked_fill(against, 0.0)


def _mined_penalty(negatives: Tensor, positive: Tensor, terms: Terms) -> Tensor:
    mined = is_mined(negatives, positive, terms.margin)
    # -inf is replaced before the polynomial: its powers would be NaN in the gradient.
    of_each = penalty(terms.polynomial, negatives.masked_fill(~mined, 0.0), int(terms.one_way))
    return of_each.masked_fill(~mined, 0.0)


def _mined_derivative(negatives: Tensor, positive: Tensor, terms: Terms) -> Tensor:
    """Its bounds hold for cosines; a polynomial that may also fall has derivatives below 0 there."""
    mined = is_mined(negatives, positive, terms.margin)
    scores = negatives.masked_fill(~mined, 0.0)
    counts = mined & (penalty(terms.polynomial, scores, int(terms.one_way)) != 0)
    return (polynomial(slope(terms.polynomial), scores) / _mined_steepness(terms)).masked_fill(~counts, 0.0)


def _mined_steepness(terms: Terms) -> float:
    return sum(map(abs, slope(terms.polynomial))) or 1.0


NEAREST = 1e-6
"""Probabilities are clipped this far from 0 and 1, as in CAMP."""


def _log_miss(negatives: Tensor, positive: Tensor, terms: Terms) -> Tensor:
    each = -(1 - negatives.clamp(NEAREST, 1 - NEAREST)).log()
    return each.masked_fill(negatives == -torch.inf, 0.0)


def _log_miss_derivative(negatives: Tensor, positive: Tensor, terms: Terms) -> Tensor:
    outside = (negatives < NEAREST) | (negatives > 1 - NEAREST)
    return (NEAREST / (1 - negatives)).masked_fill(outside, 0.0)


def log_weight(negatives: Tensor, terms: Terms) -> Tensor:
    """-log of how often two random unit vectors have this cosine: in many dimensions nearly all have one of about 0."""
    dim, nearest, farthest = terms.distances
    cosine = negatives.detach().clamp(farthest, nearest)
    weight = (1 - dim / 2) * (1 - cosine).log() + (1.5 - dim / 2) * (1 + cosine).log()
    return weight.masked_fill(negatives <= farthest, -torch.inf)


def _log_weighted_hinge(negatives: Tensor, positive: Tensor, terms: Terms) -> Tensor:
    violation = negatives - positive + terms.margin
    none = (violation <= 0) | (negatives <= terms.distances[2])
    return (log_weight(negatives, terms) + violation.masked_fill(none, 1.0).log()).masked_fill(
        none, -torch.inf
    )


SMALLEST_HINGE = 1e-3
"""Half-precision gradients of a weighted hinge are exact from here on."""


def _weighted_hinge_derivative(negatives: Tensor, level: Tensor, terms: Terms) -> Tensor:
    positive, value = level.unbind(-1)
    share = SMALLEST_HINGE * (log_weight(negatives, terms) - value).exp()
    return share.masked_fill(negatives - positive + terms.margin <= 0, 0.0)


# n: scores of the negatives, p: of the positive, t: the terms. Comparisons are written so that a NaN stays in
# and shows in the loss, rather than being dropped by a comparison that is always false.
STATISTICS: Mapping[str, Statistic] = {
    # The score of the hardest negative: of all, of those strictly below the positive, or not above it.
    "hardest": Statistic("max", lambda n, p, t: n),
    "hardest_below": Statistic("max", lambda n, p, t: n.masked_fill(n >= p, -torch.inf)),
    "hardest_up_to": Statistic("max", lambda n, p, t: n.masked_fill(n > p, -torch.inf)),
    # sum [s_n - s_p + margin]+. relu, not clamp: its gradient is 0 where the hinge is exactly 0.
    "hinge_sum": Statistic(
        "sum",
        term=lambda n, p, t: (n - p + t.margin).relu(),
        derivative=lambda n, p, t: (n - p + t.margin > 0).to(n.dtype),
        has_positive=True,
    ),
    # log sum exp(s_n / temperature)
    "log_sum_exp": Statistic(
        "logsumexp",
        term=lambda n, p, t: n / t.temperature,
        derivative=lambda n, level, t: (n / t.temperature - level).exp(),
        steepness=lambda t: 1 / t.temperature,
    ),
    # sum log(1 + exp(s_n / temperature + bias)). Not softplus: torch's turns into the identity above 20.
    "softplus_sum": Statistic(
        "sum",
        term=lambda n, p, t: -logsigmoid(-(n / t.temperature + t.bias)),
        derivative=lambda n, p, t: (n / t.temperature + t.bias).sigmoid(),
        steepness=lambda t: 1 / t.temperature,
    ),
    # sum -log(1 - s_n), of scores that are probabilities
    "log_miss_sum": Statistic("sum", _log_miss, _log_miss_derivative, lambda t: 1 / NEAREST, fused=False),
    # How many negatives score above s_p - margin, without a gradient, and the sum of their `penalty`.
    "mined_count": Statistic("sum", lambda n, p, t: is_mined(n, p, t.margin).to(n.dtype), fused=False),
    "mined_sum": Statistic("sum", _mined_penalty, _mined_derivative, _mined_steepness, fused=False),
    # log sum w_n, without a gradient, and log sum w_n [s_n - s_p + margin]+, in which w_n has none
    "log_weight": Statistic("logsumexp", lambda n, p, t: log_weight(n, t), fused=False),
    "log_weighted_hinge": Statistic(
        "logsumexp",
        term=_log_weighted_hinge,
        derivative=_weighted_hinge_derivative,
        steepness=lambda t: 1 / SMALLEST_HINGE,
        has_positive=True,
        fused=False,
    ),
}
"""All statistics over negatives. One is over positives: "positive_mean", the mean score over all pairs of the
anchor's image, its own included."""

MAXIMA = frozenset(name for name, statistic in STATISTICS.items() if statistic.reduction == "max")


def label_images(
    image_ids: Int[Tensor, " B"] | None, batch: int, device: torch.device
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """A number below B per pair, equal for pairs of one image; and how many pairs show another image."""
    if image_ids is None:
        return torch.arange(batch, dtype=torch.int32, device=device), torch.full(
            (batch,), batch - 1, device=device
        )
    # Where its id stands among the sorted ids: unlike `unique`, this never waits for the device.
    image_ids = image_ids.contiguous()
    in_order = image_ids.sort().values
    labels = torch.searchsorted(in_order, image_ids, out_int32=True)
    return labels, batch - torch.searchsorted(in_order, image_ids, right=True) + labels


def dense_statistics(
    scores: Float[Tensor, "*K B B"],
    image_ids: Int[Tensor, " B"] | None,
    needs: tuple[str, ...],
    terms: Terms,
    also: tuple[str, ...] = (),
) -> AnchorStatistics:
    """Statistics of a score matrix, in plain differentiable torch.

    `also` names maxima over the unchanged scores of all negatives, to be found in `raw`.
    """
    batch = scores.shape[-1]
    ids = torch.arange(batch, device=scores.device) if image_ids is None else image_ids
    same_image = ids[:, None] == ids
    prepared = scores if terms.scale is None else scores * terms.scale
    prepared = prepared if terms.shift is None else prepared + terms.shift
    masked = same_image
    if not terms.mask_same_image:
        masked = torch.eye(batch, dtype=torch.bool, device=scores.device)
    negatives = prepared.masked_fill(masked, -torch.inf)
    if terms.added is not None:
        negatives = negatives + terms.added.to(negatives)
    shared = prepared is scores and terms.added is None and terms.mask_same_image
    of_negatives = [name for name in needs if name != "positive_mean"]
    if shared:
        of_negatives += [name for name in also if name not in needs]
    positive = prepared.diagonal(dim1=-2, dim2=-1)
    values = {}
    for name in of_negatives:
        of_rows, both = STATISTICS[name].of_rows, (negatives, negatives.mT)
        values[name] = torch.stack([of_rows(rows, positive, terms) for rows in both], dim=-2)
    if "positive_mean" in needs:
        positives = prepared.masked_fill(~same_image, 0.0)
        sums = torch.stack([positives.sum(dim=-1), positives.sum(dim=-2)], dim=-2)
        values["positive_mean"] = sums / same_image.sum(dim=-1)
    anchors = AnchorStatistics(positive.unsqueeze(-2), (~same_image).sum(dim=-1), values)
    if not also:
        return anchors
    raw = anchors if shared else dense_statistics(scores.detach(), image_ids, also, Terms())
    return replace(anchors, raw=raw)
