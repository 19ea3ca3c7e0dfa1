"""The triplet loss on semi-hard negatives: Schroff et al., FaceNet, CVPR 2015, as the SelHN paper states it."""

import math
from typing import Any, get_args

from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.types import Reduction, Variant
from selhn.kernels import AnchorStatistics, Statistic
from selhn.losses.base import AbstractLoss, hinge, require_choice, require_number, softmax_triplet


class TripletSHN(AbstractLoss):
    """T-SHN: the hinge of the hardest negative that scores below the positive.

    Equations 13 and 14 of the SelHN paper, for anchor V_i:
    [max {s(V_i, T_j) : s(V_i, T_j) < s(V_i, T_i)} - s(V_i, T_i) + margin]+, and 0 where no negative is below.

    Args:
        margin, reduction: see `AbstractLoss`.
        variant: "hinge", or "nca" for `-log sigmoid((s_p - s_n) / temperature)`, whose mean leaves out anchors without
            such a negative and in which a negative equal to the positive may be taken.
        temperature: of "nca" only.

    References:
        Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.
        The "nca" form: Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        FaceNet samples among the negatives inside the margin; this takes the hardest of them. `TripletHN` without
        the condition is the same loss on all negatives.

    Example:
        >>> loss = TripletSHN()(image_emb @ text_emb.T)
    """

    def __init__(
        self,
        margin: float = 0.2,
        variant: Variant = "hinge",
        temperature: float = 0.1,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        require_choice("variant", variant, get_args(Variant))
        require_number("temperature", temperature, above=0)
        self.variant = variant
        self.temperature = temperature

    @classmethod
    def official(cls, **settings: Any) -> "TripletSHN":
        """As in the public code of Xuan et al.: "nca", mean. For the hinge form no public code exists."""
        return cls(**{"variant": "nca", **settings})

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The hardest of the lower negatives."""
        # Official: the "nca" code keeps a negative that ties with the positive. Paper: strictly below.
        return ("hardest_below",) if self.variant == "hinge" else ("hardest_up_to",)

    def anchor_loss(self, anchors: AnchorStatistics) -> Float[Tensor, "*K 2 B"]:
        """Equation 13, one anchor."""
        if self.variant == "nca":
            return softmax_triplet(anchors.hardest_up_to, anchors.positive, self.temperature)
        return hinge(anchors.hardest_below, anchors.positive, self.margin)

    def plateau(self, batch: int) -> float | None:
        """The margin, but for anchors whose positive scores lowest of all; in the "nca" form log 2."""
        return math.log(2) if self.variant == "nca" else self.margin

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """In the "nca" form, the anchors that have such a negative."""
        return None if self.variant == "hinge" else anchors.hardest_up_to.isfinite()
