"""Blocks that know no model: pooling, recurrent encoders, the bottleneck MLP, BERT."""

from selhn.layers.bert import Bert, bert_tokenizer, bert_weights
from selhn.layers.gpo import GPO
from selhn.layers.gru import BiGRU, WordGRU, last_states, word_embedding
from selhn.layers.mlp import MLP, MLPOrder
from selhn.layers.norm import unit

__all__ = [
    "GPO",
    "MLP",
    "Bert",
    "BiGRU",
    "MLPOrder",
    "WordGRU",
    "bert_tokenizer",
    "bert_weights",
    "last_states",
    "unit",
    "word_embedding",
]
