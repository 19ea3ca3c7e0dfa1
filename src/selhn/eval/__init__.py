"""Scores in, metrics out: recall in both directions, protocols, ensembles and significance."""

from selhn.eval.encoded import (
    encode_split,
    evaluate,
    folds_of,
    in_folds,
    measure_split,
    require_width,
    score_split,
)
from selhn.eval.metrics import DirectionMetrics, Metrics, QueryRanks, ranks, recall, recall_from_embeddings
from selhn.eval.protocols import ensemble, folds
from selhn.eval.rerank import PairScorer, rerank_split
from selhn.eval.significance import Comparison, Intervals, paired_bootstrap, recall_intervals
from selhn.eval.word_attention import image_row, pair_attention, region_attention

__all__ = [
    "Comparison",
    "DirectionMetrics",
    "Intervals",
    "Metrics",
    "PairScorer",
    "QueryRanks",
    "encode_split",
    "ensemble",
    "evaluate",
]
__all__ += ["folds", "folds_of", "image_row", "in_folds", "measure_split", "pair_attention"]
__all__ += ["paired_bootstrap", "ranks", "recall", "recall_from_embeddings", "recall_intervals"]
__all__ += ["region_attention", "require_width", "rerank_split", "score_split"]
