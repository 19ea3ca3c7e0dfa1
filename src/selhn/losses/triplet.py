"""The triplet loss over all negatives: Schroff et al., FaceNet, CVPR 2015."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import require_choice
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss

Anchors = Literal["both", "images", "texts"]
"""Which anchors have a loss."""


@loss("triplet", "sum_n [s_n - s_p + margin]+", "Schroff et al., CVPR 2015")
class Triplet(AbstractLoss):
    """The hinge of every negative, summed over an anchor's negatives.

    Equation 2 of the SelHN paper, for anchor V_i:  sum_{j != i} [s(V_i, T_j) - s(V_i, T_i) + margin]+

    Args:
        anchors: "images" leaves out the losses of texts, as in DeViSE (with a margin of 0.1), and a mean counts
            images only.

    References:
        Schroff et al., FaceNet, CVPR 2015. Kiros et al., Unifying Visual-Semantic Embeddings, 2014 ("sum of
        hinges").

    Relations:
        `TripletHN` keeps the largest term only. `TripletSelHN` takes the mean of these terms where mining is
        unsafe. This loss does not stall, but ends at a lower recall. Its value grows with the batch.

    Example:
        >>> loss = Triplet()(image_emb @ text_emb.T)
    """

    def __init__(self, margin: float = 0.2, reduction: Reduction = "mean", anchors: Anchors = "both"):
        super().__init__(margin, reduction)
        self.anchors = require_choice("anchors", anchors, get_args(Anchors))

    @classmethod
    def official(cls, **settings: Any) -> "Triplet":
        """As in the public code of VSE++ without `--max_violation`: summed over everything."""
        return cls.paper(**settings)

    @property
    def needs(self) -> dict[str, Constants]:
        return {"hinge_sum": (self.margin,)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        counted = self.counted(anchors)
        return anchors["hinge_sum"] if counted is None else anchors["hinge_sum"] * counted

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """The anchors of the chosen kind: the first of the two rows are images."""
        if self.anchors == "both":
            return None
        losses = anchors["hinge_sum"]
        row = 0 if self.anchors == "images" else 1
        return (torch.arange(2, device=losses.device) == row)[:, None].expand_as(losses)

    def plateau(self, batch: int) -> float | None:
        """The margin, once for every negative."""
        return self.margin * (batch - 1)
