"""Operations, one per file: the plain torch form, the choice, and the Triton kernel, imported when it is used."""

from selhn.ops.attention import (
    Focus,
    attended_cosines,
    attended_squares,
    attention_weights,
    fragment_mean,
    log_mask,
    softmax_attention,
    unit_attention,
    weighted_cosines,
)
from selhn.ops.batch_norm import masked_batch_norm, over_ranks, ranks_of, remembering_nothing, synced
from selhn.ops.block_cosines import block_cosines
from selhn.ops.cross_scores import AttentionSettings, attention_scores, can_attend
from selhn.ops.differences import (
    LinearWeights,
    attended_nodes,
    compared_nodes,
    node_precision,
    projected_differences,
)
from selhn.ops.fragments import Fragments, again, chunks, is_ragged, joined, mean_of, real_or_all, unit
from selhn.ops.gpu import half_precision, in_half_precision, side_by_side
from selhn.ops.gru import BiGRU, WordGRU, last_states, look_up, word_embedding
from selhn.ops.memory import memory_precision, memory_products, remembered
from selhn.ops.mlp import MLP, MLPOrder
from selhn.ops.pairing import Direction, Pairing
from selhn.ops.pooling import GPO, pool_sorted
from selhn.ops.reasoning import can_reason, reasoned
from selhn.ops.thresholds import (
    ThresholdRule,
    collected_words,
    learnt_thresholds,
    mined_words,
    walk_texts,
)
from selhn.ops.transformer import LayerSettings, LayerWeights, transformer_layers
from selhn.ops.words import WordChanges, change_words

__all__ = ["GPO", "MLP", "AttentionSettings", "BiGRU", "Direction", "Focus", "Fragments", "LayerSettings"]
__all__ += ["LayerWeights", "LinearWeights", "MLPOrder", "Pairing", "ThresholdRule", "WordChanges", "WordGRU"]
__all__ += [
    "again",
    "attended_cosines",
    "attended_nodes",
    "attended_squares",
    "attention_scores",
    "attention_weights",
]
__all__ += ["block_cosines", "can_attend", "can_reason", "change_words"]
__all__ += ["chunks", "collected_words", "compared_nodes", "fragment_mean", "half_precision"]
__all__ += ["in_half_precision", "is_ragged", "joined", "last_states", "learnt_thresholds", "log_mask"]
__all__ += ["look_up", "masked_batch_norm", "mean_of", "memory_precision", "memory_products", "mined_words"]
__all__ += ["node_precision", "over_ranks", "pool_sorted", "projected_differences", "ranks_of", "real_or_all"]
__all__ += ["reasoned", "remembered", "remembering_nothing", "side_by_side"]
__all__ += ["softmax_attention", "synced", "transformer_layers", "unit", "unit_attention"]
__all__ += ["walk_texts", "weighted_cosines", "word_embedding"]
