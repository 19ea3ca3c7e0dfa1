"""Binary cross-entropy of scores that are probabilities: Wang et al., CAMP, ICCV 2019."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import ScoreRange
from selhn.losses.statistics import STATISTICS, AnchorStatistics, PerAnchor, Statistic
from selhn.losses.table import loss

NEAREST = 1e-6
"""Probabilities are clipped this far from 0 and 1, as in CAMP."""


def _log_miss(negatives: Tensor) -> Tensor:
    return -(1 - _likely(negatives)).log().masked_fill(negatives == -torch.inf, 0.0)


# sum -log(1 - s_n), of scores that are probabilities
STATISTICS["log_miss_sum"] = Statistic("sum", _log_miss, alone=True)


@loss("bce_all", "-log s_p - sum_n log(1 - s_n) / B", "Wang et al. (CAMP), ICCV 2019", shift_invariant=False)
class BCE(AbstractLoss):
    """A positive should be likely, and all negatives unlikely.

    Equation of the authors' program without `max_violation`, for anchor V_i of B pairs:

        -log s(V_i, T_i) - (1 / B) sum_{j != i} log(1 - s(V_i, T_j))

    Scores are probabilities, such as the sigmoids of `camp`, `sgr` and `saf`. They are clipped to 1e-6 and
    1 - 1e-6: outside, there is no gradient. An anchor without negatives counts as 0.

    Args:
        reduction: see `AbstractLoss`; the mean over the anchors of both directions is the authors' value.

    References:
        Wang et al., CAMP: Cross-Modal Adaptive Message Passing for Text-Image Retrieval, ICCV 2019.

    Relations:
        `BCEMax` uses only the hardest negative. `SigLIP` takes logits instead of probabilities.

    Example:
        >>> loss = BCE()(model(batch).scores)
    """

    needs: tuple[str, ...] = ("log_miss_sum",)
    made_for = ScoreRange(
        0.0,
        1.0,
        "BCE got scores outside [0, 1]: it takes probabilities, and outside there is no gradient. Pass "
        "torch.sigmoid(logits); for cosines use SigLIP, which learns their scale",
    )

    def __init__(self, reduction: Reduction = "mean"):
        super().__init__(margin=0.0, reduction=reduction)

    @classmethod
    def official(cls, **settings: Any) -> "BCE":
        """As in the authors' program, which takes the mean here, and the sum with `max_violation`."""
        return cls(**settings)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        batch = anchors.num_negatives.shape[-1]
        return self._with_negatives(anchors, anchors["log_miss_sum"] / batch)

    def _with_negatives(self, anchors: AnchorStatistics, of_negatives: PerAnchor) -> PerAnchor:
        of_positive = -_likely(anchors.positive).log()
        return torch.where(anchors.num_negatives > 0, of_positive + of_negatives, 0.0)


@loss("bce_max", "-log s_p - log(1 - max_n s_n)", "Wang et al. (CAMP), ICCV 2019", shift_invariant=False)
class BCEMax(BCE):
    """A positive should be likely, and its hardest negative unlikely.

    Equation of the authors' program with `max_violation`, for anchor V_i:

        -log s(V_i, T_i) - log(1 - max_{j != i} s(V_i, T_j))

    Args:
        reduction: see `AbstractLoss`.

    References:
        Wang et al., CAMP: Cross-Modal Adaptive Message Passing for Text-Image Retrieval, ICCV 2019.

    Relations:
        `TripletHN` compares the two scores with each other; here each has a target of its own.

    Example:
        >>> loss = BCEMax()(model(batch).scores)
    """

    needs = ("hardest",)

    @classmethod
    def official(cls, **settings: Any) -> "BCE":
        return cls(**{"reduction": "sum", **settings})

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return self._with_negatives(anchors, -(1 - _likely(anchors["hardest"])).log())


def _likely(scores: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
    return scores.clamp(NEAREST, 1 - NEAREST)
