"""The selectively contrastive triplet loss: Xuan et al., ECCV 2020."""

import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.types import Reduction, Variant
from selhn.losses.checks import require_number
from selhn.losses.hardest import VariantLoss
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss


@loss("sct", "hn if max_n s_n < s_p else max_n s_n", "Xuan et al., ECCV 2020", shift_invariant=False)
class SCT(VariantLoss):
    """If the hardest negative beats the positive, push it away alone; else the triplet term.

    Equation 15 of the SelHN paper, for anchor V_i with s_n the hardest negative's score and s_p the
    positive's: [s_n - s_p + margin]+ if s_n < s_p, else s_n.

    Args:
        margin, reduction: see `VariantLoss`.
        variant: "hinge" is the equation above. "nca" is the original code: `-log sigmoid((s_p - s_n) /
            temperature)` where s_n < s_p and s_n < `hard_threshold`; `weight * s_n` where s_n > s_p or s_n >
            `hard_threshold`; exact ties are neither, and its mean leaves them out.
        temperature, hard_threshold, weight: used by "nca" only.

    References:
        Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020.

    Relations:
        In the contrastive branch the positive gets no gradient and the value may be negative, down to -1 for
        cosines. Unlike the rest of the family it changes when a constant is added to all scores.

    Example:
        >>> loss = SCT()(image_emb @ text_emb.T)
    """

    needs = ("hardest",)

    def __init__(
        self,
        margin: float = 0.2,
        variant: Variant = "hinge",
        temperature: float = 0.1,
        hard_threshold: float = 0.8,
        weight: float = 1.0,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, variant, temperature, reduction)
        self.hard_threshold = require_number("hard_threshold", hard_threshold, infinite=True)
        self.weight = require_number("weight", weight)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        negative, positive = anchors["hardest"], anchors.positive
        triplet = self.triplet(negative, positive)
        if self.variant == "hinge":
            return torch.where(negative >= positive, negative, triplet)
        is_hard, is_easy = self._hard_and_easy(anchors)
        return torch.where(is_hard, self.weight * negative, torch.where(is_easy, triplet, 0.0))

    def plateau(self, batch: int) -> None:
        """None: a negative that scores above the positive counts with its own score."""

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """In the "nca" form, the anchors that fall in one of the two sets."""
        if self.variant == "hinge":
            return None
        is_hard, is_easy = self._hard_and_easy(anchors)
        return is_hard | is_easy

    def _hard_and_easy(
        self, anchors: AnchorStatistics
    ) -> tuple[Bool[Tensor, "*K 2 B"], Bool[Tensor, "*K 2 B"]]:
        negative, positive = anchors["hardest"], anchors.positive
        # Official: both comparisons are strict: a tie with the positive or the threshold is in neither set.
        is_hard = (negative > positive) | (negative > self.hard_threshold)
        is_easy = (negative < positive) & (negative < self.hard_threshold)
        return is_hard, is_easy & negative.isfinite()
