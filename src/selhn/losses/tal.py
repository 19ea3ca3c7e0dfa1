"""The triplet alignment loss: Qin et al., RDE, CVPR 2024."""

import math
from typing import Any

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss, hinge
from selhn.losses.checks import require_number
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss


@loss("tal", "[t log sum_n e^(s_n/t) - s_p + margin]+", "Qin et al. (RDE), CVPR 2024")
class TAL(AbstractLoss):
    """The hinge of a smooth maximum of all negatives.

    Equation, for anchor V_i:

        [temperature * log sum_{j != i} e^(s(V_i, T_j) / temperature) - s(V_i, T_i) + margin]+

    Args:
        margin, reduction: see `AbstractLoss`; the authors' margin is 0.1.
        temperature: how soft the maximum is; harder negatives have larger shares of the gradient.

    References:
        Qin et al., Noisy-Correspondence Learning for Text-to-Image Person Re-identification, CVPR 2024.

    Relations:
        Never below `TripletHN` of the same margin, and at most temperature * log(B - 1) above it; equal to it
        as the temperature goes to 0. `InfoNCE` has the same sum in a softmax and no margin at which it stops.
        The authors' data has several pairs of one identity in a batch, weighted as further positives; here
        pairs of one image are simply not negatives of each other.

    Example:
        >>> loss = TAL()(image_emb @ text_emb.T)
    """

    def __init__(self, margin: float = 0.2, temperature: float = 0.02, reduction: Reduction = "mean"):
        super().__init__(margin, reduction)
        self.temperature = require_number("temperature", temperature, above=0)

    @classmethod
    def official(cls, **settings: Any) -> "TAL":
        """As in the authors' program for pairs of different images: a margin of 0.1, summed over both directions."""
        return cls.paper(**{"margin": 0.1, **settings})

    @property
    def needs(self) -> dict[str, Constants]:
        return {"log_sum_exp": (self.temperature,)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return hinge(self.temperature * anchors["log_sum_exp"], anchors.positive, self.margin)

    def plateau(self, batch: int) -> float | None:
        """The margin plus temperature * log(B - 1): the smooth maximum of B - 1 equal scores."""
        return self.margin + self.temperature * math.log(batch - 1) if batch > 1 else 0.0
