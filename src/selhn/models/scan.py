"""SCAN: Lee et al., Stacked Cross Attention for Image-Text Matching, ECCV 2018.

Words attend to regions (t2i) or regions to words (i2t); a score is the mean of the cosines of the ones that look with
what they see (AVG), or log(sum of exp(lambda * cosine)) / lambda (LSE).
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.kernels import AttentionSettings, attention_scores, can_attend
from selhn.layers import Fragments, attended_cosines, attention_weights, score_in_blocks
from selhn.models.builders import WordSettings, builder
from selhn.models.cross_attention import CrossAttention, in_full_precision, mean_over, with_head

Direction = Literal["t2i", "i2t"]
"""Which side looks at the other: words at regions, or regions at words."""

# What a product of a region and a word costs at the most: itself, its weight, and passes over both on the way back.
BYTES_PER_PRODUCT = 6 * 4


class StackedAttention(nn.Module):
    """The scores of SCAN. `lambda_lse` is the lambda of LSE; None takes the mean."""

    pairs_apart = True

    def __init__(self, direction: Direction, smooth: float, lambda_lse: float | None = None):
        super().__init__()
        self.direction, self.smooth, self.lambda_lse = direction, smooth, lambda_lse

    def forward(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "..."]:
        """Every image against every text, or with its own."""
        cost = BYTES_PER_PRODUCT * images.mask.shape[1] * texts.mask.shape[1]
        with in_full_precision(images):
            if aligned:
                seen, looking = (images, texts) if self.direction == "t2i" else (texts, images)
                return self._pool(attended_cosines(seen, looking, self.smooth, aligned=True), looking.mask)[0]
            return score_in_blocks(self._score, images, texts, cost)

    def attention(self, images: Fragments, texts: Fragments) -> dict[str, Float[Tensor, "N M"]]:
        """The weights of one pair: of its words, or of its regions."""
        if self.direction == "t2i":
            return {"of_words": attention_weights(images, texts, self.smooth)[0, :, :, 0].T}
        return {"of_regions": attention_weights(texts, images, self.smooth)[0, :, :, 0]}

    def _score(self, images: Fragments, texts: Fragments) -> Float[Tensor, "I T"]:
        if can_attend(images.vectors, texts.vectors):
            settings = AttentionSettings(self.smooth, None, self.lambda_lse)
            return attention_scores(images.vectors, images.mask, texts.vectors, texts.mask, (self.direction,), settings)
        if self.direction == "t2i":
            return self._pool(attended_cosines(images, texts, self.smooth), texts.mask)
        return self._pool(attended_cosines(texts, images, self.smooth), images.mask).T

    def _pool(self, cosines: Float[Tensor, "C L Q"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "C Q"]:
        if self.lambda_lse is None:
            return mean_over(cosines, mask)
        # Official: a sum inside the logarithm and not a mean, so that more words score higher.
        none = ~mask.any(1)
        left_out = ~(mask | none[:, None]).T
        pooled = (self.lambda_lse * cosines).masked_fill(left_out, -torch.inf).logsumexp(1) / self.lambda_lse
        return pooled.masked_fill(none, 0)


@builder
def scan_t2i_avg(common: WordSettings, smooth: float = 9.0) -> CrossAttention:
    """SCAN t2i AVG: the mean over words that attend to regions."""
    return with_head(StackedAttention("t2i", smooth), common)


@builder
def scan_t2i_lse(common: WordSettings, smooth: float = 9.0, lambda_lse: float = 6.0) -> CrossAttention:
    """SCAN t2i LSE: log-sum-exp over words that attend to regions."""
    return with_head(StackedAttention("t2i", smooth, lambda_lse), common)


@builder
def scan_i2t_avg(common: WordSettings, smooth: float = 4.0) -> CrossAttention:
    """SCAN i2t AVG: the mean over regions that attend to words."""
    return with_head(StackedAttention("i2t", smooth), common)


@builder
def scan_i2t_lse(common: WordSettings, smooth: float = 4.0, lambda_lse: float = 6.0) -> CrossAttention:
    """SCAN i2t LSE: log-sum-exp over regions that attend to words; the authors used lambda 5 or 20 (see recipes)."""
    return with_head(StackedAttention("i2t", smooth, lambda_lse), common)
