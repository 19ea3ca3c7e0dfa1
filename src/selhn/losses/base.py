"""What all losses share: checking the input, both directions, the reduction, and `from_embeddings`."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError, warn
from selhn.base.types import Products, Reduction
from selhn.losses.anchors import anchor_statistics
from selhn.losses.checks import (
    ImageIds,
    Looks,
    ScoreRange,
    Scores,
    check_image_ids,
    checked_scores,
    require_choice,
    require_number,
)
from selhn.losses.statistics import AnchorStatistics, Constants, Needs, PerAnchor, only_maxima, with_constants

LossT = TypeVar("LossT", bound="AbstractLoss")
SEPARATION = 0.01
"""The epsilon of all runs of the SelHN paper."""
AverageOver = Literal["negatives", "batch"]
"""Divisor of a mean over an anchor's negatives: their number (B - 1 without `image_ids`), or B."""


class AbstractLoss(nn.Module, ABC):
    """A function of the scores of B pairs, positives on the diagonal.

    A loss says which statistics of an anchor it `needs` (`STATISTICS`), and turns them into one number per
    anchor; it never sees which direction it works in. Everything else is here. A loss with a
    schedule, learnt parameters or a further input also inherits `Scheduled`, `Learns` or `TakesGiven`, before
    this class.

    Args:
        margin: the paper's lambda, by how much a positive should beat its negatives; 0 in a loss without one.
        reduction: "mean" over the 2B anchors, "sum" over them, or "none" for shape (2, B): image anchors,
            text anchors. An anchor without negatives counts as 0.
    """

    made_for: ScoreRange | None = None
    """The scores that the loss is made for; it warns once of others. None: all scores."""
    mask_same_image = True
    """Whether other pairs of an anchor's image are left out of its candidates."""
    remedy: str | None = None
    """What helps if training with it stalls, where that is not what usually helps."""
    watches_plateau = True
    """Whether a stalled run sits at `plateau`; False if it may also sit below."""
    takes_given = False
    """Whether it may be `given` more than scores: see `TakesGiven`."""

    def __init__(self, margin: float = 0.2, reduction: Reduction = "mean"):
        super().__init__()
        self.margin = require_number("margin", margin)
        self.reduction = require_choice("reduction", reduction, get_args(Reduction))
        self._looks = Looks()

    @classmethod
    def paper(cls: type[LossT], **settings: Any) -> LossT:
        """The loss as the SelHN paper writes it: a sum over the anchors of both directions."""
        return cls(**{"reduction": "sum", **settings})

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """The statistics that `anchor_loss` reads, with the constants of those that take any."""

    @abstractmethod
    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        """The loss of every anchor, from the statistics of its row or column."""

    def prepared(self, scores: Scores | Products, given: Any = None) -> Scores | Products:
        """The scores that the statistics are of, if they are not of `scores` unchanged."""
        return scores

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """The anchors that a mean is taken over; None means all of them."""
        return None

    def plateau(self, batch: int) -> float | None:
        """The loss of an anchor when all scores of `batch` pairs are equal: a stalled run stays there.

        None if it depends on the scores themselves, not only on their being equal.
        """
        return None

    def numbers(self) -> dict[str, Tensor]:
        """Numbers of its own for the log after each step, such as a learnt temperature."""
        return {}

    @property
    def separation(self) -> float:
        """The |s_n - s_p| above which an anchor counts as separated."""
        return SEPARATION

    @property
    def warming_up(self) -> bool:
        """Whether a `Scheduled` loss is in its first epochs."""
        return False

    @property
    def phase(self) -> Hashable:
        """The present phase of a schedule: steps recorded in one phase are not replayed in another."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss that epoch number `epoch` (from 0) begins; only a `Scheduled` loss changes."""

    def learnt(self) -> list[nn.Parameter]:
        """The parameters that the model's optimiser trains too."""
        return []

    def check_given(self, given: Any, batch: int) -> Any:
        """`given` for a batch of that many pairs, checked."""
        raise SelhnError(f"{type(self).__name__} is a function of the scores alone: leave `given` out")

    @property
    def mines(self) -> bool:
        """Whether, in its present phase, only positives and hardest negatives receive gradients."""
        return only_maxima(self.needs)

    def forward(self, scores: Scores, image_ids: ImageIds = None, *, given: Any = None) -> Tensor:
        """The loss of `scores[image, text]`, pairs on the diagonal: a 0-d tensor unless `reduction="none"`.

        Pairs with equal `image_ids` (several captions of one image in a batch) are not negatives of each
        other. Leading axes are further score matrices of the same pairs; the reduction runs over them too.
        Half-precision scores are compared and summed in float32. `given` is what a loss needs beyond them.

        On the CPU, NaN or infinite scores are an error. Elsewhere the check would stall the device, and a NaN
        score gives a NaN loss.
        """
        return self.reduce(self.statistics(scores, image_ids, given=given))

    def per_anchor(self, scores: Scores, image_ids: ImageIds = None, *, given: Any = None) -> PerAnchor:
        """The loss of every anchor before the reduction: image anchors, then text anchors."""
        return self.reduce(self.statistics(scores, image_ids, given=given), "none")

    def statistics(
        self,
        scores: Scores | Products,
        image_ids: ImageIds = None,
        *,
        given: Any = None,
        also: tuple[str, ...] = (),
    ) -> AnchorStatistics:
        """Everything the loss needs to know about a batch, computed once; `reduce` turns it into the loss.

        `also` names further maxima, such as "hardest", for a probe. They are of the unchanged scores,
        computed in the same pass if the loss does not scale its scores, and stored in `raw` of the result.
        """
        scores = checked_scores(scores)
        batch, device = scores.shape[-1], scores.device
        self._looks(scores, self.made_for)
        given = self._checked(given, batch)
        ids = check_image_ids(image_ids, batch, device)
        prepared = self.prepared(scores, given)
        unchanged = prepared is scores and self.mask_same_image
        needs = {name: () for name in also if unchanged} | with_constants(self.needs)
        anchors = anchor_statistics(prepared, ids, needs, self.mask_same_image)
        raw = None
        if also:
            raw = anchors if unchanged else anchor_statistics(scores.detach(), ids, also)
        return replace(anchors, given=given, raw=raw)

    def reduce(self, anchors: AnchorStatistics, reduction: Reduction | None = None) -> Tensor:
        """The loss of a batch from its `statistics`; `reduction` replaces the loss's own."""
        losses, reduction = self.anchor_loss(anchors), reduction or self.reduction
        if reduction == "none":
            return losses
        counted = self.counted(anchors) if reduction == "mean" else None
        if counted is not None:
            return losses.sum() / counted.sum().clamp(min=1)
        return losses.mean() if reduction == "mean" else losses.sum()

    def from_embeddings(
        self,
        image_emb: Float[Tensor, "B d"],
        text_emb: Float[Tensor, "B d"],
        image_ids: ImageIds = None,
        *,
        given: Any = None,
    ) -> Tensor:
        """`self(image_emb @ text_emb.T, image_ids)` without the B x B matrix, for very large batches.

        Value, gradients and tie rule are those of the dense form. The embeddings are used unchanged:
        normalise them first if the scores are to be cosines. Half-precision embeddings on an NVIDIA GPU from
        Hopper on go through fused kernels.
        """
        return self.reduce(self.statistics(Products(image_emb, text_emb), image_ids, given=given))

    def _checked(self, given: Any, batch: int) -> Any:
        if given is not None:
            return self.check_given(given, batch)
        if self.takes_given and not self.warming_up and not torch.compiler.is_compiling():
            warn(
                f"{type(self).__name__} without `given` is an ordinary loss of the scores: pass what its "
                "documentation says"
            )
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in loss_settings(self))


class Scheduled:
    """A loss over all negatives in its first epochs: call `set_epoch` at the start of every epoch."""

    warmup_epochs: int
    margin: float
    _epoch: int | None = None
    """None until it is told."""

    @property
    def needs(self) -> dict[str, Constants]:
        return {"hinge_sum": (self.margin,)} if self.warming_up else {"hardest": ()}

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    @property
    def warming_up(self) -> bool:
        return (self._epoch or 0) < self.warmup_epochs

    @property
    def phase(self) -> Hashable:
        return self.warming_up if self.warmup_epochs else None


class Learns:
    """A loss with parameters that are trained with the model, by the same optimiser."""

    @abstractmethod
    def learnt(self) -> list[nn.Parameter]:
        """The parameters that the optimiser of the model trains too."""


class TakesGiven:
    """A loss that may be `given` more than scores; it receives what its `check_given` returns."""

    takes_given = True

    @abstractmethod
    def check_given(self, given: Any, batch: int) -> Any:
        """Refuse an input that does not fit a batch of that many pairs."""


def as_ours(loss: object) -> AbstractLoss | None:
    """The loss if it is one of selhn, which says more about itself than a function or module from outside."""
    return loss if isinstance(loss, AbstractLoss) else None


def learnt_by(loss: object) -> list[nn.Parameter]:
    """The parameters of a loss that the model's optimiser trains; all parameters of a module from outside."""
    if (ours := as_ours(loss)) is not None:
        return ours.learnt()
    if isinstance(loss, nn.Module):
        return [parameter for parameter in loss.parameters() if parameter.requires_grad]
    return []


def loss_settings(loss: AbstractLoss) -> dict[str, Any]:
    """The settings that a loss was created with; learnt ones with their initial value."""
    settings = inspect.signature(type(loss)).parameters
    return {key.lstrip("_"): value for key, value in vars(loss).items() if key.lstrip("_") in settings}


def hinge(
    negative: PerAnchor, positive: Float[Tensor, "*K 1 B"], margin: float | Float[Tensor, "*L 1 B"]
) -> PerAnchor:
    """`[s_n - s_p + margin]+`. A negative at -inf (no negative) gives 0 and no gradient."""
    return (negative - positive + margin).relu()


def mean_hinge(anchors: AnchorStatistics, over: AverageOver) -> PerAnchor:
    """The mean of `[s_n - s_p + margin]+` over an anchor's negatives; 0 if it has none."""
    batch = anchors.num_negatives.shape[-1]
    return anchors["hinge_sum"] / (batch if over == "batch" else anchors.num_negatives.clamp(min=1))


def mean_hinge_plateau(margin: float, batch: int, over: AverageOver) -> float:
    """`mean_hinge` of an anchor if all scores of the batch are equal."""
    return margin * (batch - 1) / batch if over == "batch" else margin
