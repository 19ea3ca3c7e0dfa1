"""Soft margins for pairs that may not belong together: Huang et al., NCR, NeurIPS 2021."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.errors import SelhnError, warn
from selhn.base.types import Products, Reduction
from selhn.losses.base import (
    AbstractLoss,
    AverageOver,
    Scheduled,
    TakesGiven,
    hinge,
    mean_hinge,
    mean_hinge_plateau,
)
from selhn.losses.checks import ImageIds, Scores, check_floats, require_choice, require_number
from selhn.losses.statistics import AnchorStatistics, PerAnchor
from selhn.losses.table import loss

Softness = Literal["linear", "exponential", "sin"]
MarginOf = Literal["anchor", "image"]


@dataclass(frozen=True)
class PairLabels:
    """Soft labels of B pairs, and which of them are trained on (None for all).

    Leading axes are those of the scores. `per_score` labels are a (B, B) matrix, as in the authors' program.
    """

    labels: Float[Tensor, "*K B"]
    trained: Bool[Tensor, "*K B"] | None = None
    per_score: bool = False


@loss("ncr", "[max_n s_n - s_p + margin m(label)]+", "Huang et al. (NCR), NeurIPS 2021")
class NCR(Scheduled, TakesGiven, AbstractLoss):
    """T-HN whose margin shrinks with the soft label of a pair: 1 for a true pair, 0 for a wrong one.

    Equation, for anchor V_i with hardest negative T^_i and the label y_i of its pair:

        [s(V_i, T^_i) - s(V_i, T_i) + margin * m(y_i)]+
        m(y) = (10^y - 1) / 9 ("exponential"), y ("linear"), or sin(pi y - pi / 2) / 2 + 1 / 2 ("sin")

    Labels are passed with the scores: `loss_fn(scores, image_ids, given=labels)`, or in `PairLabels`,
    which can also leave pairs out. Without labels all pairs are assumed true and this is `TripletHN`.
    `pair_losses` separates true pairs from wrong ones; `predict` makes labels from scores, and `clean_labels`
    combines them with what is known about a pair. For the first `warmup_epochs`, counted by `set_epoch`, the
    loss is the mean hinge over all negatives and labels do not matter. `selhn.training` finds the labels.

    Args:
        margin, reduction: see `AbstractLoss`.
        softness: the function m.
        warmup_epochs: how many epochs see all negatives, and no labels; the authors take 5 on Flickr30K and 10 on
            MS-COCO. A loop that never calls `set_epoch` takes 0.
        average_over: what a mean hinge is divided by: an anchor's number of "negatives", or the "batch" size.
        margin_of: whose label sets the margin of a triplet: its "anchor"'s, or, as in the authors' program,
            its "image"'s, which for a text anchor is the negative; labels may then be a (B, B) matrix.

    References:
        Huang et al., Learning with Noisy Correspondence for Cross-modal Matching, NeurIPS 2021.

    Relations:
        With all labels 1, `TripletHN`; while warming up, `TripletSelHN` with an infinite epsilon. A pair of
        label 0 still trains, with margin 0, until it beats its negatives.

    Example:
        >>> loss_fn = NCR(warmup_epochs=0)
        >>> loss = loss_fn(image_emb @ text_emb.T, given=labels)
    """

    def __init__(
        self,
        margin: float = 0.2,
        softness: Softness = "exponential",
        warmup_epochs: int = 5,
        average_over: AverageOver = "negatives",
        margin_of: MarginOf = "anchor",
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction)
        self.warmup_epochs = require_number("warmup_epochs", warmup_epochs, infinite=True)
        self.softness = require_choice("softness", softness, get_args(Softness))
        self.average_over = require_choice("average_over", average_over, get_args(AverageOver))
        self.margin_of = require_choice("margin_of", margin_of, get_args(MarginOf))

    @classmethod
    def official(cls, **settings: Any) -> "NCR":
        """As in the authors' program: a sum, mean hinges over B entries, margins by the image."""
        return cls.paper(**{"average_over": "batch", "margin_of": "image", **settings})

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        if self.warming_up:
            return mean_hinge(anchors, self.average_over)
        if anchors.given is None:
            return hinge(anchors["hardest"], anchors.positive, self.margin)
        by_anchor = self.margin_of == "anchor"
        margin = self._margins(anchors.given.labels.to(anchors.positive))[..., None, :] if by_anchor else 0.0
        losses = hinge(anchors["hardest"], anchors.positive, margin)
        trained = self.counted(anchors)
        return losses if trained is None else torch.where(trained, losses, 0.0)

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        if self.warming_up or anchors.given is None or anchors.given.trained is None:
            return None
        return anchors.given.trained[..., None, :].expand_as(anchors["hardest"])

    def plateau(self, batch: int) -> float | None:
        """None after the warm-up: soft labels make margins smaller, and pairs are left out."""
        return mean_hinge_plateau(self.margin, batch, self.average_over) if self.warming_up else None

    def pair_losses(self, scores: Scores, image_ids: ImageIds = None) -> Float[Tensor, "*K B"]:
        """The sum of the mean hinges of a pair's two anchors, as in the warm-up: small for true pairs."""
        warming_up = NCR(self.margin, warmup_epochs=1, average_over=self.average_over)
        return warming_up.per_anchor(scores, image_ids).sum(dim=-2)

    @torch.no_grad()
    def predict(self, scores: Scores, image_ids: ImageIds = None) -> Float[Tensor, "*K B"]:
        """A soft label per pair: `clip(margin - loss / 2, 0, margin)` over that of the batch's best tenth."""
        separated = (self.margin - self.pair_losses(scores, image_ids) / 2).clamp(0, self.margin)
        best = separated.topk(scores.shape[-1] // 10 + 1).values.mean(dim=-1, keepdim=True)
        # Official: if no pair is separated this is 0/0. Here it is 0.
        return (separated / best.clamp(min=torch.finfo(best.dtype).tiny)).clamp(max=1)

    def clean_labels(
        self, probability: Float[Tensor, " B"], prediction: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"] | Float[Tensor, "B B"]:
        """`w + (1 - w) prediction`: labels of pairs that are true with probability w."""
        # Official: a column there, so that the label of image i has the prediction of every text.
        probability = probability if self.margin_of == "anchor" else probability[:, None]
        return probability + (1 - probability) * prediction

    def check_given(self, given: Any, batch: int) -> PairLabels:
        """Refuse labels that are not one number per pair, or a matrix if margins are the images'."""
        if self.warming_up and self._epoch is None and not torch.compiler.is_compiling():
            warn(
                "NCR does not look at labels while it warms up, and was not told the epoch: call set_epoch(epoch) in "
                "every epoch, or take NCR(warmup_epochs=0)"
            )
        if not isinstance(given, PairLabels):
            check_floats("given", given)
            matrix = (batch, batch) if self.margin_of == "image" else None
            if tuple(given.shape) not in ((batch,), matrix):
                also = f" or {matrix}" if matrix else ""
                raise SelhnError(
                    f"given must be soft labels, one per pair, of shape ({batch},){also}, got {tuple(given.shape)}"
                )
            return PairLabels(given.detach(), per_score=given.ndim == 2)
        check_floats("labels", given.labels)
        shapes = {tuple(part.shape) for part in (given.labels, given.trained) if part is not None}
        if len(shapes) > 1 or given.labels.shape[-1] != batch:
            raise SelhnError(
                f"labels and trained of PairLabels must end in the {batch} pairs, got shapes {shapes}"
            )
        return PairLabels(given.labels.detach(), given.trained)

    def prepared(self, scores: Scores | Products, given: PairLabels | None = None) -> Scores | Products:
        """With `margin_of="image"`, each image's margin is added to its negatives."""
        if given is None or self.margin_of == "anchor" or self.warming_up:
            return scores
        if isinstance(scores, Products):
            raise SelhnError(
                "this loss adds a separate margin to every score and needs the matrix: "
                "call it with image_emb @ text_emb.T"
            )
        # Official: so it may change which one is the hardest.
        margins = self._margins(given.labels if given.per_score else given.labels[..., None]).to(scores)
        own = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        return scores + margins.expand_as(scores).masked_fill(own, 0.0)

    def _margins(self, labels: Tensor) -> Tensor:
        if self.softness == "exponential":
            labels = (10**labels - 1) / 9
        if self.softness == "sin":
            labels = (math.pi * labels - math.pi / 2).sin() / 2 + 0.5
        return self.margin * labels
