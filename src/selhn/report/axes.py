"""Axes that tell the truth: round numbers, from zero where that means something, logarithms where nothing is zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICKS = 5
"""About how many numbers an axis shows."""

ROOM = 0.04
"""What an axis has beyond its last value, as a share of it."""


@dataclass(frozen=True)
class Axis:
    """From values to places in a picture."""

    low: float
    high: float
    start: float
    """Where `low` is drawn."""
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one beyond the ends is drawn there."""
        value = min(max(value, self.low), self.high)
        low, high, at = (math.log(one) if self.is_log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers between the ends."""
        return log_ticks(self.low, self.high) if self.is_log else linear_ticks(self.low, self.high)


def fit_axis(values: Sequence[float], start: float, end: float, *, is_log: bool = False, full: float = 0.0) -> Axis:
    """The axis that shows all of some finite values, and 0 and `full` unless it is logarithmic.

    Logarithms are taken only where all values are positive.
    """
    if is_log and values and min(values) > 0:
        return Axis(_round_log(min(values), -1), _round_log(max(values), 1), start, end, is_log=True)
    low, high = min([0.0, *values]), max([full, *values])
    if high <= low:
        high = low + 1
    room = ROOM * (high - low)
    return Axis(low - room if low < 0 else low, high + room if high > full else high, start, end)


def linear_ticks(low: float, high: float) -> list[float]:
    """Multiples of a round step."""
    step = _round_step(high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten, or where these are many the powers alone, or every few of them."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    inside = [m * 10.0**power for power in range(first, last + 1) for m in (1, 2, 5)]
    inside = [value for value in inside if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    if len(inside) <= TICKS + 1:
        return inside
    every = max(1, -(-(last - first) // TICKS))
    return [10.0**power for power in range(first, last + 1, every) if low <= 10.0**power * (1 + 1e-9) <= high * 1.01]


def written(value: float) -> str:
    """A number beside an axis."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _round_step(span: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that cuts a span into no more than a few parts."""
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    return next(m * power for m in (1, 2, 5, 10) if m * power * TICKS >= span * (1 - 1e-9))


def _round_log(value: float, way: int) -> float:
    """The next of 1, 2 and 5 times a power of ten, downwards (-1) or upwards (1), and never the value itself."""
    power = math.floor(math.log10(value))
    near = [m * 10.0**p for p in range(power - 1, power + 2) for m in (1, 2, 5)]
    return (
        min(one for one in near if one > value * 1.001) if way > 0 else max(one for one in near if one < value / 1.001)
    )
