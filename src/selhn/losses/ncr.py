"""Soft margins for pairs that may not belong together: Huang et al., NCR, NeurIPS 2021."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Reduction
from selhn.kernels import AnchorStatistics, Statistic
from selhn.losses.base import (
    AbstractLoss,
    AverageOver,
    check_floats,
    hinge,
    mean_hinge,
    mean_hinge_plateau,
    require_choice,
)

Softness = Literal["linear", "exponential", "sin"]
MarginOf = Literal["anchor", "image"]


@dataclass(frozen=True)
class PairLabels:
    """Soft labels of B pairs, and which of them are trained on (None for all); leading axes are those of the scores."""

    labels: Float[Tensor, "*K B"]
    trained: Bool[Tensor, "*K B"] | None = None


class NCR(AbstractLoss):
    """T-HN whose margin shrinks with the soft label of a pair: 1 for a true pair, 0 for a wrong one.

    Equation, for anchor V_i with hardest negative T^_i and the label y_i of its pair:

        [s(V_i, T^_i) - s(V_i, T_i) + margin * m(y_i)]+
        m(y) = (10^y - 1) / 9 ("exponential"), y ("linear"), or sin(pi y - pi / 2) / 2 + 1 / 2 ("sin")

    Labels are handed over with the scores: `loss_fn(scores, image_ids, given=labels)`, or in `PairLabels`, which also
    leave pairs out; without them all pairs are held to be true and this is `TripletHN`. True and wrong pairs are told
    apart by `pair_losses`; `predict` makes labels from scores, and `clean_labels` joins them with what is known of a
    pair. For the first `warmup_epochs`, counted by `set_epoch`, the loss is the mean hinge over all negatives and
    labels do not matter. `selhn.training` finds the labels.

    Args:
        margin, reduction: see `AbstractLoss`.
        softness: the function m.
        warmup_epochs: how many epochs see all negatives; the authors take 5 on Flickr30K and 10 on MS-COCO.
        average_over: what a mean hinge is divided by: the number of an anchor's "negatives", or the "batch" size.
        margin_of: whose label sets the margin of a triplet: that of its "anchor", or, as in the authors' program, that
            of its "image", which for a text anchor is the negative; labels may then also be a (B, B) matrix.

    References:
        Huang et al., Learning with Noisy Correspondence for Cross-modal Matching, NeurIPS 2021.

    Relations:
        With all labels 1, `TripletHN`; while warming up, `TripletSelHN` with an infinite epsilon. A pair of label 0
        still trains, with margin 0, until it beats its negatives.

    Example:
        >>> loss_fn = NCR()
        >>> loss = loss_fn(image_emb @ text_emb.T, given=labels)
    """

    def __init__(
        self,
        margin: float = 0.2,
        softness: Softness = "exponential",
        warmup_epochs: int = 0,
        average_over: AverageOver = "negatives",
        margin_of: MarginOf = "anchor",
        reduction: Reduction = "mean",
    ):
        super().__init__(margin, reduction, warmup_epochs)
        require_choice("softness", softness, get_args(Softness))
        require_choice("average_over", average_over, get_args(AverageOver))
        require_choice("margin_of", margin_of, get_args(MarginOf))
        self.softness = softness
        self.average_over = average_over
        self.margin_of = margin_of

    @classmethod
    def official(cls, **settings: Any) -> "NCR":
        """As in the authors' program: a sum, mean hinges over B entries, margins by the image in both directions."""
        return cls.paper(**{"average_over": "batch", "margin_of": "image", **settings})

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The sum of hinges while warming up, then the hardest negative."""
        return ("hinge_sum",) if self.warming_up else ("hardest",)

    def anchor_loss(self, anchors: AnchorStatistics) -> Float[Tensor, "*K 2 B"]:
        """The equation, one anchor."""
        if self.warming_up:
            return mean_hinge(anchors, self.average_over)
        if anchors.given is None:
            return hinge(anchors.hardest, anchors.positive, self.margin)
        # Official: the margin was added to every negative, and may have changed which is the hardest.
        by_anchor = self.margin_of == "anchor"
        margin = self._margins(anchors.given.labels, anchors.positive)[..., None, :] if by_anchor else 0.0
        losses = hinge(anchors.hardest, anchors.positive, margin)
        trained = self.counted(anchors)
        return losses if trained is None else torch.where(trained, losses, 0.0)

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """Both anchors of the pairs that are trained on."""
        if self.warming_up or anchors.given is None or anchors.given.trained is None:
            return None
        return anchors.given.trained[..., None, :].expand_as(anchors.hardest)

    def plateau(self, batch: int) -> float | None:
        """None after the warm-up: soft labels make margins smaller, and pairs are left out."""
        return mean_hinge_plateau(self.margin, batch, self.average_over) if self.warming_up else None

    def pair_losses(
        self, scores: Float[Tensor, "*K B B"], image_ids: Int[Tensor, " B"] | Sequence[int] | None = None
    ) -> Float[Tensor, "*K B"]:
        """The mean hinges of a pair's two anchors, added: small for true pairs. Its gradient is that of the warm-up."""
        warming_up = NCR(self.margin, warmup_epochs=1, average_over=self.average_over)
        return warming_up.per_anchor(scores, image_ids).sum(dim=-2)

    @torch.no_grad()
    def predict(
        self, scores: Float[Tensor, "*K B B"], image_ids: Int[Tensor, " B"] | Sequence[int] | None = None
    ) -> Float[Tensor, "*K B"]:
        """A soft label for every pair: `clip(margin - loss / 2, 0, margin)` in units of the best tenth of the batch."""
        told_apart = (self.margin - self.pair_losses(scores, image_ids) / 2).clamp(0, self.margin)
        best = told_apart.topk(scores.shape[-1] // 10 + 1).values.mean(dim=-1, keepdim=True)
        # Official: where no pair is told apart this is 0/0. It is 0 here.
        return (told_apart / best.clamp(min=torch.finfo(best.dtype).tiny)).clamp(max=1)

    def clean_labels(
        self, probability: Float[Tensor, " B"], prediction: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"] | Float[Tensor, "B B"]:
        """`w + (1 - w) prediction`: labels of pairs held to be true with probability w."""
        # Official: the probability is a column there, so that the label of image i has the prediction of every text.
        probability = probability if self.margin_of == "anchor" else probability[:, None]
        return probability + (1 - probability) * prediction

    def check_given(self, given: Any, batch: int) -> PairLabels | None:
        """Refuse labels that are not one number a pair, or a matrix where margins are the images'."""
        if given is None:
            return None
        if isinstance(given, PairLabels):
            check_floats("labels", given.labels)
            shapes = {tuple(part.shape) for part in (given.labels, given.trained) if part is not None}
            if len(shapes) > 1 or given.labels.shape[-1] != batch:
                raise SelhnError(f"labels and trained of PairLabels must end in the {batch} pairs, got shapes {shapes}")
            return PairLabels(given.labels.detach(), given.trained)
        check_floats("given", given)
        shape, matrix = tuple(given.shape), (batch, batch)
        if shape != (batch,) and (shape != matrix or self.margin_of == "anchor"):
            also = "" if self.margin_of == "anchor" else f" or {matrix}"
            raise SelhnError(f"given must be soft labels, one a pair, of shape ({batch},){also}, got {shape}")
        return PairLabels(given.detach())

    def from_embeddings(
        self,
        image_emb: Float[Tensor, "B d"],
        text_emb: Float[Tensor, "B d"],
        image_ids: Int[Tensor, " B"] | Sequence[int] | None = None,
        *,
        given: Any = None,
        tile: int | None = None,
    ) -> Tensor:
        """As in `AbstractLoss`; margins of the images cannot be had without the matrix."""
        if given is not None and self.margin_of == "image" and not self.warming_up:
            raise SelhnError(
                "NCR with margin_of='image' adds a margin to every score and needs the matrix: call the loss with "
                "image_emb @ text_emb.T, or take margin_of='anchor'"
            )
        return super().from_embeddings(image_emb, text_emb, image_ids, given=given, tile=tile)

    def prepare_scores(self, scores: Float[Tensor, "*K B B"], given: PairLabels | None) -> Float[Tensor, "*K B B"]:
        """Official: with the margin of its image added to every negative, which may change which is the hardest."""
        if given is None or self.margin_of == "anchor" or self.warming_up:
            return scores
        margins = self._margins(given.labels, scores)
        is_matrix = margins.shape[-2:] == scores.shape[-2:] and margins.ndim + 1 != scores.ndim
        margins = margins if is_matrix else margins[..., None]
        on_diagonal = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        return scores + margins.expand(scores.shape).masked_fill(on_diagonal, 0)

    def _margins(self, labels: Tensor, like: Tensor) -> Tensor:
        labels = labels.to(like)
        if self.softness == "exponential":
            labels = (10**labels - 1) / 9
        if self.softness == "sin":
            labels = (math.pi * labels - math.pi / 2).sin() / 2 + 0.5
        return self.margin * labels
