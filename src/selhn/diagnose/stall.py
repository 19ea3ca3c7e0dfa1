"""The stall alarm for hardest-negative mining, and the plateaus at which an unknown loss may sit."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.losses import AbstractLoss, InfoNCE
from selhn.losses.base import SEPARATION, as_ours

NEW_SHARE = 0.05
"""Weight of a new number in a running mean: about the last 20 steps count."""
PATIENCE = 250
"""Consecutive still steps that make a stall."""
NEAR = 0.05
"""How far from its plateau a stalled loss may be, as a share of it; epsilon is that share of the margin."""
GROWTH, FLOOR = 3.0, 1e-4
"""Scores spread once they are this many times as wide as they were; below the floor it is only noise."""
WINS = 0.1
"""Positives win once they score above their hardest negatives by more than this share of the scores' spread."""
LARGEST_COSINE = 1.5
"""Scores beyond it are not cosines: logits, say, or products of vectors that are not normalised."""
SPREADS = 10.0
"""Scores of an untrained model spread by about a tenth of the size that they can have."""
MARGIN = 0.2
"""The margin that nearly all image-text matching programs use."""
REMEDY = (
    "train with TripletSelHN (loss=selhn), which averages over the negatives until they are separated; "
    "with batches of a thousand pairs or more, with TAL (loss=tal loss.margin=0.2 loss.temperature=0.05)"
)
"""In docs/results.md TAL learns at every batch size, and T-HN after a warm-up may stall like T-HN."""
HEARD = ("loss_per_anchor", "delta_s", "spread", "s_p", "s_n")
"""The numbers of a row that the alarm takes."""
BATCHES = (16, 32, 48, 64, 80, 96, 100, 128, 160, 200, 256, 320, 384, 512, 1024)
"""Batch sizes that are tried if a log does not name its own."""


@dataclass
class StallAlarm:
    """Watches every step, and reports when the loss sits on its plateau and when it has left it.

    A stall is, for `patience` consecutive steps: loss per anchor within 5 % of the plateau, delta_s below
    epsilon, and scores that do not spread. The first says that a negative scores like the positive for every
    anchor, the second that the hardest one does, the third that it is not getting better. All are
    running means, because single batches vary too much. A number that a row does not have is
    ignored. If scores are not cosines, epsilon counts in units of their size; then a delta_s below it may also
    be that of a model whose positives win, which is not a stall.
    """

    plateau: float | None
    """The loss per anchor if all scores are equal (`AbstractLoss.plateau`): the margin, for T-HN. If it is None,
    delta_s and the spread decide."""
    epsilon: float = SEPARATION
    patience: int = PATIENCE
    remedy: str = REMEDY
    means: dict[str, float] = field(default_factory=dict)
    """The running means of the three numbers."""
    last: int | None = None
    """The latest step."""
    since: int | None = None
    """The step at which the present still stretch began."""
    least_spread: float = 0.0
    """The smallest spread of the scores in that stretch."""
    moving_since: int | None = None
    """The step at which training began to move again, after the alarm."""
    size: float = 1.0
    """How large the scores are, if they are not cosines."""
    said: str | None = None
    """What the alarm said, until training has moved again for as long as it had stood still."""

    def update(self, step: int, row: Mapping[str, float]) -> str | None:
        """Take the numbers of one step. Returns a sentence when the alarm starts or ends, otherwise None.

        A step with a number that is not finite says nothing about a stall and is skipped.
        """
        heard = {name: row[name] for name in HEARD if name in row}
        if not all(map(math.isfinite, heard.values())):
            return None
        # The mean forgets at the same rate per step, however many steps are between rows.
        share = NEW_SHARE if self.last is None else 1 - (1 - NEW_SHARE) ** max(1, step - self.last)
        self.last = step
        for name, value in heard.items():
            before = self.means.get(name, value)
            self.means[name] = before + share * (value - before)
        loss, delta_s = self.means.get("loss_per_anchor"), self.means.get("delta_s")
        if {"s_p", "s_n", "spread"} <= heard.keys():
            self.size = max(self.size, size_of(heard["s_p"], heard["s_n"], heard["spread"]))
        if not self._sits(loss) or (delta_s is not None and not delta_s < self.epsilon * self.size):
            self.since = None
            if self.said is None:
                return None
            began = self.moving_since = step if self.moving_since is None else self.moving_since
            if step - began < self.patience:
                return None
            self.said = self.moving_since = None
            return f"Training has recovered: it left the plateau at step {began:,}."
        self.moving_since = None
        spread = self.means.get("spread", 0.0)
        if self.since is None or spread > GROWTH * max(self.least_spread, FLOOR):
            self.since, self.least_spread = step, spread
        self.least_spread = min(self.least_spread, spread)
        if self.said is not None or step - self.since < self.patience:
            return None
        self.said = self._sentence(step - self.since)
        return self.said

    def _sits(self, loss: float | None) -> bool:
        """Whether the loss is where all scores are equal, or if that is not known, whether no positive wins."""
        ahead = self.means.get("s_p", 0.0) - self.means.get("s_n", 0.0)
        if self.plateau is None or loss is None:
            return self.size == 1 or ahead <= WINS * self.means.get("spread", 0.0)
        # The hardest negatives score above the positives, by a fraction of a cosine but by more in logits.
        return abs(loss - self.plateau) <= NEAR * self.plateau + max(0.0, -ahead)

    def _sentence(self, steps: int) -> str:
        loss, delta_s = self.means.get("loss_per_anchor"), self.means.get("delta_s")
        said = f"Training has stalled: for {steps} steps "
        if self.plateau is None or loss is None:
            said += "the hardest negatives have scored like the positives"
        else:
            said += "the loss per anchor has sat where all scores are equal "
            said += f"({loss:.4f}, plateau {self.plateau:.4g})"
        if delta_s is not None:
            said += f": the hardest negative scores within {delta_s:.4f} of the positive"
        if "spread" in self.means:
            said += ", and the scores do not spread"
        return f"{said}. What helps: {self.remedy}."


def size_of(s_p: float, s_n: float, spread: float) -> float:
    """How large scores are, from those of positives and hardest negatives and their spread: 1 for cosines."""
    largest = max(abs(s_p), abs(s_n))
    return max(largest, SPREADS * spread) if largest > LARGEST_COSINE else 1.0


def make_alarm(loss: Callable[..., Tensor], steps_per_epoch: int) -> StallAlarm | None:
    """The stall alarm for a loss of selhn; its plateau is set at the start of every epoch."""
    ours = as_ours(loss)
    if ours is None:
        return None
    # With a separation smaller than the usual one, SelHN mines while scores are still, and stalls like T-HN.
    epsilon, steps = max(ours.separation, SEPARATION), patience(ours, steps_per_epoch)
    return StallAlarm(None, epsilon, patience=steps, remedy=ours.remedy or REMEDY)


def watched_plateau(loss: AbstractLoss, batch: int) -> float | None:
    """The plateau that the alarm watches: None if a stalled run may also stay below it."""
    return loss.plateau(batch) if loss.watches_plateau else None


def patience(loss: AbstractLoss, steps_per_epoch: int) -> int:
    """Steps a loss may stand still: one that averages over negatives may need epochs to leave its plateau."""
    return PATIENCE if loss.mines else max(PATIENCE, 4 * steps_per_epoch)


def epsilon_of(loss: Callable[..., Tensor] | None) -> float:
    """The delta_s above which an anchor counts as separated: what the loss says, such as SelHN's epsilon."""
    ours = as_ours(loss)
    return SEPARATION if ours is None else ours.separation


class Plateau(NamedTuple):
    """A value at which a loss may stand still."""

    value: float
    words: str
    guessed: bool = False
    """Whether the size of the batch was guessed, so that a fit must be close."""
    remedy: str | None = None
    """What helps a loss that sits there, if not `REMEDY`."""


def plateaus(
    margin: float | None = None, batch: int | None = None, reduction: str | None = None
) -> Iterator[Plateau]:
    """The plateaus of T-HN for every reduction, from `margin` per anchor to 2 B `margin`; then of InfoNCE.

    `reduction` "mean" or "sum" keeps only those; arguments that are None are guessed.
    """
    if reduction not in (None, "mean", "sum"):
        raise SelhnError(f"reduction must be mean or sum, got {reduction!r}")
    if margin is not None and not margin > 0:
        raise SelhnError(f"margin must be above 0, got {margin}")
    if batch is not None and batch < 2:
        raise SelhnError(f"batch must be at least 2, got {batch}: it is the number of pairs in a step")
    margin, sizes = margin or MARGIN, (batch,) if batch else BATCHES
    levels: list[tuple[float, str, str, str | None]] = [
        (margin, "the ", f"margin, {margin:g} per anchor", None)
    ]
    if batch:
        words = f"log {batch}, InfoNCE with all texts equally likely"
        levels.append((math.log(batch), "", words, InfoNCE.remedy))
    for value, article, words, remedy in levels:
        if reduction != "sum":
            yield Plateau(value, f"{article}{words}", remedy=remedy)
            yield Plateau(2 * value, f"2 x {words}, both directions", remedy=remedy)
        if reduction != "mean":
            for anchors in dict.fromkeys(directions * size for directions in (2, 1) for size in sizes):
                summed = f"{anchors} x {words}, summed over {anchors} anchors"
                if not batch:
                    summed += f" (a batch of {anchors // 2}, or one direction of {anchors})"
                yield Plateau(anchors * value, summed, batch is None, remedy)
