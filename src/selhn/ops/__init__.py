"""Operations, one per file: the plain torch form, the choice, and the Triton kernel, imported when it is used.

Here are the blocks that models of other packages are built of too; the others are imported from their files.
"""

from selhn.ops.attention import attended_cosines, fragment_mean, softmax_attention, unit_attention
from selhn.ops.batch_norm import masked_batch_norm
from selhn.ops.fragments import Fragments, again, chunks, is_ragged, mean_of, real_or_all, unit
from selhn.ops.gpu import side_by_side
from selhn.ops.gru import BiGRU, WordGRU, last_states, look_up, word_embedding
from selhn.ops.mlp import MLP
from selhn.ops.pairing import Direction, Pairing
from selhn.ops.pooling import GPO

__all__ = ["GPO", "MLP", "BiGRU", "Direction", "Fragments", "Pairing", "WordGRU", "again"]
__all__ += ["attended_cosines", "chunks", "fragment_mean", "is_ragged", "last_states", "look_up"]
__all__ += ["masked_batch_norm", "mean_of", "real_or_all", "side_by_side", "softmax_attention", "unit"]
__all__ += ["unit_attention", "word_embedding"]
