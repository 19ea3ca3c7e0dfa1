"""What all losses share: checking the input, both directions, the reduction, and the way from embeddings."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.types import Reduction
from selhn.kernels import AnchorStatistics, Statistic, Terms, dense_statistics, tiled_statistics
from selhn.kernels.statistics import CANDIDATES

LossT = TypeVar("LossT", bound="AbstractLoss")
AverageOver = Literal["negatives", "batch"]
"""What a mean over an anchor's negatives is divided by: their number (B - 1 without `image_ids`), or B."""


class AbstractLoss(nn.Module, ABC):
    """A function of the scores of B pairs, positives on the diagonal.

    A loss says which statistics of an anchor it needs and turns them into one number an anchor; it never sees which
    direction it works in. Everything else is here.

    Args:
        margin: the paper's lambda, by how much a positive should beat its negatives; 0 in a loss that has none.
        reduction: "mean" over the 2B anchors, "sum" over them, or "none" for shape (2, B): image anchors, text
            anchors. An anchor without negatives counts as 0.
        warmup_epochs: for how many epochs a scheduled loss is `warming_up`; 0 in a loss that has no schedule.
    """

    def __init__(self, margin: float = 0.2, reduction: Reduction = "mean", warmup_epochs: int = 0):
        super().__init__()
        require_number("margin", margin)
        require_choice("reduction", reduction, get_args(Reduction))
        require_number("warmup_epochs", warmup_epochs)
        self.margin = margin
        self.reduction = reduction
        self.warmup_epochs = warmup_epochs
        self._epoch = 0  # where a schedule stands is no setting of it

    @classmethod
    def paper(cls: type[LossT], **settings: Any) -> LossT:
        """The loss as the SelHN paper writes it: a sum over the anchors of both directions."""
        return cls(**{"reduction": "sum", **settings})

    @property
    @abstractmethod
    def needs(self) -> tuple[Statistic, ...]:
        """The statistics that `anchor_loss` reads."""

    @property
    def mines(self) -> bool:
        """Whether, as it computes now, it pulls at positives and at maxima over the negatives and at nothing else."""
        return all(name in CANDIDATES for name in self.needs)

    @property
    def terms(self) -> Terms:
        """The constants inside those statistics."""
        return Terms(margin=self.margin)

    @abstractmethod
    def anchor_loss(self, anchors: AnchorStatistics) -> Float[Tensor, "*K 2 B"]:
        """The loss of every anchor, from the statistics of its row or column."""

    def counted(self, anchors: AnchorStatistics) -> Bool[Tensor, "*K 2 B"] | None:
        """The anchors that a mean is taken over; None means all of them."""
        return None

    def plateau(self, batch: int) -> float | None:
        """What an anchor's loss among `batch` pairs comes to as all scores draw together, where a stalled run sits.

        None where that depends on what the scores are, and not only on their being equal.
        """
        return None

    def prepare_scores(self, scores: Float[Tensor, "*K B B"], given: Any) -> Float[Tensor, "*K B B"]:
        """What the statistics are taken of, if that is not the scores themselves."""
        return scores

    def prepare_embeddings(
        self, image_emb: Float[Tensor, "B d"], text_emb: Float[Tensor, "B d"]
    ) -> tuple[Float[Tensor, "B e"], Float[Tensor, "B e"]]:
        """Embeddings whose products are the `prepare_scores` of the products of these."""
        return image_emb, text_emb

    def learnt(self) -> list[nn.Parameter]:
        """What of the loss is trained with the model, by the same optimiser; nothing in most."""
        return []

    def numbers(self) -> dict[str, Tensor]:
        """What a log should say of the loss after each step."""
        return {}

    @property
    def warming_up(self) -> bool:
        """Whether this is one of the first `warmup_epochs` epochs."""
        return self._epoch < self.warmup_epochs

    @property
    def phase(self) -> Hashable:
        """What a scheduled loss computes now: steps recorded in one phase are not replayed in another."""
        return self.warming_up if self.warmup_epochs else None

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss that epoch number `epoch` (from 0) begins; only a scheduled loss cares."""
        self._epoch = epoch

    def check_given(self, given: Any, batch: int) -> Any:
        """What the loss was handed beyond the scores of `batch` pairs, checked; most losses take nothing."""
        if given is not None:
            raise SelhnError(f"{type(self).__name__} is a function of the scores alone: leave `given` out")

    def forward(
        self,
        scores: Float[Tensor, "*K B B"],
        image_ids: Int[Tensor, " B"] | Sequence[int] | None = None,
        *,
        given: Any = None,
    ) -> Tensor:
        """The loss of `scores[image, text]`, pairs on the diagonal: a 0-d tensor unless `reduction="none"`.

        Pairs with equal `image_ids` (several captions of one image in a batch) are not negatives of each other.
        Leading axes are further score matrices of the same pairs; the reduction runs over them too. Half-precision
        scores are compared and summed in float32. `given` is what a loss says it needs beyond the scores.

        On the CPU, NaN or infinite scores are an error. Elsewhere the check would stall the device, and a NaN score
        gives a NaN loss.
        """
        return self.reduce(self.statistics(scores, image_ids, given=given))

    def per_anchor(
        self,
        scores: Float[Tensor, "*K B B"],
        image_ids: Int[Tensor, " B"] | Sequence[int] | None = None,
        *,
        given: Any = None,
    ) -> Float[Tensor, "*K 2 B"]:
        """The loss of every anchor before the reduction: image anchors, then text anchors."""
        return self.reduce(self.statistics(scores, image_ids, given=given), "none")

    def statistics(
        self,
        scores: Float[Tensor, "*K B B"],
        image_ids: Int[Tensor, " B"] | Sequence[int] | None = None,
        *,
        given: Any = None,
        also: tuple[Statistic, ...] = (),
    ) -> AnchorStatistics:
        """What the loss knows of a batch, computed once; `reduce` makes the loss of it.

        `also` names further maxima, such as "hardest", for those who watch the training: they are taken of the scores
        as given, in the same pass if the loss takes its own of those too, and are found in `raw` of the result.
        """
        check_scores(scores)
        given = self.check_given(given, scores.shape[-1])
        ids = _check_image_ids(image_ids, scores.shape[-1], scores.device)
        # Selection needs more than half precision: 0.01 is under three steps of bfloat16 near 1.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        prepared, terms = self.prepare_scores(scores, given), self.terms
        if not (prepared is scores and terms.mask_same_image):
            raw = dense_statistics(scores.detach(), ids, also, Terms()) if also else None
            return replace(dense_statistics(prepared, ids, self.needs, terms), given=given, raw=raw)
        anchors = dense_statistics(scores, ids, tuple(dict.fromkeys([*self.needs, *also])), terms)
        return replace(anchors, given=given, raw=anchors)

    def reduce(self, anchors: AnchorStatistics, reduction: Reduction | None = None) -> Tensor:
        """The loss of a batch from its `statistics`; `reduction` takes the place of the loss's own."""
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
        image_ids: Int[Tensor, " B"] | Sequence[int] | None = None,
        *,
        given: Any = None,
        tile: int | None = None,
    ) -> Tensor:
        """`self(image_emb @ text_emb.T, image_ids)` without the B x B matrix: for batches of many thousand pairs.

        Value, gradients and tie rule are those of the dense form. The embeddings are taken as they are: normalise
        them first if the scores are to be cosines. Half-precision embeddings on an NVIDIA GPU from Hopper on go through
        fused kernels; `tile` asks for plain torch instead, on blocks of that side.
        """
        _check_embeddings(image_emb, text_emb)
        ids = _check_image_ids(image_ids, len(image_emb), image_emb.device)
        if tile is not None and tile < 1:
            raise SelhnError(f"tile must be at least 1, got {tile}: leave it out for a sensible size")
        given = self.check_given(given, len(image_emb))
        image_emb, text_emb = self.prepare_embeddings(image_emb, text_emb)
        anchors = tiled_statistics(image_emb, text_emb, ids, self.needs, self.terms, tile)
        return self.reduce(replace(anchors, given=given))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        settings = inspect.signature(type(self)).parameters
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name in settings)


def hinge(
    negative: Float[Tensor, "*K 2 B"], positive: Float[Tensor, "*K 1 B"], margin: float | Float[Tensor, "*L 1 B"]
) -> Float[Tensor, "*K 2 B"]:
    """`[s_n - s_p + margin]+`. A negative at -inf, that is none, gives 0 and no gradient."""
    return (negative - positive + margin).relu()


def mean_hinge(anchors: AnchorStatistics, over: AverageOver) -> Float[Tensor, "*K 2 B"]:
    """The mean of `[s_n - s_p + margin]+` over an anchor's negatives; 0 where it has none."""
    batch = anchors.num_negatives.shape[-1]
    return anchors.hinge_sum / (batch if over == "batch" else anchors.num_negatives.clamp(min=1))


def mean_hinge_plateau(margin: float, batch: int, over: AverageOver) -> float:
    """`mean_hinge` of an anchor that scores all of `batch` texts, or images, alike."""
    return margin * (batch - 1) / batch if over == "batch" else margin


def softmax_triplet(
    negative: Float[Tensor, "*K 2 B"], positive: Float[Tensor, "*K 1 B"], temperature: float
) -> Float[Tensor, "*K 2 B"]:
    """`-log(e^(s_p/t) / (e^(s_p/t) + e^(s_n/t)))`, Xuan et al. (2020). A negative at -inf gives 0 and no gradient."""
    # Not softplus: torch's turns into the identity above 20, which is off by 2e-9 there.
    return -nn.functional.logsigmoid((positive - negative) / temperature)


def require_number(name: str, value: float, *, above: float | None = None, signed: bool = False) -> None:
    """Refuse a setting that is not a number of at least 0 (of any sign where `signed`), or not above `above`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not is_number or (value < 0 and not signed) or (above is not None and value <= above):
        limit = "" if signed else " >= 0" if above is None else f" > {above}"
        raise SelhnError(f"{name} must be a number{limit}, got {value!r}")


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is not one of a few words."""
    if value not in choices:
        raise SelhnError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_floats(name: str, value: object) -> None:
    """Refuse what is not a tensor of floating-point numbers."""
    if not isinstance(value, Tensor):
        raise SelhnError(f"{name} must be a torch tensor, got {type(value).__name__}: use torch.as_tensor({name})")
    if not value.is_floating_point():
        raise SelhnError(f"{name} must hold floating-point numbers, got {value.dtype}: use {name}.float()")


def check_finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinite scores where looking costs nothing."""
    # A look at the values costs a host synchronisation on an accelerator and cannot be traced by the compiler.
    if value.device.type != "cpu" or torch.compiler.is_compiling() or value.isfinite().all():
        return
    place = (~value.isfinite()).nonzero()[0].tolist()
    raise SelhnError(
        f"{name} has a NaN or infinite value, first at {place}: the encoders have diverged (lower the learning rate, "
        "normalise with an epsilon), or a pair was masked by hand (pass image_ids instead)"
    )


def check_scores(scores: Tensor) -> None:
    """Refuse scores that are not a finite square matrix of numbers."""
    check_floats("scores", scores)
    shape = tuple(scores.shape)
    if scores.ndim < 2 or shape[-1] != shape[-2]:
        raise SelhnError(
            f"scores must be square, (B, B), with image i and text i a pair; got shape {shape}: "
            "give as many texts as images (repeat the image of a second caption and pass image_ids)"
        )
    if scores.numel() == 0:
        raise SelhnError(f"scores are empty, shape {shape}: a batch needs at least one pair")
    check_finite("scores", scores)


def _check_embeddings(image_emb: Tensor, text_emb: Tensor) -> None:
    for name, emb in (("image_emb", image_emb), ("text_emb", text_emb)):
        check_floats(name, emb)
        if emb.ndim != 2 or emb.numel() == 0:
            raise SelhnError(f"{name} must have shape (B, d) with B, d >= 1, got {tuple(emb.shape)}")
        check_finite(name, emb)
    if image_emb.shape != text_emb.shape:
        raise SelhnError(
            f"image_emb {tuple(image_emb.shape)} and text_emb {tuple(text_emb.shape)} must have one shape (B, d): "
            "row i of both is pair i"
        )
    if image_emb.dtype != text_emb.dtype or image_emb.device != text_emb.device:
        raise SelhnError(
            f"image_emb ({image_emb.dtype} on {image_emb.device}) and text_emb ({text_emb.dtype} on "
            f"{text_emb.device}) must agree in dtype and device: convert one with .to()"
        )


def _check_image_ids(
    image_ids: Tensor | Sequence[int] | None, batch: int, device: torch.device
) -> Int[Tensor, " B"] | None:
    if image_ids is None:
        return None
    ids = torch.as_tensor(image_ids)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise SelhnError(f"image_ids must be integers, got {ids.dtype}: number the images of the data set")
    if tuple(ids.shape) != (batch,):
        raise SelhnError(f"image_ids must have shape ({batch},), one image a pair, got {tuple(ids.shape)}")
    return ids.to(device)
