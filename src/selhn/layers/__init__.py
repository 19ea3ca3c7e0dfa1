"""Building blocks of models: attention, pooling, recurrent encoders, the bottleneck MLP, BERT."""

from selhn.layers.batch_norm import masked_batch_norm, over_ranks, ranks_of, remembering_nothing, synced
from selhn.layers.bert import Bert, bert_tokenizer, bert_weights
from selhn.layers.block_cosines import block_cosines
from selhn.layers.captioner import Captioner
from selhn.layers.difference import projected_differences
from selhn.layers.fragment_attention import (
    Focus,
    attended_cosines,
    attended_squares,
    attention_weights,
    fragment_mean,
    log_mask,
    products,
    softmax_attention,
    turned,
    unit_attention,
    weighted_cosines,
)
from selhn.layers.fragments import Fragments, chunks, is_ragged, joined, mean_of, score_in_blocks, unit
from selhn.layers.gpo import GPO
from selhn.layers.gru import BiGRU, WordGRU, last_states, look_up, word_embedding
from selhn.layers.mlp import MLP, MLPOrder

__all__ = ["GPO", "MLP", "Bert", "BiGRU", "Captioner", "Focus", "Fragments", "MLPOrder", "WordGRU"]
__all__ += ["attended_cosines", "attended_squares", "attention_weights", "bert_tokenizer", "bert_weights"]
__all__ += ["block_cosines", "chunks", "fragment_mean", "is_ragged", "joined", "last_states", "log_mask"]
__all__ += ["look_up", "masked_batch_norm", "mean_of", "over_ranks", "products"]
__all__ += [
    "projected_differences",
    "ranks_of",
    "remembering_nothing",
    "score_in_blocks",
    "softmax_attention",
    "synced",
    "turned",
    "unit",
]
__all__ += ["unit_attention", "weighted_cosines", "word_embedding"]
