"""Facts about a log that the rules of a verdict use, each computed once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from selhn.diagnose.evidence import ends, smoothed, told_numbers
from selhn.diagnose.logs import Column, Log
from selhn.diagnose.plateau import Plateau
from selhn.diagnose.stall import PATIENCE, StallAlarm

NEAR = 0.02
"""How far from a plateau a loss may be, as a share of it, if nothing but the loss is known."""
STEADY = 0.01
"""A loss that is stuck changes from row to row by less than this share of it; one that learns, by more."""
FAR = 0.1
LONG = 3 * PATIENCE
"""Steps after which positives and negatives ought to be separated; or twice the patience, if that is more."""


class Still(NamedTuple):
    """What the stall alarm makes of a log."""

    plateau: Plateau | None
    epsilon: float
    since: int | None = None
    """Where the still stretch began that lasts to the end of the log."""
    left: tuple[int, int] | None = None
    """The last long still stretch that came to an end."""
    stalled: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known about a log; all its rows have a finite loss."""

    log: Log
    mines: bool
    remedy: str | None
    patience: int  # steps without a break after which standing still is a stall: fewer in a short log
    length: float  # steps from the first row to the last
    is_long: bool  # whether positives and negatives ought to be separated by now
    gaps: Column | None  # delta_s, if the log has it
    first: float  # the loss in the first tenth
    last: float  # and in the last
    smooth: Column  # its running mean
    half: Column  # the loss in the second half
    quarters: list[float]  # its mean in each quarter
    is_quiet: bool  # whether it hardly moves in the second half
    learns: bool  # whether RSUM on dev says so, whatever the loss does
    stills: list[Still]  # what the alarm makes of each plateau, or of delta_s alone if none is given
    likely: Still | None  # the one that fits, if that is plain

    @classmethod
    def of(
        cls, log: Log, plateaus: Iterable[Plateau], epsilon: float, patience: int, mines: bool, remedy: str | None
    ) -> "Facts":
        """Compute them; the arguments are those of `judge`."""
        length, dev = float(log.steps[-1] - log.steps[0]), log.dev
        is_long = length >= max(LONG, 2 * patience)
        patience = int(min(patience, max(PATIENCE, length / 2)))
        ways: list[Plateau | None] = [*plateaus] or [None]
        first, last = ends(log.loss)
        # Of many guesses nearly all are far off, which is seen without reading the log row by row.
        far = [len(ways) > 1 and way is not None and abs(last - way.value) > FAR * way.value for way in ways]
        nothing = [Still(way, epsilon) for way in ways]
        stills = [one if is_far else _still(log, one, patience) for one, is_far in zip(nothing, far)]
        half = log.loss[len(log.loss) // 2 :]
        return cls(
            log, mines, remedy, patience, length, is_long, log.columns.get("delta_s"), first, last,
            smoothed(log.loss), half, [float(part.mean()) for part in np.array_split(log.loss, 4)],
            is_quiet=bool(half.std() < 3 * STEADY * abs(half.mean())),
            learns=len(dev) > 1 and dev[-1][1] > 1.5 * dev[0][1],
            stills=stills, likely=stills[0] if len(stills) == 1 else _likely(first, stills),
        )  # fmt: skip

    def at_end(self, still: Still) -> tuple[str, ...]:
        """Evidence: loss and delta_s in the end, and how other numbers changed."""
        where = "" if still.plateau is None else f", plateau {still.plateau.value:.4g}"
        told = []
        if self.gaps is not None:
            told = [f"delta_s {ends(self.gaps)[1]:.4f} at the end, epsilon {still.epsilon:g}"]
        return (f"{self.log.loss_name} {self.last:.4f} at the end{where}", *told, *told_numbers(self.log))


def _likely(first: float, stills: list[Still]) -> Still | None:
    """The one plateau, not guessed, above which training starts as it does with hard negatives."""
    known = [(one, one.plateau.value) for one in stills if one.plateau and not one.plateau.guessed]
    near = [one for one, value in known if 1 < first / value < 1.8]
    return near[0] if len(near) == 1 else None


def _still(log: Log, nothing: Still, patience: int) -> Still:
    plateau, epsilon = nothing.plateau, nothing.epsilon
    names = {"loss_per_anchor": "loss", "delta_s": "delta_s", "spread": "spread"}
    columns = {ours: log.columns[name].tolist() for ours, name in names.items() if name in log.columns}
    if plateau is None and "delta_s" not in columns:
        return nothing
    alarm = StallAlarm(None if plateau is None else plateau.value, epsilon, patience)
    left, before = None, None
    for number, step in enumerate(log.steps.astype(int).tolist()):
        row = {name: values[number] for name, values in columns.items()}
        alarm.update(step, {name: value for name, value in row.items() if value == value})
        if alarm.since is None and before is not None and step - before >= patience:
            left = (before, step)
        before = alarm.since
    stalled = alarm.since is not None and int(log.steps[-1]) - alarm.since >= patience
    if stalled and "delta_s" not in columns and plateau is not None:
        stalled = _sits(log, plateau, patience)
    return Still(plateau, epsilon, alarm.since, left, stalled)


def _sits(log: Log, plateau: Plateau, patience: int) -> bool:
    """Whether a loss, if it is all that is known, sits on a plateau rather than passing or hovering about it."""
    last = log.loss[log.steps >= log.steps[-1] - patience]
    if last[-max(1, len(last) // 3) :].mean() < (1 - NEAR / 4) * plateau.value:
        return False  # it is on its way down
    # A loss that learns may end up anywhere, also near a guess; but it has come a long way down.
    if plateau.guessed and ends(log.loss)[0] >= 3 * plateau.value:
        return False
    # Stuck scores are never separated, so the loss does not get below.
    steady = STEADY / 2 if plateau.guessed else STEADY
    off = last.mean() / plateau.value - 1
    return bool(last.std() < steady * plateau.value and -NEAR / 4 <= off <= NEAR)
