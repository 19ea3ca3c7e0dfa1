"""Time-critical code: scores, statistics, pooling, memory, GRUs, transformers, words; torch, and Triton on a GPU."""

from selhn.kernels.block_cosines import attended_blocks, can_attend_in_blocks
from selhn.kernels.cross_scores import AttentionSettings, attention_scores, can_attend
from selhn.kernels.differences import LinearWeights, attended_nodes, compared_nodes, node_precision
from selhn.kernels.gpu import half_precision, in_half_precision, side_by_side
from selhn.kernels.memory import memory_precision, memory_products, remembered
from selhn.kernels.pooling import pool_sorted
from selhn.kernels.reasoning import can_reason, reasoned
from selhn.kernels.recurrent import can_scan, gru_scan
from selhn.kernels.statistics import (
    MAXIMA,
    STATISTICS,
    AnchorStatistics,
    PerAnchor,
    Statistic,
    Terms,
    dense_statistics,
)
from selhn.kernels.thresholds import (
    ThresholdRule,
    collected_words,
    learnt_thresholds,
    mined_words,
    walk_texts,
)
from selhn.kernels.tiles import tiled_statistics
from selhn.kernels.transformer import LayerSettings, LayerWeights, transformer_layers
from selhn.kernels.words import WordChanges, change_words

__all__ = ["MAXIMA", "STATISTICS", "AnchorStatistics", "PerAnchor", "Statistic", "Terms"]
__all__ += ["dense_statistics", "AttentionSettings", "LayerSettings", "LayerWeights", "LinearWeights"]
__all__ += ["attended_blocks", "attended_nodes", "attention_scores", "can_attend", "can_attend_in_blocks"]
__all__ += ["can_reason", "can_scan", "compared_nodes", "gru_scan", "half_precision", "in_half_precision"]
__all__ += ["memory_precision", "memory_products", "node_precision", "pool_sorted", "reasoned", "remembered"]
__all__ += ["ThresholdRule", "collected_words", "learnt_thresholds", "mined_words", "walk_texts"]
__all__ += ["side_by_side", "tiled_statistics", "transformer_layers", "WordChanges", "change_words"]
