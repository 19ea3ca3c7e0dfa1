"""The hardest negative: Faghri et al., VSE++, BMVC 2018; and the base of losses with one negative."""

import math
from abc import abstractmethod
from typing import Any, get_args

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from selhn.base.types import Reduction, Variant
from selhn.losses.base import AbstractLoss, LossT, hinge
from selhn.losses.checks import require_choice, require_number
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss


class VariantLoss(AbstractLoss):
    """The triplet term of a positive and the one negative that the loss `needs`.

    Args:
        margin, reduction: see `AbstractLoss`.
        variant: "hinge", or "nca" (Xuan et al., ECCV 2020) for `-log sigmoid((s_p - s_n) / temperature)`,
            its mean leaves out anchors without such a negative.
        temperature: used by "nca" only.
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

    @classmethod
    def official(cls: type[LossT], **settings: Any) -> LossT:
        """As in the public code of Xuan et al.: "nca", mean. For the hinge form no public code exists."""
        return cls(**{"variant": "nca", **settings})

    def triplet(self, negative: PerAnchor, positive: Float[Tensor, "*K 1 B"]) -> PerAnchor:
        """The term of one negative; 0 without a gradient if it is at -inf."""
        if self.variant == "nca":
            # Not softplus: torch's turns into the identity above 20, which is off by 2e-9 there.
            return -logsigmoid((positive - negative) / self.temperature)
        return hinge(negative, positive, self.margin)

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """The one negative."""

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return self.triplet(anchors[self.needs[0]], anchors.positive)

    def plateau(self, batch: int) -> float | None:
        """The margin; in the "nca" form log 2."""
        return math.log(2) if self.variant == "nca" else self.margin

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """In the "nca" form, the anchors that have the needed negative."""
        return None if self.variant == "hinge" else anchors[self.needs[0]].isfinite()


@loss("hn", "[max_n s_n - s_p + margin]+", "Faghri et al. (VSE++), BMVC 2018")
class TripletHN(VariantLoss):
    """T-HN: the hinge of the negative that scores highest.

    Equation 3 of the SelHN paper, for anchor V_i:  [max_{j != i} s(V_i, T_j) - s(V_i, T_i) + margin]+

    Args:
        margin, variant, temperature, reduction: see `VariantLoss`.

    References:
        Faghri et al., VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
        The "nca" form: Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        Early in training all embeddings can collapse: then the loss stays at `margin` per anchor, that is at
        2 * B * margin when summed. `TripletSelHN` avoids this.

    Example:
        >>> loss = TripletHN()(image_emb @ text_emb.T)
    """

    needs = ("hardest",)

    @classmethod
    def official(cls, variant: Variant = "hinge", **settings: Any) -> "TripletHN":
        """As in public code: VSE++ with `--max_violation` sums over both directions; "nca" takes the mean."""
        reduction: Reduction = "sum" if variant == "hinge" else "mean"
        return cls(variant=variant, **{"reduction": reduction, **settings})
