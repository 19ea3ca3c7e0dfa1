"""Facts about a log that the rules of a verdict use, each computed once."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from selhn.diagnose.held_out import HeldOut
from selhn.diagnose.logs import Column, Log, smoothed
from selhn.diagnose.stall import PATIENCE, WINS, Plateau, StallAlarm, size_of

ENOUGH_ROWS = 8
NEAR = 0.02
"""How far from its plateau a loss may be, as a share of it, if only the loss is known."""
STEADY = 0.01
"""From row to row, a stuck loss changes by less than this share of its value; one that learns, by more."""
LEAVES = 0.9985
"""Below this share of its plateau a loss is not stuck: stuck scores cannot bring it lower."""
FAR = 0.1
FURTHEST = 1.8
"""Training with hard negatives starts at most this many times above its plateau. A loss that fell by less may

not have fallen below a plateau."""
BELOW = 0.75
"""Below this share of its plateau a run has learnt: equal scores alone explain any loss above it."""
TINY = 1e-9
SPIKE = 6.0
"""A loss this many times further than usual, as a share, from the median of the rows around it is a spike."""
LONG = 3 * PATIENCE
"""Steps after which positives and negatives should be separated, or twice the patience if that is more."""


class Still(NamedTuple):
    """What the stall alarm says about a log."""

    plateau: Plateau | None
    since: int | None = None
    """Start of the still stretch that lasts to the end of the log."""
    left: tuple[int, int] | None = None
    """The last long still stretch that ended."""
    stalled: bool = False


class Facts:
    """What is known about a log; all its rows have a finite loss. The arguments are those of `judge`."""

    def __init__(
        self,
        log: Log,
        ways: Iterable[Plateau],
        epsilon: float,
        patience: int,
        mines: bool,
        remedy: str | None,
    ):
        log = replace(log, columns={**log.columns, "loss": without_spikes(log.loss)})
        self.log, self.mines, self.remedy = log, mines, remedy
        self.length = float(log.steps[-1] - log.steps[0])
        # Whether positives and negatives should be separated by now.
        self.is_long = self.length >= max(LONG, 2 * patience)
        # Consecutive still steps that make a stall: fewer in a short log.
        self.patience = int(min(patience, max(PATIENCE, self.length / 2)))
        self.gaps = log.columns.get("delta_s")
        self.first, self.last = ends(log.loss)
        self.course, self.others = from_to(log.loss_name, self.first, self.last), told_numbers(log)
        self.smooth = smoothed(log.loss)
        self.half = log.loss[len(log.loss) // 2 :]
        self.is_quiet = bool(self.half.std() < 3 * STEADY * abs(self.half.mean()))
        self.quarters = [float(part.mean()) for part in np.array_split(log.loss, 4)]
        first, second, third, fourth = self.quarters
        self.noise = float(np.diff(log.loss).std() / (len(log.loss) / 2) ** 0.5)  # of the mean of a quarter
        # Whether the loss keeps falling, however slowly.
        self.sinks = bool(first > second > third > fourth and second - fourth > 2 * self.noise)
        spread = log.columns.get("spread", log.loss[:0])
        # Whether the scores spread twice as far as they did half way.
        self.spreads = bool(len(spread) and ends(spread)[1] > 2 * ends(spread[: len(spread) // 2])[1])
        self.unit = unit_of_scores(log)
        # The delta_s below which scores count as equal.
        self.epsilon = epsilon * self.unit
        given: list[Plateau | None] = [*ways]

        def still(way: Plateau | None) -> Still:
            # Most guesses are far off, which shows without reading the log row by row.
            is_far = len(given) > 1 and way is not None and abs(self.last - way.value) > FAR * way.value
            return Still(way) if is_far else _still(log, way, epsilon, self.patience)

        # The alarm's result for each plateau, or for delta_s alone if none is given.
        self.stills = [still(way) for way in given or [None]]
        likely = self.stills
        if len(likely) > 1:  # the one plateau, not guessed, above which training with hard negatives starts
            known = [(one, one.plateau.value) for one in likely if one.plateau and not one.plateau.guessed]
            likely = [one for one, value in known if 1 < self.first / value < FURTHEST]
        self.likely = likely[0] if len(likely) == 1 else None
        # How far positives score above their hardest negatives at the end.
        both = [log.columns[name] for name in ("s_p", "s_n") if name in log.columns]
        self.ahead = ends(both[0] - both[1])[1] if len(both) == 2 else None
        far_enough = min([self.epsilon, WINS * ends(spread)[1]] if len(spread) else [self.epsilon])
        self.wins = self.ahead is not None and self.ahead > far_enough
        self.floor = self._floor([way.value for way in given if way is not None])
        # Whether the loss is lower than equal scores can bring it.
        self.is_low = self.last < BELOW * self.floor
        self.dev = dev = HeldOut(log)
        # Whether the training pairs are separated, by the scores, or if they were not logged, by the loss.
        self.separates = self.wins or (self.ahead is None and self.is_low)
        # Proof of learning: they are, or RSUM on dev is high or rises; and dev is not at chance, as far as is known.
        self.fits = self.separates or dev.is_good
        self.fits = self.fits or (dev.rises if self.ahead is None else dev.doubles)
        self.has_learnt = self.fits and (dev.is_above or not log.dev)
        self.seems_to_learn = self.has_learnt or dev.rises or dev.is_far_above

    def _floor(self, values: list[float]) -> float:
        """The lowest plateau that the loss may have fallen to; if none is known, the lowest possible one."""
        above = [value for value in values if self.first / FURTHEST < value < (1 + FAR) * self.first]
        return min([*above, self.first]) if above else self.first / FURTHEST

    def at_end(self, still: Still) -> tuple[str, ...]:
        """Evidence: loss and delta_s at the end, and how other numbers changed."""
        where = "" if still.plateau is None else f", plateau {still.plateau.value:.4g}"
        told = []
        if self.gaps is not None:
            told = [f"delta_s {ends(self.gaps)[1]:.4f} at the end, epsilon {self.epsilon:.3g}"]
            if self.unit > 1:
                told.append(
                    f"scores are not cosines: epsilon is that of cosines times their size, {self.unit:.3g}"
                )
        if self.ahead is not None:
            side = "above" if self.ahead > 0 else "below"
            told.append(f"positives score {abs(self.ahead):.4f} {side} their hardest negatives")
        return (f"{self.log.loss_name} {self.last:.4f} at the end{where}", *told, *self.others)


def _still(log: Log, plateau: Plateau | None, epsilon: float, patience: int) -> Still:
    names = {"loss_per_anchor": "loss", **{name: name for name in ("delta_s", "spread", "s_p", "s_n")}}
    columns = {ours: log.columns[name].tolist() for ours, name in names.items() if name in log.columns}
    if plateau is None and "delta_s" not in columns:
        return Still(plateau)
    alarm = StallAlarm(None if plateau is None else plateau.value, epsilon, patience)
    left, before = None, None
    for step, *row in zip(log.steps.astype(int).tolist(), *columns.values()):
        alarm.update(step, {name: value for name, value in zip(columns, row) if value == value})
        if alarm.since is None and before is not None and step - before >= patience:
            left = (before, step)
        before = alarm.since
    stalled = alarm.since is not None and int(log.steps[-1]) - alarm.since >= patience
    if stalled and "delta_s" not in columns and plateau is not None:
        stalled = _sits(log, plateau, patience)
    return Still(plateau, alarm.since, left, stalled)


def _sits(log: Log, plateau: Plateau, patience: int) -> bool:
    """Whether a loss sits on a plateau rather than passing it, judged by the loss alone."""
    last = log.loss[log.steps >= log.steps[-1] - patience]
    if last[-max(1, len(last) // 3) :].mean() < LEAVES * plateau.value:
        return False  # it is on its way down
    # A loss that learns may end up anywhere, even near a guess; but it has fallen far.
    if plateau.guessed and ends(log.loss)[0] >= 3 * plateau.value:
        return False
    # Stuck scores are never separated, so the loss does not fall below its plateau.
    steady = STEADY / 2 if plateau.guessed else STEADY
    off = last.mean() / plateau.value - 1
    return bool(last.std() < steady * plateau.value and -NEAR / 4 <= off <= NEAR)


def unit_of_scores(log: Log) -> float:
    """The size of scores that are not cosines, as the alarm measures it; 1 for cosines."""
    columns = [log.columns[name] for name in ("s_p", "s_n", "spread") if name in log.columns]
    if len(columns) < 3:
        return 1.0
    rows = np.stack(columns)[:, np.isfinite(np.stack(columns)).all(0)]
    return max([1.0, *(size_of(*row) for row in rows.T.tolist())])


def without_spikes(loss: Column) -> Column:
    """The loss without isolated rows that lie far from those around them.

    A summed loss has one in every epoch whose last batch is smaller; the median of five rows stands for it.
    """
    if len(loss) < ENOUGH_ROWS:
        return loss
    around = np.lib.stride_tricks.sliding_window_view(np.pad(loss, 2, mode="reflect"), 5)
    middle = np.median(around, axis=1)
    off = np.abs(loss - middle) / np.maximum(np.abs(middle), TINY)
    off[middle == 0] = 0.0  # a loss that is mostly zero has no usual size
    spikes = off > SPIKE * np.median(off)
    edges = [0, 1, -2, -1]  # a high row there may be the start of the run, or a loss that grows
    spikes[edges] &= loss[edges] < middle[edges]
    return np.where(spikes, middle, loss)


def told_numbers(log: Log) -> tuple[str, ...]:
    """How the other numbers changed, as readable text: at the start and at the end."""
    words = {"spread": "spread of the scores", "rank_images": "effective rank of the images",
             "rank_texts": "effective rank of the texts", "distance": "|t^ - t|"}  # fmt: skip
    there = {**log.evaluated, **log.columns}
    told = [from_to(words[name], *ends(there[name])) for name in words if name in there]
    if len(log.dev) > 1:
        told.append(from_to("RSUM on dev", log.dev[0][1], log.dev[-1][1]))
    return (*told, *told_gradients(log))


def told_gradients(log: Log) -> tuple[str, ...]:
    """The gradient norm that changed most."""
    norms = {name: ends(column) for name, column in log.columns.items() if name.startswith("grad_")}
    norms = {name: (first, last) for name, (first, last) in norms.items() if first > 0 and last > 0}
    if not norms:
        return ()
    name = max(norms, key=lambda one: abs(math.log(norms[one][1]) - math.log(norms[one][0])))
    # transformers logs one norm, of the whole model.
    of = "" if name == "grad_norm" else f" of {name.removeprefix('grad_')}"
    return (from_to(f"gradient norm{of}", *norms[name]),)


def from_to(name: str, first: float, last: float) -> str:
    """One number, at the start and at the end."""
    return f"{name}: from {first:.4g} to {last:.4g}"


def ends(column: Column) -> tuple[float, float]:
    """Means over the first and the last tenth of the values."""
    there = column[np.isfinite(column)]
    size = max(1, len(there) // 10)
    return (float(there[:size].mean()), float(there[-size:].mean())) if len(there) else (float("nan"),) * 2
