"""What losses of one negative per anchor share: the hinge, or the softmax form of Xuan et al., ECCV 2020."""

import math
from typing import get_args

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from selhn.base.types import Reduction, Variant
from selhn.kernels import AnchorStatistics, PerAnchor
from selhn.losses.base import AbstractLoss, hinge
from selhn.losses.checks import require_choice, require_number


class VariantLoss(AbstractLoss):
    """The triplet term of a positive and the one negative that the loss `needs`.

    Args:
        margin, reduction: see `AbstractLoss`.
        variant: "hinge", or "nca" for `-log sigmoid((s_p - s_n) / temperature)`, whose mean leaves out
            anchors without such a negative.
        temperature: of "nca" only.
    """

    def __init__(
        self,
        margin: float = 0.2,
        variant: Variant = "hinge",
        temperature: float = 0.1,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        self.variant = require_choice("variant", variant, get_args(Variant))
        self.temperature = require_number("temperature", temperature, above=0)

    def triplet(self, negative: PerAnchor, positive: Float[Tensor, "*K 1 B"]) -> PerAnchor:
        """The term of one negative; 0 without a gradient if it is at -inf."""
        if self.variant == "nca":
            # Not softplus: torch's turns into the identity above 20, which is off by 2e-9 there.
            return -logsigmoid((positive - negative) / self.temperature)
        return hinge(negative, positive, self.margin)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return self.triplet(anchors[self.needs[0]], anchors.positive)

    def plateau(self, batch: int) -> float | None:
        """The margin; in the "nca" form log 2."""
        return math.log(2) if self.variant == "nca" else self.margin

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """In the "nca" form, the anchors that have such a negative."""
        return None if self.variant == "hinge" else anchors[self.needs[0]].isfinite()
