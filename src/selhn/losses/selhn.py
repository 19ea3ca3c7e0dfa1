"""The triplet loss with selectively hard negative mining: Li et al., SelHN, 2023."""

from typing import Any, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.types import Reduction
from selhn.losses.base import SEPARATION, AbstractLoss, AverageOver, hinge, mean_hinge, mean_hinge_plateau
from selhn.losses.checks import ImageIds, ScoreRange, Scores, require_choice, require_number
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss


@loss("selhn", "hn if |max_n s_n - s_p| > epsilon else mean_n [s_n - s_p + margin]+", "Li et al., 2023")
class TripletSelHN(AbstractLoss):
    """T-SelHN: mine the hardest negative only if it is separated from the positive, else average over all.

    Equations 9 to 12 of the SelHN paper, for anchor V_i with hardest negative T^_i:

        delta_s = |s(V_i, T^_i) - s(V_i, T_i)|
        L       = [s(V_i, T^_i) - s(V_i, T_i) + margin]+                     if delta_s > epsilon
                  (1 / n) sum_{j != i} [s(V_i, T_j) - s(V_i, T_i) + margin]+   otherwise

    Every anchor decides for itself, images and texts separately. The decision carries no gradient.

    Args:
        margin, reduction: see `AbstractLoss`.
        epsilon: the smallest delta_s at which mining is considered safe; 0.01 in all of the paper's runs.
        average_over: n is the anchor's number of "negatives" (B - 1 without ids), or the "batch" size B.
        mine_at_epsilon: whether an anchor with delta_s exactly epsilon mines.

    References:
        Li et al., Selectively Hard Negative Mining for Alleviating Gradient Vanishing in Image-Text Matching,
        arXiv 2303.00181, 2023.

    Relations:
        epsilon = 0 is `TripletHN` (at exact ties with `mine_at_epsilon=True` only); epsilon = inf is the mean
        form of `Triplet`. The value jumps where an anchor changes its branch, so compare curves by delta_s or
        by recall, not by the loss.

    Example:
        >>> loss_fn = TripletSelHN(margin=0.2, epsilon=0.01)
        >>> loss = loss_fn(image_emb @ text_emb.T)
    """

    made_for = ScoreRange(
        -1.5,
        1.5,
        "TripletSelHN got scores beyond 1.5: margin and epsilon are made for cosines, and with larger scores all "
        "anchors mine, as in TripletHN. Divide them by the scale or temperature they were multiplied with (CLIP's "
        "logits: logits / logit_scale), or pass cosines; for sums of cosines, raise margin and epsilon",
        always=False,
    )
    remedy = (
        "a larger epsilon (loss.epsilon=0.03), a smaller batch or learning rate, "
        "or a loss that has no switch (loss=tal loss.temperature=0.05)"
    )
    watches_plateau = False  # an average over negatives falls below it without any mining

    def __init__(
        self,
        margin: float = 0.2,
        epsilon: float = SEPARATION,
        average_over: AverageOver = "negatives",
        mine_at_epsilon: bool = False,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        self.epsilon = require_number("epsilon", epsilon, infinite=True)
        self.average_over = require_choice("average_over", average_over, get_args(AverageOver))
        self.mine_at_epsilon = mine_at_epsilon

    @classmethod
    def paper(cls, **settings: Any) -> "TripletSelHN":
        """The paper's formula: sum over anchors and directions, the average branch divided by B."""
        return super().paper(**{"average_over": "batch", **settings})

    @classmethod
    def official(cls, **settings: Any) -> "TripletSelHN":
        """The authors' released code: a mean, averages over B - 1, and delta_s = epsilon mines."""
        return cls(**{"mine_at_epsilon": True, **settings})

    @property
    def separation(self) -> float:
        return self.epsilon

    @property
    def needs(self) -> dict[str, Constants]:
        return {"hardest": (), "hinge_sum": (self.margin,)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        hardest = hinge(anchors["hardest"], anchors.positive, self.margin)
        return torch.where(self._mines(anchors), hardest, mean_hinge(anchors, self.average_over))

    def plateau(self, batch: int) -> float | None:
        """The margin, since all anchors average there."""
        return mean_hinge_plateau(self.margin, batch, self.average_over)

    def mined(self, scores: Scores, image_ids: ImageIds = None) -> Bool[Tensor, "*K 2 B"]:
        """Which anchors mine their hardest negative, image anchors then text anchors."""
        with torch.no_grad():
            return self._mines(self.statistics(scores, image_ids))

    def _mines(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"]:
        delta_s = (anchors["hardest"] - anchors.positive).detach().abs()
        # Paper: delta_s > epsilon mines. Official: delta_s >= epsilon does.
        return delta_s >= self.epsilon if self.mine_at_epsilon else delta_s > self.epsilon
