"""The triplet loss over all negatives: Schroff et al., FaceNet, CVPR 2015."""

from typing import Any

from selhn.kernels import AnchorStatistics, PerAnchor
from selhn.losses.base import AbstractLoss


class Triplet(AbstractLoss):
    """The hinge of every negative, summed over an anchor's negatives.

    Equation 2 of the SelHN paper, for anchor V_i:  sum_{j != i} [s(V_i, T_j) - s(V_i, T_i) + margin]+

    References:
        Schroff et al., FaceNet, CVPR 2015. Kiros et al., Unifying Visual-Semantic Embeddings, 2014 ("sum of
        hinges").

    Relations:
        `TripletHN` keeps the largest term only. `TripletSelHN` takes the mean of these terms where mining is
        unsafe. Trains without stalling, ends at a lower recall. Its value grows with the batch.

    Example:
        >>> loss = Triplet()(image_emb @ text_emb.T)
    """

    needs = ("hinge_sum",)

    @classmethod
    def official(cls, **settings: Any) -> "Triplet":
        """As in the public code of VSE++ without `--max_violation`: summed over everything."""
        return cls.paper(**settings)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return anchors["hinge_sum"]

    def plateau(self, batch: int) -> float | None:
        """The margin, once for every negative."""
        return self.margin * (batch - 1)
