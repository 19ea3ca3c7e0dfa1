"""What RSUM on dev shows: learning, chance, or neither."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from selhn.diagnose.logs import Column, Log
from selhn.eval import Metrics
from selhn.eval.metrics import DEFAULT_KS

ENOUGH_IMAGES = 50
"""With fewer dev images, RSUM may be high by chance."""
ERRORS = 3.0
"""An RSUM that is no more than this many standard errors above chance is chance."""
FAR = 10.0
"""One that is more than this many above it is far above chance."""
GAIN = 100.0
"""A gain in RSUM that is more than chance, if RSUM also grew by half."""
ENOUGH_EVALUATIONS = 3


class Chance(NamedTuple):
    """What a model reaches that guesses."""

    rsum: float
    error: float
    """Standard error of one evaluation. The three recalls of a direction rise and fall together."""

    @classmethod
    def of(cls, images: float, texts: float) -> "Chance":
        found = [min(k / images, 1.0) for k in DEFAULT_KS]
        found += [1 - max(1 - k / texts, 0.0) ** (texts / images) for k in DEFAULT_KS]
        errors = sum((p * (1 - p) / images) ** 0.5 for p in found)
        return cls(100 * sum(found), 100 * errors / 2**0.5)


def how_it_ended(alarm: str | None, measured: Metrics) -> str:
    """For a table of runs: "stalled", "at chance" or "". A run may be too short for the alarm, and learn nothing."""
    if alarm:
        return "stalled"
    chance = Chance.of(measured.i2t.num_queries, measured.t2i.num_queries)
    return "at chance" if measured.rsum <= chance.rsum + ERRORS * chance.error else ""


def num_queries(evaluated: Mapping[str, Column]) -> tuple[float, float] | None:
    """Images and texts of the dev set, if the log has their numbers."""
    counts = [evaluated.get(f"dev.{way}.num_queries") for way in ("i2t", "t2i")]
    images, texts = (0.0 if column is None else float(column[-1]) for column in counts)
    return (images, texts) if 1 <= images <= texts < np.inf else None


class HeldOut:
    """The evaluations on dev of a log; without any, nothing is claimed."""

    def __init__(self, log: Log):
        self.rsums = np.array([rsum for _, rsum in log.dev])
        queries = num_queries(log.evaluated)
        self.chance = None if queries is None else Chance.of(*queries)
        low, error = self.chance or Chance.of(ENOUGH_IMAGES, ENOUGH_IMAGES)
        self.error = error
        self.images = ENOUGH_IMAGES if queries is None else queries[0]
        thirds = [float(part.mean()) for part in np.array_split(self.rsums, 3) if len(part)] or [0.0]
        self.level = thirds[-1]
        grows = self.level > thirds[0] + ERRORS * error
        late = self.rsums[len(self.rsums) // 2 :]
        self.line = low + ERRORS * error
        """An RSUM above it is not chance; if the number of queries is unknown, on any dev set of enough images."""
        self.is_above = bool(self.level > self.line)
        self.is_far_above = bool(self.level > low + FAR * error)
        # Whether it is at chance and stays there; unknown without the number of queries.
        enough = len(self.rsums) >= ENOUGH_EVALUATIONS
        self.is_chance = bool(self.chance and enough and late.mean() <= self.line and not grows)
        first, last = (self.rsums[0], self.rsums[-1]) if len(self.rsums) else (0.0, 0.0)
        self.rises = len(self.rsums) > 1 and bool(last > max(1.5 * first, first + GAIN))
        self.doubles = self.chance is not None and self.is_far_above and bool(self.level > 2 * first)
        half_way = 300 + low / 2 if queries is not None and queries[0] >= ENOUGH_IMAGES else np.inf
        self.is_good = bool(last >= half_way)
        """Whether it is half way from chance to 600."""

    def error_at(self, rsum: float) -> float:
        """Standard error of an evaluation that finds so much; 0 if the number of queries is unknown."""
        found = min(max(rsum / 600, 0.0), 1.0)
        return 0.0 if self.chance is None else 300 * (2 * found * (1 - found) / self.images) ** 0.5

    @property
    def words(self) -> str:
        """The level at the end, beside chance."""
        if self.chance is None:
            return f"RSUM on dev is {self.level:.4g}, and the log does not say of how many queries"
        return f"RSUM on dev is {self.level:.4g}, chance is {self.chance.rsum:.4g} ± {self.error:.2g}"
