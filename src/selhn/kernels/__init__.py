"""Triton kernels, each imported by the operation in `ops/` that it is a second form of; and statistics of losses."""

from selhn.kernels.statistics import (
    MAXIMA,
    STATISTICS,
    AnchorStatistics,
    PerAnchor,
    Statistic,
    Terms,
    dense_statistics,
)
from selhn.kernels.tiles import tiled_statistics

__all__ = ["MAXIMA", "STATISTICS", "AnchorStatistics", "PerAnchor", "Statistic", "Terms"]
__all__ += ["dense_statistics", "tiled_statistics"]
