"""Logs drawn from what a run is: how far scores spread, how far positives win, and how well held-out pairs are found.

Loss, delta_s and recalls follow from these by the formulas of the losses and by binomial draws. `drawn_verdicts.py`
draws runs of known truth from here.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BELOW_HARDEST = 2.2
"""How far, in spreads, the mean negative scores below the hardest one of a batch."""
Course = Callable[[float], float]
"""A number by the share of the run."""
Row = dict[str, Any]


def path(*points: tuple[float, float]) -> Course:
    """Straight lines between points of (share of the run, value), positive values on a log scale."""
    xs, ys = zip(*points)
    if min(ys) > 0:
        return lambda x: float(np.exp(np.interp(x, xs, np.log(ys))))
    return lambda x: float(np.interp(x, xs, ys))


@dataclass(frozen=True)
class Drawn:
    """What a run is, and what of it is logged."""

    spread: Course
    """Standard deviation of all scores, as cosines."""
    ahead: Course
    """How far positives score above their hardest negatives, in spreads."""
    rsum: Course | None = None
    """The RSUM on dev that is expected; None is chance."""
    loss: str = "hn"
    batch: int = 64
    steps: int = 3000
    every: int = 10
    evaluations: int = 8
    images: int = 1000
    texts: int = 5
    scale: float = 1.0
    """Scores are cosines times this."""
    temperature: float = 0.07
    reduction: str = "mean"
    scores: bool = True
    """Whether the scores are measured, as by `Probe` or `selhn train`."""
    dev: bool = True
    counts: bool = True
    """Whether the log has the number of dev queries."""
    names_loss: bool = False
    """Whether the judge knows the loss, as in a run of selhn, or its batch and reduction, from options."""
    jitter: float = 0.1
    """How much the spread differs from batch to batch."""
    width: float = 0.7
    """Standard deviation of an anchor's gap, in spreads."""
    last_batch: int = 0
    """Pairs in the last batch of an epoch, if it is smaller."""
    epoch: int = 0
    change: Callable[[list[Row], random.Random], None] = field(default=lambda rows, chance: None)
    """What else happens to the rows."""


def anchor_loss(run: Drawn, gaps: np.ndarray, spread: float, loss: str) -> float:
    """The loss per anchor, of anchors whose positives score `gaps` above their hardest negatives."""
    margin, negatives = 0.2, math.log(run.batch - 1)
    mean_gaps = gaps + BELOW_HARDEST * spread
    if loss == "hn":
        return float(np.maximum(0, margin - gaps).mean())
    if loss == "triplet":
        return float((run.batch - 1) * np.maximum(0, margin - mean_gaps).mean())
    if loss == "selhn":
        return float(np.maximum(0, margin - np.where(abs(gaps) > 0.01, gaps, mean_gaps)).mean())
    # The largest term dominates a sum of exponentials of scores that spread by more than its temperature.
    warm = run.temperature if run.scale == 1 else 1.0
    if loss == "tal":
        warm = 0.05
    wide = min(spread / warm, BELOW_HARDEST)
    others = negatives + wide**2 / 2 - wide * BELOW_HARDEST - gaps / warm
    if loss == "tal":
        return float(np.maximum(0, margin + warm * others).mean())
    return float(np.logaddexp(0, others).mean())


def recalls(run: Drawn, rsum: float | None, chance: random.Random) -> float:
    """An RSUM as it is measured on so many queries."""
    texts = run.images * run.texts
    at_chance = [min(k / run.images, 1.0) for k in (1, 5, 10)]
    at_chance += [1 - max(1 - k / texts, 0.0) ** run.texts for k in (1, 5, 10)]
    low, high = 0.0, 1.0
    for _ in range(30 if rsum is not None else 0):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if 100 * sum(p ** (1 - middle) for p in at_chance) < rsum else (low, middle)
        )
    rates = [p ** (1 - low) for p in at_chance]
    draw, total = np.random.default_rng(chance.randrange(2**32)), 0.0
    for direction in (rates[:3], rates[3:]):
        found, before = 0, 0.0
        for rate in direction:
            found += draw.binomial(
                run.images - found, min(1.0, max(0.0, (rate - before) / (1 - before + 1e-9)))
            )
            before = rate
            total += 100 * found / run.images
    return total


def rows_of(run: Drawn, chance: random.Random) -> list[Row]:
    """The log of a run."""
    draw, rows = np.random.default_rng(chance.randrange(2**32)), []
    looks = set(np.linspace(run.steps / run.evaluations, run.steps, run.evaluations).astype(int).tolist())
    factor = math.exp(chance.gauss(0, 0.1))  # a model at chance is not exactly at chance
    level = chance.uniform(0.2, 0.8)
    for step in range(1, run.steps + 1):
        x = step / run.steps
        if step % run.every == 0:
            spread = run.spread(x) * math.exp(run.jitter * draw.normal())
            gaps = spread * (run.ahead(x) + 0.1 * draw.normal() + run.width * draw.normal(size=64))
            gaps, wide = run.scale * gaps, run.scale * spread
            per_anchor = anchor_loss(run, gaps, wide, run.loss)
            pairs = run.last_batch if run.last_batch and step % run.epoch == 0 else run.batch
            times = 2 * pairs if run.reduction == "sum" else 1
            row: Row = {"step": step, "loss": times * per_anchor}
            if run.scores:
                s_p = run.scale * level + wide * draw.normal() / 8
                row |= {"loss_per_anchor": per_anchor, "delta_s": float(abs(gaps).mean()), "spread": wide,
                        "s_p": s_p, "s_n": s_p - float(gaps.mean())}  # fmt: skip
            rows.append(row)
        if run.dev and step in looks:
            expected = None if run.rsum is None else run.rsum(x)
            value = recalls(run, expected, chance) * (factor if expected is None else 1)
            count = {
                "i2t": {"num_queries": run.images},
                "t2i": {"num_queries": run.images * run.texts},
            }
            rows.append(
                {"step": step, "dev": {"rsum": value, **count}}
                if run.counts
                else {"step": step, "rsum": value}
            )
    run.change(rows, chance)
    return rows
