"""Row and column statistics of a batch's scores, from the scores or straight from the embeddings."""

from selhn.kernels.statistics import AnchorStatistics, Statistic, dense_statistics
from selhn.kernels.tiles import tiled_statistics

__all__ = ["AnchorStatistics", "Statistic", "dense_statistics", "tiled_statistics"]
