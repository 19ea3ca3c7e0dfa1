"""Soft margins for pairs that may not belong together: Huang et al., NCR, NeurIPS 2021."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.kernels import AnchorStatistics, Statistic
from selhn.losses.base import (
    AbstractLoss,
    AverageOver,
    check_floats,
    check_scores,
    hinge,
    mean_hinge,
    mean_hinge_plateau,
    require_choice,
    require_number,
)
from selhn.types import Reduction

Softness = Literal["linear", "exponential", "sin"]
MarginOf = Literal["anchor", "image"]


class NCR(AbstractLoss):
    """T-HN whose margin shrinks with the soft label of a pair: 1 for a true pair, 0 for a wrong one.

    Equation, for anchor V_i with hardest negative T^_i and the label y_i of its pair:

        [s(V_i, T^_i) - s(V_i, T_i) + margin * m(y_i)]+
        m(y) = (10^y - 1) / 9 ("exponential"), y ("linear"), or sin(pi y - pi / 2) / 2 + 1 / 2 ("sin")

    Labels are handed over with the scores: `loss_fn(scores, image_ids, given=labels)`; without them all pairs are held
    to be true and this is `TripletHN`. True and wrong pairs are told apart by `pair_losses`; `predict` makes labels
    from scores, and `clean_labels` joins them with what is known of a pair. For the first `warmup_epochs`, counted by
    `set_epoch`, the loss is the mean hinge over all negatives and labels do not matter.

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
        super().__init__(margin, reduction)
        require_choice("softness", softness, get_args(Softness))
        require_number("warmup_epochs", warmup_epochs)
        require_choice("average_over", average_over, get_args(AverageOver))
        require_choice("margin_of", margin_of, get_args(MarginOf))
        self.softness = softness
        self.warmup_epochs = warmup_epochs
        self.average_over = average_over
        self.margin_of = margin_of
        self._epoch = 0

    @classmethod
    def official(cls, **settings: Any) -> "NCR":
        """As in the authors' program: a sum, mean hinges over B entries, margins by the image in both directions."""
        return cls.paper(**{"average_over": "batch", "margin_of": "image", **settings})

    def set_epoch(self, epoch: int) -> None:
        """Epoch number `epoch`, counted from 0, begins."""
        self._epoch = epoch

    @property
    def phase(self) -> bool:
        """Whether all negatives are seen."""
        return self._epoch < self.warmup_epochs

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The sum of hinges while warming up, then the hardest negative."""
        return ("hinge_sum",) if self.phase else ("hardest",)

    def anchor_loss(self, anchors: AnchorStatistics) -> Float[Tensor, "*K 2 B"]:
        """The equation, one anchor."""
        if self.phase:
            return mean_hinge(anchors, self.average_over)
        margin: float | Tensor = self.margin
        if anchors.given is not None:
            # Official: the margin was added to every negative, and may have changed which is the hardest.
            margin = self._margins(anchors.given, anchors.positive) if self.margin_of == "anchor" else 0.0
        return hinge(anchors.hardest, anchors.positive, margin)

    def plateau(self, batch: int) -> float | None:
        """The margin of a true pair."""
        return mean_hinge_plateau(self.margin, batch, self.average_over) if self.phase else self.margin

    def pair_losses(
        self, scores: Float[Tensor, "B B"], image_ids: Int[Tensor, " B"] | Sequence[int] | None = None
    ) -> Float[Tensor, " B"]:
        """The mean hinges of a pair's two anchors, added: small for true pairs. Its gradient is that of the warm-up."""
        warming_up = NCR(self.margin, warmup_epochs=1, average_over=self.average_over)
        return warming_up.per_anchor(scores, image_ids).sum(dim=0)

    @torch.no_grad()
    def predict(
        self, scores: Float[Tensor, "B B"], image_ids: Int[Tensor, " B"] | Sequence[int] | None = None
    ) -> Float[Tensor, " B"]:
        """A soft label for every pair: `clip(margin - loss / 2, 0, margin)` in units of the best tenth of the batch."""
        told_apart = (self.margin - self.pair_losses(scores, image_ids) / 2).clamp(0, self.margin)
        best = told_apart.topk(len(scores) // 10 + 1).values.mean()
        # Official: where no pair is told apart this is 0/0. It is 0 here.
        return (told_apart / best.clamp(min=torch.finfo(best.dtype).tiny)).clamp(max=1)

    def clean_labels(
        self, probability: Float[Tensor, " B"], prediction: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"] | Float[Tensor, "B B"]:
        """`w + (1 - w) prediction`: labels of pairs held to be true with probability w."""
        # Official: the probability is a column there, so that the label of image i has the prediction of every text.
        probability = probability if self.margin_of == "anchor" else probability[:, None]
        return probability + (1 - probability) * prediction

    def check_given(self, given: Any, batch: int) -> Any:
        """Refuse labels that are not one number a pair, or a matrix where margins are the images'."""
        if given is None:
            return None
        check_floats("given", given)
        shape, matrix = tuple(given.shape), (batch, batch)
        if shape != (batch,) and (shape != matrix or self.margin_of == "anchor"):
            also = "" if self.margin_of == "anchor" else f" or {matrix}"
            raise ValueError(f"given must be soft labels, one a pair, of shape ({batch},){also}, got {shape}")
        return given.detach()

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
        if given is not None and self.margin_of == "image" and not self.phase:
            raise ValueError(
                "NCR with margin_of='image' adds a margin to every score and needs the matrix: call the loss with "
                "image_emb @ text_emb.T, or take margin_of='anchor'"
            )
        return super().from_embeddings(image_emb, text_emb, image_ids, given=given, tile=tile)

    def _dense(self, scores: Tensor, image_ids: Tensor | Sequence[int] | None, given: Any = None) -> AnchorStatistics:
        if given is None or self.margin_of == "anchor" or self.phase:
            return super()._dense(scores, image_ids, given)
        check_scores(scores)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        margins = self._margins(self.check_given(given, scores.shape[-1]), wide)
        margins = margins if margins.ndim == 2 else margins[:, None].expand(-1, len(margins))
        return super()._dense(wide + margins.clone().fill_diagonal_(0), image_ids, given)

    def _margins(self, labels: Tensor, like: Tensor) -> Tensor:
        labels = labels.to(like)
        if self.softness == "exponential":
            labels = (10**labels - 1) / 9
        if self.softness == "sin":
            labels = (math.pi * labels - math.pi / 2).sin() / 2 + 0.5
        return self.margin * labels
