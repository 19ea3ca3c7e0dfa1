"""All negatives first, then the hardest: the usual remedy for a stalled start (VSE-infinity, 2021)."""

from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss, Scheduled, hinge
from selhn.losses.checks import require_number
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss


@loss("warmup", "triplet for the first epochs, then hn", "Chen et al. (VSE-infinity), CVPR 2021")
class TripletWarmUp(Scheduled, AbstractLoss):
    """`Triplet` for the first `warmup_epochs` epochs, `TripletHN` from then on.

    Equation 2, then equation 3 of the SelHN paper. Call `loss_fn.set_epoch(epoch)` in every epoch.

    Args:
        margin, reduction: see `AbstractLoss`.
        warmup_epochs: how many epochs see all negatives; the public region recipe of VSE-infinity takes 1.

    References:
        Chen et al., Learning the Best Pooling Strategy for Visual Semantic Embedding, CVPR 2021.

    Relations:
        The switch is made once for all anchors, by epoch; `TripletSelHN` makes it for every
        anchor, by its scores. A model that collapses after the warm-up stays collapsed.

    Example:
        >>> loss_fn = TripletWarmUp(warmup_epochs=1)
        >>> loss_fn.set_epoch(0)
        >>> loss = loss_fn(image_emb @ text_emb.T)
    """

    def __init__(self, margin: float = 0.2, warmup_epochs: int = 1, reduction: Reduction = "mean"):
        super().__init__(margin, reduction)
        self.warmup_epochs = require_number("warmup_epochs", warmup_epochs, infinite=True)

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        if self.warming_up:
            return anchors["hinge_sum"]
        return hinge(anchors["hardest"], anchors.positive, self.margin)

    def plateau(self, batch: int) -> float | None:
        """The plateau of `Triplet` while warming up, then that of `TripletHN`."""
        return self.margin * (batch - 1) if self.warming_up else self.margin
