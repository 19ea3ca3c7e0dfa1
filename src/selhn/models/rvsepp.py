"""RVSE++: the images of RVSE, texts read by a BERT (Li et al., Selectively Hard Negative Mining, 2023).

The released code has the BiGRU only, and the paper does not say which BERT: it is a setting.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selhn.layers import MLPOrder
from selhn.models.vse import VSE, with_bert
from selhn.text import Tokenizer


def rvsepp(
    bert: str | Path | Mapping[str, Any] = "minilm",
    tokenizer: Tokenizer | None = None,
    feature_dim: int = 2048,
    dim: int = 1024,
    freeze_bert: bool = False,
    mlp_order: MLPOrder = "fc-bn-relu-fc",
    mask_bn: bool = False,
) -> VSE:
    """RVSE++: FC(x) + mlp(FC(x)) for regions; BERT, FC for words."""
    return with_bert("residual", bert, tokenizer, feature_dim, dim, freeze_bert, mlp_order, mask_bn)
