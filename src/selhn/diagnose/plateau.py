"""Where a loss sits when all scores are equal, for logs that do not say what loss they are of."""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from selhn.base.errors import SelhnError

Summing = Literal["mean", "sum"]
MARGIN = 0.2
"""What nearly all image-text matching programs take."""
BATCHES = (16, 32, 48, 64, 80, 96, 100, 128, 160, 200, 256, 320, 384, 512, 1024)
"""Sizes that are tried if a log does not say its own."""


class Plateau(NamedTuple):
    """A value at which a loss may stand still."""

    value: float
    words: str
    guessed: bool = False
    """Whether the size of the batch was guessed, so that a fit must be close."""


def plateaus(margin: float | None = None, batch: int | None = None, reduction: str | None = None) -> Iterator[Plateau]:
    """The plateaus of T-HN however it is summed, from `margin` per anchor to 2 B `margin`; then of InfoNCE.

    `reduction` "mean" or "sum" leaves out the others; what is None is guessed.
    """
    if reduction is not None and reduction not in get_args(Summing):
        raise SelhnError(f"reduction must be mean or sum, got {reduction!r}")
    if margin is not None and not margin > 0:
        raise SelhnError(f"margin must be above 0, got {margin}")
    if batch is not None and batch < 2:
        raise SelhnError(f"batch must be at least 2, got {batch}: it is the number of pairs in a step")
    margin = margin or MARGIN
    if reduction != "sum":
        yield Plateau(margin, f"the margin, {margin:g} an anchor")
        yield Plateau(2 * margin, f"2 x margin, {margin:g} for each direction")
    if reduction != "mean":
        sizes = (batch,) if batch else BATCHES
        for anchors in dict.fromkeys(directions * size for directions in (2, 1) for size in sizes):
            words = f"{anchors} x margin, {margin:g} an anchor, summed over {anchors} anchors"
            if not batch:
                words += f" (a batch of {anchors // 2}, or one direction of {anchors})"
            yield Plateau(anchors * margin, words, guessed=batch is None)
    if not batch:
        return
    chance, words = math.log(batch), f"log {batch}, InfoNCE with all texts equally likely"
    if reduction != "sum":
        yield Plateau(chance, words)
        yield Plateau(2 * chance, f"2 x {words}, both directions")
    if reduction != "mean":
        for anchors in (2 * batch, batch):
            yield Plateau(anchors * chance, f"{anchors} x {words}, summed over {anchors} anchors")
