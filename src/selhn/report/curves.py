"""The curves of a report, reduced to few points without losing spikes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selhn.diagnose.logs import Column
from selhn.report.records import RunRecord, by_data

MOST_POINTS = 240
WINDOWS = 50
"""Number of stretches that a log is cut into; each becomes one mean."""
SEPARATED, DEV = "separated", "dev"
FAR_APART = 5
"""Largest ratio of two runs' plateaus on one linear axis."""
Points = tuple[Column, Column]
"""Steps and values."""
Level = tuple[float, str]
"""A value to compare with, and its name."""


@dataclass(frozen=True)
class Curve:
    """One quantity of one run with few points: running mean, minimum and maximum of neighbouring rows."""

    run: int
    """Which of the runs, from 0."""
    name: str
    steps: Column
    line: Column
    low: Column
    high: Column
    lost: int
    """Number of values that were not finite and cannot be drawn."""

    def told(self, step: float, unit: str = "") -> str:
        """The value at the point nearest to a step, for a page without a script."""
        value = float(self.line[np.abs(self.steps - step).argmin()])
        return f"{value:.4g}{unit}" if np.isfinite(value) else "–"


@dataclass(frozen=True)
class Panel:
    """Curves of one number."""

    title: str
    words: str
    """What the number says."""
    curves: tuple[Curve, ...]
    unit: str = ""
    is_log: bool = False
    level: Level | None = None
    full: float = 0.0
    """The axis reaches at least this value."""
    until: float = 1.0
    """The last step of the longest run, at which all panels end."""
    measured: bool = False
    """Whether every point is a separate measurement and gets a marker."""


def panel_data(panel: Panel, since: int | None = None) -> dict[str, Any]:
    """The data that chart.js draws; everything after the step `since` is shaded."""

    def short(column: Column) -> list[float | None]:  # five digits are more than can be seen; a gap is null
        return [float(f"{value:.5g}") if np.isfinite(value) else None for value in column]

    curves = [
        {"run": curve.run, "name": curve.name, "steps": curve.steps.astype(int).tolist()}
        | {name: short(getattr(curve, name)) for name in ("line", "low", "high")}
        for curve in panel.curves
    ]
    names = ("title", "unit", "is_log", "level", "full", "until", "measured")
    return {**{name: getattr(panel, name) for name in names}, "since": since, "curves": curves}


def thin(run: int, name: str, points: Points, average: bool = True) -> Curve:
    """A curve of few points with all spikes; its means are centred, so that it does not lag."""
    steps, values = (np.asarray(column, dtype=float) for column in points)
    finite = np.isfinite(values)
    drawn, place = values[finite], np.cumsum(finite) - 1
    reach = len(drawn) // WINDOWS // 2 if average else 0
    edges = np.linspace(0, len(values), min(len(values), MOST_POINTS) + 1).astype(int)
    numbers = np.where(finite, values, np.nan)
    low, high = (extreme.reduceat(numbers, edges[:-1]) for extreme in (np.fmin, np.fmax))
    # The last number of every part; if it has none, the last row.
    last = np.maximum.reduceat(np.where(finite, np.arange(len(values)), -1), edges[:-1])
    last = np.where(last < 0, edges[1:] - 1, last)
    # Differences of one cumulative sum would lose small values that come after a large one.
    around = (drawn[max(place[row] - reach, 0) : place[row] + reach + 1] for row in last)
    line = [near.mean() if finite[row] else np.nan for row, near in zip(last, around)]
    return Curve(run, name, steps[last], np.array(line), low, high, lost=int((~finite).sum()))


def panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Panels for what the logs have: loss, delta_s, share of mined anchors, gradients, and RSUM on dev."""
    per_anchor = all(run.found.log.loss_name == "loss_per_anchor" for run in runs)
    plateaus, epsilons = {run.found.plateau for run in runs}, {run.found.epsilon for run in runs}
    known = [plateau for plateau in plateaus if plateau]
    # On one axis, a sum over all negatives would flatten a loss over one negative.
    far_apart = bool(known) and max(known) > FAR_APART * min(known)
    equal = (known[0], "all scores equal") if len(known) == len(plateaus) == 1 else None
    least = (epsilons.pop(), "epsilon") if len(epsilons) == 1 else None
    until = max(1.0, *(float(run.found.log.steps[-1]) for run in runs))

    def panel(
        title: str, column: str, words: str, is_log: bool = False, level: Level | None = None,
        of: Sequence[int] = range(len(runs)), **look: Any,
    ) -> Panel:  # fmt: skip
        found = [
            thin(number, runs[number].name, _points(runs[number], column), column != DEV) for number in of
        ]
        curves = tuple(curve for curve in found if np.isfinite(curve.line).any())
        lowest = [float(np.nanmin(curve.low)) for curve in curves] + ([] if level is None else [level[0]])
        is_log = is_log and min(lowest, default=0.0) > 0  # zero has no logarithm
        return Panel(title, words, curves, is_log=is_log, level=level, until=until, **look)

    names = {name: name.removeprefix("grad_").replace("_", " ") for name in gradient_names(runs)}
    about_loss = "a run that has stalled sits where all scores are equal"
    about_gap = "distance between the scores of the positive and of the hardest negative"
    about_separated = "share with delta_s above epsilon: those that SelHN mines"
    about_norm = "over all weights of that part, before clipping; larger if a loss is summed"
    about_rsum = "the six recalls added up, after every epoch; at most 600"
    found = [
        panel("Loss per anchor" if per_anchor else "Loss", "loss", about_loss, far_apart, level=equal),
        panel("delta_s", "delta_s", about_gap, True, level=least),
        panel("Separated anchors", SEPARATED, about_separated, unit=" %", full=100),
        *(panel(f"Gradient norm, {part}", name, about_norm, True) for name, part in names.items()),
        *(
            panel(f"RSUM on dev{data and f' of {data}'}", DEV, about_rsum, of=numbers, measured=True)
            for data, numbers in by_data(runs).items()
        ),
    ]
    return [one for one in found if one.curves]


def gradient_names(runs: Sequence[RunRecord]) -> list[str]:
    """Both encoders, or the first two parts of models that name them differently."""
    names = dict.fromkeys(name for run in runs for name in run.found.log.columns if name.startswith("grad_"))
    return [name for name in ("grad_image", "grad_text") if name in names] or [*names][:2]


def _points(run: RunRecord, column: str) -> Points:
    log = run.found.log
    if column == DEV:
        steps, values = np.array(log.dev, dtype=float).reshape(-1, 2).T
        return steps, values
    if column not in log.columns:
        return np.empty(0), np.empty(0)
    return log.steps, log.columns[column] * (100 if column == SEPARATED else 1)
