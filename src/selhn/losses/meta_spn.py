"""A small learnt network that weights every anchor: our reading of Wei et al., Meta-SPN, 2021."""

import torch
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss, hinge
from selhn.losses.checks import ImageIds, Scores, require_number
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss


@loss(
    "meta_spn",
    "w(s_p, max_n s_n) [max_n s_n - s_p + margin]+",
    "after Wei et al., ACM Multimedia 2021 (experimental)",
)
class MetaSPN(AbstractLoss):
    """T-HN with a weight for every anchor, computed from its scores by a small network. Experimental.

    Equation, for anchor V_i with hardest negative T^_i:

        w_i / mean(w) [s(V_i, T^_i) - s(V_i, T_i) + margin]+
        w_i = sigmoid(MLP(s(V_i, T_i), s(V_i, T^_i), s(V_i, T_i) - s(V_i, T^_i)))

    Only the abstract of the paper is public. It says that a fully connected network maps self-similarities
    and relative similarities to weights, and is updated by meta-learning on the validation set while the
    matching network trains. Everything else is our reading, after Meta-Weight-Net (Shu et al., NeurIPS 2019):
    one hidden layer, the three inputs above, weights with mean 1 so that they cannot all fall to 0, and the
    hinge that they multiply. We claim no number of the paper. The weights carry no gradient into the scores;
    `selhn.training` makes the meta step that trains the network, and before its first one all weights are 1.

    Args:
        margin, reduction: see `AbstractLoss`.
        hidden: width of the hidden layer.
        weight_lr: learning rate of the network.

    References:
        Wei et al., Meta Self-Paced Network for Image-Text Matching, ACM Multimedia 2021.

    Relations:
        With equal weights, `TripletHN`. `SSP` weights by polynomials with coefficients set by hand.

    Example:
        >>> loss_fn = MetaSPN()
        >>> loss = loss_fn(image_emb @ text_emb.T)
    """

    needs = ("hardest",)

    def __init__(
        self, margin: float = 0.2, hidden: int = 100, weight_lr: float = 1e-3, reduction: Reduction = "mean"
    ):
        super().__init__(margin, reduction)
        self.hidden = require_number("hidden", hidden, above=0)
        self.weight_lr = require_number("weight_lr", weight_lr, above=0)
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random state unchanged
            torch.manual_seed(0)
            first, last = nn.Linear(3, hidden), nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(first, nn.ReLU(), last)

    def plateau(self, batch: int) -> float:
        """The margin: anchors with equal scores have equal weights."""
        return self.margin

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return self._weights(anchors).detach() * hinge(anchors["hardest"], anchors.positive, self.margin)

    def weights(self, scores: Scores, image_ids: ImageIds = None) -> PerAnchor:
        """The weights of all anchors, with gradient into the network and none into the scores."""
        return self._weights(self.statistics(scores.detach(), image_ids))

    def _weights(self, anchors: AnchorStatistics) -> Tensor:
        hardest = torch.where(anchors.num_negatives > 0, anchors["hardest"], 0.0).detach()
        positive = anchors.positive.detach().expand_as(hardest)
        seen = torch.stack([positive, hardest, positive - hardest], dim=-1)
        own = next(self.network.parameters())
        if own.device != seen.device:
            raise SelhnError(
                f"MetaSPN is on {own.device} and the scores are on {seen.device}: move it with .to()"
            )
        weights = self.network(seen.to(own.dtype)).squeeze(-1).sigmoid().to(hardest.dtype)
        return weights / weights.mean(dim=(-2, -1), keepdim=True)
