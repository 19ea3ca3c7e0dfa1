"""The polynomial loss with self-similarity weights: Wei et al., CVPR 2020."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from selhn.base.types import Reduction
from selhn.kernels import AnchorStatistics, PerAnchor, Terms
from selhn.kernels.statistics import is_mined, penalty
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import require_choice, require_number

Mining = Literal["hardest", "average"]


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
    def needs(self) -> tuple[str, ...]:
        return ("hardest",) if self.mining == "hardest" else ("mined_count", "mined_sum")

    def terms(self, given: Any = None) -> Terms:
        return Terms(margin=self.margin, polynomial=self.negative, one_way=self.one_way)

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
