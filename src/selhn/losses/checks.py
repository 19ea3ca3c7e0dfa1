"""Input checks of the losses; each message says what to do."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Parameter

from selhn.base.errors import SelhnError, warn
from selhn.base.names import plain
from selhn.base.types import Products, at_least_float32

Scores: TypeAlias = Float[Tensor, "*K B B"]
"""`scores[image, text]` of B pairs, positives on the diagonal; leading axes are further matrices of them."""
ImageIds: TypeAlias = Int[Tensor, " B"] | Sequence[int] | None
"""The image of every pair. Pairs of one image are not negatives of each other."""
NumberT = TypeVar("NumberT", bound=float)
WordT = TypeVar("WordT", bound=str)


def require_number(
    name: str, value: NumberT, *, above: float | None = None, signed: bool = False, infinite: bool = False
) -> NumberT:
    """A setting as a number of Python: at least 0 (any number if `signed`), or above `above`."""
    value = plain(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not is_number or (value < 0 and not signed) or (above is not None and value <= above):
        limit = "" if signed else " >= 0" if above is None else f" > {above}"
        raise SelhnError(f"{name} must be a number{limit}, got {value!r}")
    if math.isinf(value) and not infinite:
        raise SelhnError(f"{name} must be finite, got {value!r}")
    return value


def require_choice(name: str, value: WordT, choices: tuple[str, ...]) -> WordT:
    """Check a setting that must be one of a few words."""
    if value not in choices:
        raise SelhnError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_floats(name: str, value: object) -> None:
    """Refuse anything but a tensor of floating-point numbers."""
    if not isinstance(value, Tensor):
        raise SelhnError(
            f"{name} must be a torch tensor, got {type(value).__name__}: use torch.as_tensor({name})"
        )
    if not value.is_floating_point():
        raise SelhnError(f"{name} must hold floating-point numbers, got {value.dtype}: use {name}.float()")


def check_finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinite values on the CPU."""
    # The sum first: it takes a thirtieth of the time, and only numbers that overflow need a second look.
    if not can_look(value) or value.sum().isfinite() or value.isfinite().all():
        return
    place = (~value.isfinite()).nonzero()[0].tolist()
    raise SelhnError(
        f"{name} has a NaN or infinite value, first at {place}: the encoders have diverged (lower the "
        "learning rate, normalise with an epsilon), or a pair was masked by hand (pass image_ids instead)"
    )


def can_look(value: Tensor) -> bool:
    """Whether values may be read: on an accelerator that would wait, under a compiler it is impossible."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


class ScoreRange(NamedTuple):
    """The scores that a loss is made for, and what to do about others."""

    low: float
    high: float
    advice: str
    always: bool = True
    """Whether the formula needs the range; otherwise only the first batches are expected to be inside."""


EARLY = 8
"""Calls in which a loss on a CPU looks at its scores; then it looks at calls 16, 32, 64 ... Elsewhere: at the first."""
SAMPLE = 128
"""Pairs whose scores are computed to look at them, where a loss has embeddings only."""
FEWEST_ROWS = 8
"""Fewer rows of scores may have length 1 by accident."""


class Looks:
    """When a loss may read its scores back, to warn once: on a device only in the first call, which has to wait."""

    def __init__(self) -> None:
        self._calls = 0
        self._spoken = False

    def __call__(self, scores: Tensor | Products, made_for: ScoreRange | None) -> None:
        """Warn of scores, or of embeddings, that are almost certainly a mistake."""
        value = scores.images if isinstance(scores, Products) else scores
        if torch.compiler.is_compiling() or self._spoken or not _readable(value):
            return
        self._calls += 1
        on_cpu = value.device.type == "cpu"
        early = self._calls <= (EARLY if on_cpu else 1)
        if early or (on_cpu and not self._calls & (self._calls - 1)):
            with torch.no_grad():
                odd = odd_scores(scores, made_for if early or (made_for and made_for.always) else None)
            if odd is not None:
                self._spoken = True
                warn(odd)


def _readable(value: Tensor) -> bool:
    """Whether a value can be read back: not of tensors without memory, or while a CUDA graph is recorded."""
    if value.is_meta or type(value) not in (Tensor, Parameter):
        return False
    return not (value.is_cuda and torch.cuda.is_current_stream_capturing())


def odd_scores(scores: Tensor | Products, made_for: ScoreRange | None) -> str | None:
    """What is wrong with the scores and what to do; None if nothing seems to be."""
    if isinstance(scores, Products):
        for name, emb in (("image_emb", scores.images), ("text_emb", scores.texts)):
            if not 0.9 < (length := float(emb.float().norm(dim=1).mean())) < 1.1:
                return (
                    f"the rows of {name} have a mean length of {length:.3g}, so the scores are not cosines, which "
                    f"margins and temperatures are made for: pass torch.nn.functional.normalize({name}, dim=1)"
                )
        scores = scores.images[:SAMPLE] @ scores.texts[:SAMPLE].T
    elif scores.ndim == 2 and len(scores) >= FEWEST_ROWS:
        lengths = scores.float().norm(dim=1)
        if bool(((lengths - 1).abs().max() < 0.01) & (scores.diagonal().abs().mean() < 0.9)):
            return (
                "all rows of scores have length 1, as those of embeddings: pass image_emb @ text_emb.T, or call "
                "from_embeddings(image_emb, text_emb)"
            )
    if made_for is not None:
        low, high = torch.stack(scores.float().aminmax()).tolist()
        if low < made_for.low or high > made_for.high:
            return made_for.advice
    return None


def check_square(scores: Tensor | Products) -> None:
    """Refuse scores that are not a square matrix of numbers; those of embeddings always are."""
    if isinstance(scores, Products):
        return
    check_floats("scores", scores)
    shape = tuple(scores.shape)
    if scores.ndim < 2 or shape[-1] != shape[-2]:
        raise SelhnError(
            f"scores must be square, (B, B), with image i and text i a pair; got shape {shape}: from embeddings, pass "
            "image_emb @ text_emb.T or call from_embeddings(image_emb, text_emb); with several captions per image, "
            "repeat the image and pass image_ids"
        )
    if scores.numel() == 0:
        raise SelhnError(f"scores are empty, shape {shape}: a batch needs at least one pair")


def checked_scores(scores: Tensor | Products) -> Tensor | Products:
    """Scores as a loss computes with them; refuses those that are not a finite square matrix of numbers."""
    if isinstance(scores, Products):
        check_embeddings(scores.images, scores.texts)
        return scores
    check_square(scores)
    check_finite("scores", scores)
    # Mining needs more than half precision: 0.01 is under three steps of bfloat16 near 1.
    return at_least_float32(scores)


def check_embeddings(image_emb: Tensor, text_emb: Tensor) -> None:
    """Refuse embeddings that are not two finite matrices of one shape, precision and device."""
    for name, emb in (("image_emb", image_emb), ("text_emb", text_emb)):
        check_floats(name, emb)
        if emb.ndim != 2 or emb.numel() == 0:
            raise SelhnError(f"{name} must have shape (B, d) with B, d >= 1, got {tuple(emb.shape)}")
        check_finite(name, emb)
    if image_emb.shape != text_emb.shape:
        raise SelhnError(
            f"image_emb {tuple(image_emb.shape)} and text_emb {tuple(text_emb.shape)} must have one shape "
            "(B, d): row i of both is pair i"
        )
    if image_emb.dtype != text_emb.dtype or image_emb.device != text_emb.device:
        raise SelhnError(
            f"image_emb ({image_emb.dtype} on {image_emb.device}) and text_emb ({text_emb.dtype} on "
            f"{text_emb.device}) must agree in dtype and device: convert one with .to()"
        )


def as_image_ids(image_ids: ImageIds, batch: int) -> Int[Tensor, " B"] | None:
    """The ids as a tensor; refuses what is not one integer per pair."""
    try:
        ids = None if image_ids is None else torch.as_tensor(image_ids)
    except (ValueError, TypeError, RuntimeError) as error:  # names of files, say, or lists of unequal length
        raise SelhnError(
            f"image_ids must be integers, one per pair ({error}): number the images of the data set"
        ) from None
    if ids is not None and ids.is_floating_point() and ids.ndim == 2:
        raise SelhnError(
            "two embeddings were passed, but a loss takes scores (and image_ids): call from_embeddings(image_emb, "
            "text_emb), or pass image_emb @ text_emb.T"
        )
    if ids is not None and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise SelhnError(f"image_ids must be integers, got {ids.dtype}: number the images of the data set")
    if ids is not None and tuple(ids.shape) != (batch,):
        raise SelhnError(f"image_ids must have shape ({batch},), one image per pair, got {tuple(ids.shape)}")
    return ids


def check_image_ids(image_ids: ImageIds, batch: int, device: torch.device) -> Int[Tensor, " B"] | None:
    """The ids of a whole batch on `device`; warns if no pair has a negative, as far as `can_look`."""
    ids = as_image_ids(image_ids, batch)
    one_image = ids is not None and can_look(ids) and bool((ids == ids[0]).all())
    if (batch == 1 or one_image) and not torch.compiler.is_compiling():
        warn(
            "the batch has no negatives (it is one pair, or all pairs are of one image), so there is "
            "nothing to learn from it: use larger batches, of several images"
        )
    return None if ids is None else ids.to(device)
