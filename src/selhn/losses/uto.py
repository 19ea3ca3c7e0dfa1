"""The unified training objective of USER: Zhang et al., IEEE Transactions on Image Processing 2024."""

from typing import Any

import torch
from torch.nn.functional import logsigmoid

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import require_number
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss


@loss(
    "uto",
    "t log(1 + sum_n e^((s_n - threshold)/t)) - log(1 + [s_p]+)/2",
    "Zhang et al. (USER), TIP 2024",
    shift_invariant=False,
)
class UTO(AbstractLoss):
    """A smooth maximum of the negatives above a threshold, and the logarithm of the positive.

    Equation, for anchor V_i:

        temperature log( 1 + sum_{j != i} e^((s(V_i, T_j) - threshold) / temperature) ) - log(1 + [s(V_i, T_i)]+) / 2

    Args:
        temperature: how soft the maximum is; 1 / mu in the paper, with mu = 90.
        threshold: negatives that score well below it have no gradient; the paper's gamma.
        reduction: see `AbstractLoss`.

    References:
        Zhang et al., USER: Unified Semantic Enhancement with Momentum Contrast for Image-Text Retrieval, IEEE
        Transactions on Image Processing 2024. Their queues of negatives from earlier batches are not
        implemented.

    Relations:
        `TAL` compares the same smooth maximum with the positive and stops at a margin. Here the two are
        separate: negatives are lowered to a fixed threshold, and a positive rises however far below it they
        are. The authors' program takes the mean over pairs of both directions' sum: twice this mean. It may
        be below 0.

    Example:
        >>> loss = UTO()(image_emb @ text_emb.T)
    """

    def __init__(self, temperature: float = 1 / 90, threshold: float = 0.5, reduction: Reduction = "mean"):
        super().__init__(margin=0.0, reduction=reduction)
        self.temperature = require_number("temperature", temperature, above=0)
        self.threshold = require_number("threshold", threshold, signed=True)

    @classmethod
    def paper(cls, **settings: Any) -> "UTO":
        """The paper's settings, which are the defaults; its value is twice this one."""
        return cls(**settings)

    @property
    def needs(self) -> dict[str, Constants]:
        return {"log_sum_exp": (self.temperature,)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        # Official: a further 1 in the sum stands for the pair itself, at a score of 0: e^-45 by default.
        above = anchors["log_sum_exp"] - self.threshold / self.temperature
        of_negatives = -self.temperature * logsigmoid(-above)
        return torch.where(anchors.num_negatives > 0, of_negatives - anchors.positive.relu().log1p() / 2, 0.0)
