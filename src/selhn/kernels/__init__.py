"""Where the time goes: scores, statistics, pooling, memory, recurrence, transformers; torch, and Triton on a GPU."""

from selhn.kernels.cross_scores import AttentionSettings, attention_scores, can_attend
from selhn.kernels.differences import LinearWeights, compared_nodes, node_precision
from selhn.kernels.gpu import in_half_precision, side_by_side
from selhn.kernels.memory import memory_precision, memory_products, remembered
from selhn.kernels.pooling import pool_sorted
from selhn.kernels.recurrent import can_scan, gru_scan
from selhn.kernels.statistics import MAXIMA, STATISTICS, AnchorStatistics, PerAnchor, Statistic, Terms, dense_statistics
from selhn.kernels.tiles import tiled_statistics
from selhn.kernels.transformer import LayerSettings, LayerWeights, transformer_layers

__all__ = ["MAXIMA", "STATISTICS", "AnchorStatistics", "PerAnchor", "Statistic", "Terms", "dense_statistics"]
__all__ += ["AttentionSettings", "LayerSettings", "LayerWeights", "LinearWeights", "attention_scores"]
__all__ += ["can_attend", "can_scan", "compared_nodes", "gru_scan", "in_half_precision", "memory_precision"]
__all__ += ["memory_products", "node_precision", "pool_sorted", "remembered", "side_by_side"]
__all__ += ["tiled_statistics", "transformer_layers"]
