"""The triplet loss on the hardest negative: Faghri et al., VSE++, BMVC 2018."""

import math
from typing import Any, get_args

from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.types import Reduction, Variant
from selhn.kernels import AnchorStatistics, Statistic
from selhn.losses.base import AbstractLoss, hinge, require_choice, require_number, softmax_triplet


class TripletHN(AbstractLoss):
    """T-HN: the hinge of the negative that scores highest.

    Equation 3 of the SelHN paper, for anchor V_i:  [max_{j != i} s(V_i, T_j) - s(V_i, T_i) + margin]+

    Args:
        margin, reduction: see `AbstractLoss`.
        variant: "hinge", or "nca" for `-log sigmoid((s_p - s_n) / temperature)`, whose mean leaves out anchors without
            negatives.
        temperature: of "nca" only.

    References:
        Faghri et al., VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
        The "nca" form: Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        Early in training all embeddings can fall together: then the loss sits at `margin` an anchor, that is at
        2 * B * margin when summed. `TripletSelHN` is the way out.

    Example:
        >>> loss = TripletHN()(image_emb @ text_emb.T)
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
    def official(cls, variant: Variant = "hinge", **settings: Any) -> "TripletHN":
        """As in public code: VSE++ with `--max_violation` sums over both directions; "nca" takes the mean."""
        reduction: Reduction = "sum" if variant == "hinge" else "mean"
        return cls(variant=variant, **{"reduction": reduction, **settings})

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Only the hardest negative."""
        return ("hardest",)

    def anchor_loss(self, anchors: AnchorStatistics) -> Float[Tensor, "*K 2 B"]:
        """Equation 3, one anchor."""
        if self.variant == "nca":
            return softmax_triplet(anchors.hardest, anchors.positive, self.temperature)
        return hinge(anchors.hardest, anchors.positive, self.margin)

    def plateau(self, batch: int) -> float | None:
        """The margin; in the "nca" form log 2."""
        return math.log(2) if self.variant == "nca" else self.margin

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """In the "nca" form, the anchors that have a negative."""
        return None if self.variant == "hinge" else anchors.hardest.isfinite()
