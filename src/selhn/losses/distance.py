"""The triplet loss with distance-weighted negatives: Wu et al., ICCV 2017, in HREM, LAPS and D2S-VSE."""

from typing import Any

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Reduction
from selhn.losses.base import AbstractLoss
from selhn.losses.checks import ScoreRange, require_number
from selhn.losses.statistics import STATISTICS, AnchorStatistics, Constants, PerAnchor, Statistic
from selhn.losses.table import loss


def log_weight(negatives: Tensor, dim: float, nearest: float, farthest: float) -> Tensor:
    """-log of how often two random unit vectors have this cosine, between two cosines; without a gradient.

    In many dimensions nearly all have one of about 0.
    """
    cosine = negatives.detach().clamp(farthest, nearest)
    weight = (1 - dim / 2) * (1 - cosine).log() + (1.5 - dim / 2) * (1 + cosine).log()
    return weight.masked_fill(negatives <= farthest, -torch.inf)


def _log_weighted_hinge(negatives: Tensor, positive: Tensor, margin: float, *sphere: float) -> Tensor:
    violation = negatives - positive + margin
    none = (violation <= 0) | (negatives <= sphere[-1])
    # log 1 in place of log 0, whose gradient would be NaN.
    hinge = violation.masked_fill(none, 1.0).log()
    return (log_weight(negatives, *sphere) + hinge).masked_fill(none, -torch.inf)


# log sum w_n, and log sum w_n [s_n - s_p + margin]+
STATISTICS["log_weight"] = Statistic("logsumexp", log_weight, alone=True)
STATISTICS["log_weighted_hinge"] = Statistic("logsumexp", _log_weighted_hinge)


@loss(
    "distance",
    "sum_n w_n [s_n - s_p + margin]+ / sum_n w_n, w_n = how rare the distance is",
    "Wu et al., ICCV 2017; HREM, LAPS, D2S-VSE",
    shift_invariant=False,
)
class TripletDistance(AbstractLoss):
    """The mean hinge over an anchor's negatives, each weighted by how rare its distance is.

    Equation, for anchor V_i, where r_j is the distance of the unit vectors V_i and T_j, sqrt(2 - 2 s(V_i,
    T_j)):

        sum_{j != i} w_j [s(V_i, T_j) - s(V_i, T_i) + margin]+ / sum_{j != i} w_j,
        w_j = r_j^(2 - dim) (1 - r_j^2 / 4)^((3 - dim) / 2),  r_j at least `nearest`; 0 if r_j >= `farthest`

    The weights are constants to the gradient. Scores must be cosines.

    Args:
        margin, reduction: see `AbstractLoss`.
        dim: dimension of the sphere that says how rare a distance is; the authors' programs use 512 for
            embeddings of 512 and of 1024 numbers. Larger values let a few negatives outweigh the rest.
        nearest: smaller distances weigh no more than this one; the default is a cosine of 0.875.
        farthest: negatives at this distance or more are left out; the programs use 1.7, and 1.9 for COCO.

    References:
        Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017. For image-text matching in the programs of
        Fu et al. (HREM), CVPR 2023, Fu et al. (LAPS), CVPR 2024, and Liu et al. (D2S-VSE), ICCV 2025.

    Relations:
        Those programs draw one negative per anchor with these weights; this is the mean over what they can draw,
        with the same expected gradient and no randomness. If all cosines are above 0.875, as in a collapsed
        model, all weights are equal and this is the mean that `TripletSelHN` falls back to. Far from there,
        at a `dim` of 512, the weight grows with the size of the cosine: among positive ones a negative that
        is harder by 0.1 weighs some 10^5 times as much and this is almost `TripletHN`. But most distances are
        near sqrt(2), so that an easy negative of cosine -0.4 is as rare as a hard one of 0.4 and weighs as
        much; it has no gradient.

    Example:
        >>> loss = TripletDistance()(image_emb @ text_emb.T)
    """

    made_for = ScoreRange(
        -1.02,  # half precision rounds a cosine beyond 1
        1.02,
        "TripletDistance got scores outside [-1, 1]: they have no distance on the sphere, so the weights are wrong. "
        "Pass cosines of unit vectors, without a scale",
    )

    def __init__(
        self,
        margin: float = 0.2,
        dim: float = 512,
        nearest: float = 0.5,
        farthest: float = 1.7,
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        self.dim = require_number("dim", dim, above=1)
        self.nearest = require_number("nearest", nearest, above=0)
        self.farthest = require_number("farthest", farthest, above=nearest)
        if farthest >= 2:
            raise SelhnError(
                f"farthest must be below 2, the distance of opposite unit vectors, got {farthest}"
            )

    @classmethod
    def official(cls, **settings: Any) -> "TripletDistance":
        """The expected value of the authors' programs, if all pairs show different images: a sum."""
        return cls.paper(**settings)

    @property
    def needs(self) -> dict[str, Constants]:
        sphere = self.dim, 1 - self.nearest**2 / 2, 1 - self.farthest**2 / 2
        return {"log_weight": sphere, "log_weighted_hinge": (self.margin, *sphere)}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        total = anchors["log_weight"]
        # Official: one anchor without a negative in range makes the loss of all anchors of its direction 0.
        return (anchors["log_weighted_hinge"] - total.masked_fill(total == -torch.inf, 0.0)).exp()
