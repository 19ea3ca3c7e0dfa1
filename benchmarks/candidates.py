"""Objectives of our own that have not earned a line of `LOSSES` yet: one question for all of them.

Near collapse the scores of an anchor are a mean, a gap by which the positive is above it, and noise of deviation
sigma around it. With z = gap / sigma, moving all embeddings apart changes, for each unit of sigma,

    an average over the negatives   by -z                       always outwards, from a saddle
    the hardest of n negatives      by -z + sqrt(2 log n)       inwards until the positive beats the maximum of noise
    a log-sum-exp                   by -z + sigma / t           inwards where sigma > t z: it waits at that spread

so that averaging is safe and blunt, mining sharp and at first a trap, and every candidate is a rule for going from the
one to the other: by the spread of the scores, or by what has been learnt. `compare.py --sets own` tries them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from selhn.base.types import Reduction
from selhn.losses import LOSSES, AbstractLoss, AnchorStatistics, LossEntry
from selhn.losses.base import hinge, mean_hinge
from selhn.losses.checks import require_number
from selhn.losses.statistics import Constants


class SoftHardest(AbstractLoss):
    """What the candidates share: a margin, a temperature, and the log-sum-exp of as many negatives as `reference`.

    soft_n = t log( (reference / n) sum_n e^(s_n/t) ), for the number n of an anchor's negatives. With reference = 1 it
    is the log-mean-exp: the mean where scores differ by less than t, the maximum less t log n where by more.
    """

    def __init__(
        self,
        margin: float = 0.2,
        temperature: float = 0.05,
        reference: float = 127,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        require_number("temperature", temperature, above=0)
        require_number("reference", reference, above=0)
        self.temperature = temperature
        self.reference = reference

    @property
    def needs(self) -> dict[str, Constants]:
        """The log-sum-exp of the negatives."""
        return {"log_sum_exp": (self.temperature,)}

    def soft(self, anchors: AnchorStatistics) -> Tensor:
        """`[soft_n - s_p + margin]+`."""
        surplus = (anchors.num_negatives.clamp(min=1).to(anchors.positive) / self.reference).log()
        return hinge(self.temperature * (anchors["log_sum_exp"] - surplus), anchors.positive, self.margin)

    def anchor_loss(self, anchors: AnchorStatistics) -> Tensor:
        """The hinge of the soft maximum: `TAL` whose margin does not change its meaning with the batch."""
        return self.soft(anchors)


class LogMeanExp(SoftHardest):
    """[t log mean_n e^(s_n/t) - s_p + margin]+: an average that turns into a soft maximum as the scores spread."""

    def __init__(self, margin: float = 0.4, temperature: float = 0.05, reduction: Reduction = "mean"):
        super().__init__(margin, temperature, 1, reduction)


class MarginInfoNCE(AbstractLoss):
    """InfoNCE whose positive counts `margin` less (additive margin softmax): it continues where InfoNCE stops."""

    def __init__(self, margin: float = 0.1, temperature: float = 0.05, reduction: Reduction = "mean"):
        super().__init__(margin, reduction)
        require_number("temperature", temperature, above=0)
        self.temperature = temperature

    @property
    def needs(self) -> dict[str, Constants]:
        """The log-sum-exp of the negatives."""
        return {"log_sum_exp": (self.temperature,)}

    def anchor_loss(self, anchors: AnchorStatistics) -> Tensor:
        """log(1 + e^(lse_n - (s_p - margin) / t))."""
        return -logsigmoid((anchors.positive - self.margin) / self.temperature - anchors["log_sum_exp"])


class SelectSoft(SoftHardest):
    """SelHN with a soft maximum in its mining branch; `width` > 0 makes the switch a sigmoid of delta_s."""

    def __init__(
        self,
        margin: float = 0.2,
        temperature: float = 0.05,
        epsilon: float = 0.01,
        width: float = 0.0,
        reference: float = 127,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, temperature, reference, reduction)
        self.epsilon = epsilon
        self.width = width

    @property
    def needs(self) -> dict[str, Constants]:
        """The hardest negative decides; the other two are the branches."""
        return {"hardest": (), "hinge_sum": (self.margin,), **super().needs}

    def anchor_loss(self, anchors: AnchorStatistics) -> Tensor:
        """The soft maximum where delta_s is above epsilon, the average below."""
        beyond = (anchors["hardest"] - anchors.positive).detach().abs() - self.epsilon
        soft = (beyond / self.width).sigmoid() if self.width else (beyond > 0).to(beyond)
        return soft * self.soft(anchors) + (1 - soft) * mean_hinge(anchors, "negatives")


class Earned(SoftHardest):
    """Mine as much as has been learnt: a mining + (1 - a) average, a = share of anchors whose positive ranks first.

    While the positive is lost in noise, a is about 1 / B and the average opens the scores; mining comes in as it
    becomes safe. There is no scale to choose: a does not change when all scores are multiplied, so that neither dropout
    nor a shared mean in the features can make it mine too early. `temperature` 0 mines the hardest negative alone.
    """

    def __init__(
        self,
        margin: float = 0.2,
        temperature: float = 0.0,
        power: float = 1.0,
        reference: float = 127,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, temperature or 1.0, reference, reduction)
        self.hard = temperature == 0
        self.power = power

    @property
    def needs(self) -> dict[str, Constants]:
        """The hardest negative, the sum of hinges, and the log-sum-exp where the maximum is soft."""
        mean = {"hardest": (), "hinge_sum": (self.margin,)}
        return mean if self.hard else {**mean, **super().needs}

    def anchor_loss(self, anchors: AnchorStatistics) -> Tensor:
        """Both branches, weighed once per direction."""
        first = (anchors.positive > anchors["hardest"]).to(anchors.positive)
        earned = first.mean(dim=-1, keepdim=True) ** self.power
        mined = hinge(anchors["hardest"], anchors.positive, self.margin) if self.hard else self.soft(anchors)
        return earned * mined + (1 - earned) * mean_hinge(anchors, "negatives")


@dataclass(frozen=True)
class Rows:
    """The scores of every anchor, (2, B, B); its negatives, -inf where a pair is none; their mean and deviation."""

    scores: Tensor
    negatives: Tensor
    mean: Tensor
    deviation: Tensor


class FromRows(AbstractLoss):
    """A candidate that looks at the spread of an anchor's negatives, which is not a statistic of the kernels yet."""

    needs = ()

    def anchor_loss(self, anchors: AnchorStatistics) -> Tensor:
        """The loss of every anchor from its row."""
        return self.row_loss(anchors.given, anchors.positive, anchors.num_negatives)

    def row_loss(self, rows: Rows, positive: Tensor, count: Tensor) -> Tensor:
        """The loss of every anchor from its negatives, its positive and their number."""
        raise NotImplementedError

    def from_embeddings(self, image_emb: Tensor, text_emb: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """There is no way around the matrix yet."""
        raise ValueError(f"{type(self).__name__} is a candidate and needs the scores: call it with V @ T'")

    def statistics(
        self, scores: Tensor, image_ids: Tensor | Sequence[int] | None = None, **named: Any
    ) -> AnchorStatistics:
        """Those of `AbstractLoss`, and the rows."""
        anchors = super().statistics(scores, image_ids, **named)
        wide = scores.to(anchors.positive.dtype)
        everyone = torch.arange(len(wide), device=wide.device)
        ids = everyone if image_ids is None else torch.as_tensor(image_ids, device=wide.device)
        same = ids[:, None] == ids
        both = torch.stack([wide, wide.mT])
        count = anchors.num_negatives.clamp(min=1)
        mean = both.masked_fill(same, 0.0).sum(-1) / count
        apart = (both - mean[..., None]).detach().masked_fill(same, 0.0)
        rows = Rows(both, both.masked_fill(same, -torch.inf), mean, (apart.square().sum(-1) / count).sqrt())
        return replace(anchors, given=rows)


SOFTEST = 10.0
"""A temperature at which cosines are averaged, to all purposes, and float32 still distinguishes them."""


class OwnTemperature(FromRows):
    """`SoftHardest` whose temperature, without gradient, follows the scores.

    `rule` is what t is, never below `temperature` and at most `SOFTEST`:
        spread    c sigma of the anchor's negatives: always equally soft, in any scale of the scores
        opening   `temperature` + c max(0, 1 - delta_s / 0.1): soft until the anchor is separated
        safe      c sigma^2 / gap over the whole batch: at c = 1 moving apart neither raises nor lowers the loss, which
                  is sigma = t z above; c = 2 leaves half of an average's pull outwards
        earned    `temperature`^a c^(1 - a), a = share of anchors whose positive ranks first: from c down to
                  `temperature` as much as has been learnt, in any scale of the scores
    """

    def __init__(
        self,
        rule: str = "safe",
        c: float = 1.0,
        margin: float = 0.2,
        temperature: float = 0.05,
        reference: float = 127,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        if rule not in ("spread", "opening", "safe", "earned"):
            raise ValueError(f"rule must be spread, opening, safe or earned, got {rule!r}")
        self.rule, self.c, self.temperature, self.reference = rule, c, temperature, reference

    def row_loss(self, rows: Rows, positive: Tensor, count: Tensor) -> Tensor:
        """The hinge of the soft maximum at the anchor's temperature, which is never met while that is high."""
        t = self.temperatures(rows, positive.detach())
        surplus = (count.clamp(min=1).to(t) / self.reference).log()
        soft = t * ((rows.negatives / t[..., None]).logsumexp(-1) - surplus)
        return hinge(soft, positive, self.margin)

    def temperatures(self, rows: Rows, positive: Tensor) -> Tensor:
        """One temperature an anchor, (2, B)."""
        hardest = rows.negatives.detach().amax(-1)
        if self.rule == "spread":
            t = self.c * rows.deviation
        elif self.rule == "earned":
            first = (positive > hardest).to(positive).mean(-1, keepdim=True)
            t = (self.temperature**first * self.c ** (1 - first)).expand_as(rows.mean)
        elif self.rule == "opening":
            t = self.temperature + self.c * (1 - (hardest - positive).abs() / 0.1).clamp(min=0)
        else:
            gap = (positive - rows.mean.detach()).mean(-1, keepdim=True)
            noise = rows.deviation.square().mean(-1, keepdim=True)
            # No gap, or one the wrong way round: nothing is learnt yet, and the average is what is safe.
            t = torch.where(gap > 0, self.c * noise / gap.clamp(min=1e-12), SOFTEST).expand_as(rows.mean)
        return t.clamp(self.temperature, SOFTEST)


class Graded(FromRows):
    """The hardest of k random negatives, on average, where k is what the positive can beat already: k = e^(z^2/2).

    The maximum of k scores of noise is at most sqrt(2 log k) deviations above their mean, so that at z = gap / sigma
    of the batch this k is the most that does not pull the scores together. It grows from 1, an average, to `most`.
    Ranks decide and not differences: the same in any scale of the scores, and a false negative counts once in k.
    """

    def __init__(self, most: float = 32, margin: float = 0.2, reduction: Reduction = "mean"):
        super().__init__(margin, reduction)
        require_number("most", most, above=0)
        self.most = most

    def row_loss(self, rows: Rows, positive: Tensor, count: Tensor) -> Tensor:
        """The hinges by rank, weighed by how often that rank is the hardest of k drawn with replacement."""
        gap = (positive - rows.mean).detach().mean(-1, keepdim=True)
        noise = rows.deviation.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)
        k = (0.5 * (gap / noise).clamp(min=0, max=6).square()).exp().clamp(1.0, self.most)[..., None]
        n = count.clamp(min=1).to(positive)[..., None]
        below = ((n - torch.arange(rows.negatives.shape[-1] + 1, device=n.device)) / n).clamp(min=0) ** k
        hinges = (rows.negatives.sort(-1, descending=True).values - positive[..., None] + self.margin).relu()
        return ((below[..., :-1] - below[..., 1:]) * hinges).sum(-1)


class Related(FromRows):
    """`MarginInfoNCE` that asks less of a negative the more it is like the positive, by what the batch says of both.

    A text that scores like the positive text with all images of the batch (correlation rho of their columns) describes
    much the same; six thousand photographs of dogs are full of such false negatives. Its score counts `discount` rho
    less. Near collapse profiles are noise, rho is about 0, and this is `MarginInfoNCE`.
    """

    def __init__(
        self,
        margin: float = 0.1,
        temperature: float = 0.05,
        discount: float = 0.1,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        require_number("temperature", temperature, above=0)
        require_number("discount", discount)
        self.temperature, self.discount = temperature, discount

    def row_loss(self, rows: Rows, positive: Tensor, count: Tensor) -> Tensor:
        """log(1 + sum_n e^((s_n - discount rho_n + margin - s_p) / t))."""
        profiles = rows.scores.detach()
        profiles = torch.nn.functional.normalize(profiles - profiles.mean(-1, keepdim=True), dim=-1)
        # An image's negatives are texts, and their profiles the rows of the other direction.
        alike = (profiles @ profiles.mT).flip(0).clamp(min=0)
        sums = ((rows.negatives - self.discount * alike) / self.temperature).logsumexp(-1)
        return -logsigmoid((positive - self.margin) / self.temperature - sums)


class SelectBySpread(FromRows):
    """SelHN that mines by another sign than delta_s: the deviation of the negatives, or the positive's z-score.

    `by` "deviation" mines where sigma > `threshold`: opened embeddings. "z" mines where (s_p - mean) / sigma >
    `threshold`: there the positive is out of the noise, whose maximum over n negatives has z = sqrt(2 log n).
    """

    def __init__(
        self, by: str = "z", threshold: float = 2.0, margin: float = 0.2, reduction: Reduction = "mean"
    ):
        super().__init__(margin, reduction)
        if by not in ("z", "deviation"):
            raise ValueError(f"by must be z or deviation, got {by!r}")
        self.by, self.threshold = by, threshold

    def row_loss(self, rows: Rows, positive: Tensor, count: Tensor) -> Tensor:
        """The hinge of the hardest negative or the mean hinge."""
        sign = rows.deviation
        if self.by == "z":
            sign = (positive - rows.mean).detach() / rows.deviation.clamp(min=1e-12)
        hardest = hinge(rows.negatives.max(-1).values, positive, self.margin)
        average = (rows.negatives - positive[..., None] + self.margin).relu().sum(-1) / count.clamp(min=1)
        return torch.where(sign > self.threshold, hardest, average)


CANDIDATES: Mapping[str, LossEntry] = {
    name: LossEntry(loss, equation, "this project", shift_invariant=True)
    for name, loss, equation in (
        ("lme", LogMeanExp, "[t log mean_n e^(s_n/t) - s_p + margin]+"),
        ("tal_n", SoftHardest, "[t log (n0/n) sum_n e^(s_n/t) - s_p + margin]+"),
        ("select_soft", SelectSoft, "tal_n if delta_s > epsilon else mean_n [s_n - s_p + margin]+"),
        (
            "earned",
            Earned,
            "a hn + (1 - a) mean_n [s_n - s_p + margin]+, a = share of positives that rank first",
        ),
        ("own_temperature", OwnTemperature, "tal_n with t from the scores"),
        ("graded", Graded, "mean [hardest of k random s_n - s_p + margin]+, k = e^(z^2/2)"),
        (
            "select_spread",
            SelectBySpread,
            "hn if the positive is out of the noise else mean_n [s_n - s_p + margin]+",
        ),
        (
            "related",
            Related,
            "margin_infonce with s_n - discount rho(n, p), how alike the batch finds n and p",
        ),
        (
            "margin_infonce",
            MarginInfoNCE,
            "-log(e^((s_p - margin)/t) / (e^((s_p - margin)/t) + sum_n e^(s_n/t)))",
        ),
    )
}
"""The table of candidates, in the form of `LOSSES`."""

SCREEN: tuple[str, ...] = (
    *(f"lme margin={m} temperature={t}" for m in (0.2, 0.3, 0.4) for t in (0.02, 0.05, 0.1)),
    "tal margin=0.2 temperature=0.05",
    "tal_n margin=0.2 temperature=0.05",
    "select_soft temperature=0.05",
    "select_soft temperature=0.02",
    "select_soft temperature=0.05 epsilon=0.05 width=0.02",
    "earned",
    "earned power=0.5",
    "earned temperature=0.02",
    "earned temperature=0.05",
    "own_temperature rule=spread c=0.5 temperature=0.02",
    "own_temperature rule=opening c=0.2",
    "own_temperature rule=safe c=1.0",
    "own_temperature rule=safe c=1.0 temperature=0.02",
    "own_temperature rule=earned c=0.2",
    "own_temperature rule=earned c=0.2 temperature=0.03",
    *(f"graded most={most}" for most in (8, 32, 127)),
    "select_spread by=z threshold=2.0",
    "select_spread by=deviation threshold=0.05",
    "infonce temperature=0.05",
    "margin_infonce margin=0.1",
    "margin_infonce margin=0.2",
    "related margin=0.1 discount=0.1",
    "related margin=0.2 discount=0.2",
    "related margin=0.2 discount=0.1",
    "selhn",
)
"""What is tried: a loss and its settings, with the public losses it has to beat."""


def enter() -> None:
    """Put the candidates into `LOSSES` for as long as this process lasts, so that a configuration can name them."""
    LOSSES.update(CANDIDATES)
