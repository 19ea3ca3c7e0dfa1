"""VSE-infinity on regions: Chen et al., Learning the Best Pooling Strategy for Visual Semantic Embedding, CVPR 2021.

Its MLP stands beside the FC, on the raw features, where that of RVSE follows it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selhn.models.vse import VSE, with_bert, with_gru
from selhn.text import Tokenizer


def vse_infty(
    vocab_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    word_dim: int = 300,
    mask_bn: bool = False,
) -> VSE:
    """VSE-infinity with a BiGRU: FC(x) + mlp(x)."""
    return with_gru("parallel", vocab_size, tokenizer, feature_dim, dim, word_dim, mask_bn=mask_bn)


def vse_infty_bert(
    bert: str | Path | Mapping[str, Any] = "minilm",
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    freeze_bert: bool = False,
    mask_bn: bool = False,
) -> VSE:
    """VSE-infinity with a BERT; the authors took bert-base-uncased."""
    return with_bert("parallel", bert, tokenizer, feature_dim, dim, freeze_bert, mask_bn=mask_bn)
