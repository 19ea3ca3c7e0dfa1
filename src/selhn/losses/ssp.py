"""The polynomial loss with self-similarity weights: Wei et al., CVPR 2020."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import require_choice, require_number
from selhn.losses.statistics import STATISTICS, AnchorStatistics, Constants, PerAnchor, Statistic
from selhn.losses.table import loss

Mining = Literal["hardest", "average"]


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


def penalty(coefficients: Sequence[float], x: Float[Tensor, "*K"], direction: int) -> Float[Tensor, "*K"]:
    """`[G(x)]+` of a polynomial G. For `direction` 1 it is 0 where G falls, for -1 where G rises."""
    slope = [power * coefficient for power, coefficient in enumerate(coefficients)][1:]
    against = direction * polynomial(slope, x.detach()) < 0
    return polynomial(coefficients, x).relu().masked_fill(against, 0.0)


def _mined_penalty(
    negatives: Tensor, positive: Tensor, margin: float, direction: float, *coefficients: float
) -> Tensor:
    mined = is_mined(negatives, positive, margin)
    # -inf is replaced before the polynomial: its powers would be NaN in the gradient.
    of_each = penalty(coefficients, negatives.masked_fill(~mined, 0.0), int(direction))
    return of_each.masked_fill(~mined, 0.0)


# How many negatives score above s_p - margin, and the sum of their `penalty`.
STATISTICS["mined_count"] = Statistic("sum", lambda n, p, margin: is_mined(n, p, margin).to(n.dtype))
STATISTICS["mined_sum"] = Statistic("sum", _mined_penalty)


@loss(
    "ssp",
    "[G+(s_p)]+ + [G-(max_n s_n)]+ if max_n s_n > s_p - margin else 0",
    "Wei et al., CVPR 2020",
    shift_invariant=False,
)
class SSP(AbstractLoss):
    """A polynomial of the positive and one of its mined negatives, each weighted by its own score.

    Equation, for anchor V_i, with s_p the positive's score and s_n that of the hardest negative:

        [sum_q a_q s_p^q]+ + [sum_q b_q s_n^q]+   if s_n > s_p - margin, else 0

    Args:
        margin: by how much a positive must beat a negative for it not to be mined. It is used nowhere else: a
            mined anchor has a loss until its polynomials are 0.
        positive, negative: the coefficients a and b, the constant first, for cosines. The defaults are the
            authors' program's: 0.2 (s - 1) (s - 2.5), and a parabola that is 0 from 0.10 to 0.35.
        mining: "hardest", or "average" for the mean of the negative polynomials over all mined negatives.
        one_way: count a positive only where its polynomial falls and a negative only where its own rises. The
            authors' program does not, and so raises a mined negative that scores below 0.10.
        positive_below: an anchor whose positive scores this or more is left out.
        weight: what the loss of an anchor is multiplied by.
        reduction: see `AbstractLoss`.

    References:
        Wei et al., Universal Weighting Metric Learning for Cross-Modal Matching, CVPR 2020.

    Relations:
        Mines what `TripletHN` mines. There an active triplet has weight 1; here a positive weighs less the
        better it is, and a negative more the harder it is. It changes when a constant is added to all scores.

    Example:
        >>> loss = SSP()(image_emb @ text_emb.T)
    """

    def __init__(
        self,
        margin: float = 0.2,
        positive: Sequence[float] = (0.5, -0.7, 0.2),
        negative: Sequence[float] = (0.03, -0.4, 0.9),
        mining: Mining = "hardest",
        one_way: bool = True,
        positive_below: float = torch.inf,
        weight: float = 1.0,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        for name, coefficients in (("positive", positive), ("negative", negative)):
            for coefficient in coefficients:
                require_number(f"a coefficient of {name}", coefficient, signed=True)
        self.positive = tuple(positive)
        self.negative = tuple(negative)
        self.mining = require_choice("mining", mining, get_args(Mining))
        self.one_way = one_way
        self.positive_below = require_number("positive_below", positive_below, signed=True, infinite=True)
        self.weight = require_number("weight", weight)

    @classmethod
    def official(cls, **settings: Any) -> "SSP":
        """As in the authors' program: the mean over pairs of both directions' sum, so twice our mean."""
        return cls(**{"one_way": False, "positive_below": 1 - 1e-5, "weight": 2.0, **settings})

    @property
    def needs(self) -> dict[str, Constants]:
        if self.mining == "hardest":
            return {"hardest": ()}
        return {"mined_count": (self.margin,), "mined_sum": (self.margin, int(self.one_way), *self.negative)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        # Official: no condition on the slope, either here or for a positive above 1.
        direction = int(self.one_way)
        if self.mining == "hardest":
            hardest = anchors["hardest"]
            mined = is_mined(hardest, anchors.positive, self.margin)
            of_negative = penalty(self.negative, hardest.masked_fill(~mined, 0.0), direction)
        else:
            count = anchors["mined_count"]
            mined = count != 0
            of_negative = anchors["mined_sum"] / count.clamp(min=1)
        of_positive = penalty(self.positive, anchors.positive, -direction)
        # Official: a positive of 1 is taken for an anchor's score with itself, and the anchor is left out.
        kept = mined & ~(anchors.positive >= self.positive_below)
        return self.weight * torch.where(kept, of_positive + of_negative, 0.0)
