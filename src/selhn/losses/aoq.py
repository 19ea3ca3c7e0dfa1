"""Online and offline hard negatives: Chen et al., Adaptive Offline Quintuplet Loss, ECCV 2020."""

from dataclasses import dataclass
from typing import Any

import torch

from selhn.base.errors import SelhnError
from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss, TakesGiven, hinge
from selhn.losses.checks import check_finite, check_floats, require_number
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss


@dataclass(frozen=True)
class OfflineScores:
    """Scores with negatives from the whole training set; axis -2 is (image anchors, text anchors).

    T- and V- are the offline negatives of image V_i and of text T_i. `negative` holds s(V_i, T-) and s(V-,
    T_i); `pair` holds s(V-, T-), and for the text anchors s(V2, T2), where V2 is the image of T- and T2 a
    caption of V-.
    """

    negative: PerAnchor
    pair: PerAnchor


@loss("aoq", "w [max_n s_n - s_p + margin]+ + two of [s_offline - s_p]+", "Chen et al., ECCV 2020")
class AOQ(TakesGiven, AbstractLoss):
    """T-HN weighted by how much harder its negative is than the offline one, plus two offline hinges.

    Equation, for anchor V_i with hardest negative T^_i in the batch, offline negatives T- and V-:

        w [s(V_i, T^_i) - s(V_i, T_i) + margin]+
          + [s(V_i, T-) - s(V_i, T_i) + offline_margin]+ + [s(V-, T-) - s(V_i, T_i) + offline_margin]+
        w = beta - (s(V_i, T-) - s(V_i, T^_i)) / alpha

    Pass the scores that a batch does not contain: `loss_fn(scores, image_ids, given=OfflineScores(...))`;
    likewise for `per_anchor` and `from_embeddings`. Without them this is `TripletHN`. An anchor without
    negatives in the batch keeps its offline terms. `selhn.training` finds the offline negatives and scores
    them.

    Args:
        margin: margin of the negative in the batch; `reduction`: see `AbstractLoss`.
        offline_margin: margin of the offline negatives.
        alpha, beta: constants of the weight w.
        weight_gradient: whether w has a gradient, as in the authors' program; it raises an offline negative.
        negative_weight: whether w may be below 0, as in the authors' program; it then rewards a wrong score.
        depth: training draws an image's offline negative from this many of its hardest texts.
        refresh: epochs between two searches for offline negatives.

    References:
        Chen et al., Adaptive Offline Quintuplet Loss for Image-Text Matching, ECCV 2020.

    Relations:
        Without the offline terms and with w = 1, `TripletHN`. Offline negatives are harder than a batch can
        be, but may be true matches: only an image's own captions are known not to be negatives.

    Example:
        >>> negative, pair = torch.stack([s_image_off, s_off_text]), torch.stack([s_off, s_off2])
        >>> loss = AOQ()(image_emb @ text_emb.T, given=OfflineScores(negative, pair))
    """

    needs = ("hardest",)

    def __init__(
        self,
        margin: float = 0.2,
        offline_margin: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        weight_gradient: bool = False,
        negative_weight: bool = False,
        depth: int = 300,
        refresh: int = 1,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        self.offline_margin = require_number("offline_margin", offline_margin)
        self.alpha = require_number("alpha", alpha, above=0, infinite=True)
        self.beta = require_number("beta", beta)
        self.weight_gradient = weight_gradient
        self.negative_weight = negative_weight
        self.depth = require_number("depth", depth, above=0)
        self.refresh = require_number("refresh", refresh, above=0)

    @classmethod
    def official(cls, **settings: Any) -> "AOQ":
        """As in the authors' program: a sum, and weights that carry gradient and may be negative."""
        return cls.paper(**{"weight_gradient": True, "negative_weight": True, **settings})

    def plateau(self, batch: int) -> float:
        """With offline scores, as in training: w is beta if all scores are equal."""
        return self.beta * self.margin + 2 * self.offline_margin

    def check_given(self, given: Any, batch: int) -> OfflineScores:
        if not isinstance(given, OfflineScores):
            raise SelhnError(
                f"AOQ takes the scores of offline negatives, got {type(given).__name__}: pass given=OfflineScores(...)"
            )
        for name in ("negative", "pair"):
            value = getattr(given, name)
            check_floats(name, value)
            if tuple(value.shape[-2:]) != (2, batch):
                raise SelhnError(
                    f"{name} of OfflineScores must have shape (2, {batch}), image anchors and text anchors, "
                    f"got {tuple(value.shape)}"
                )
            check_finite(name, value)
        return given

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        positive = anchors.positive
        if anchors.given is None:
            return hinge(anchors["hardest"], positive, self.margin)
        negative, pair = (scores.to(positive) for scores in (anchors.given.negative, anchors.given.pair))
        has_negative = anchors.num_negatives > 0
        hardest = torch.where(has_negative, anchors["hardest"], 0.0)
        weight = self.beta - (negative - hardest) / self.alpha
        # Official: the weight is part of the graph and has no lower bound.
        weight = weight if self.weight_gradient else weight.detach()
        weight = weight if self.negative_weight else weight.clamp(min=0)
        online = torch.where(has_negative, weight * hinge(hardest, positive, self.margin), 0.0)
        of_negative, of_pair = (hinge(scores, positive, self.offline_margin) for scores in (negative, pair))
        return online + of_negative + of_pair
