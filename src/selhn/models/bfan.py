"""BFAN: Liu et al., Focus Your Attention: A Bidirectional Focal Attention Network, ACM Multimedia 2019.

The attention of SCAN in both directions, which then looks away from all that is below the average and weighs the rest
anew; a score is the mean cosine of the words plus the mean cosine of the regions.
"""

from jaxtyping import Float
from torch import Tensor, nn

from selhn.kernels import AttentionSettings, attention_scores, can_attend
from selhn.layers import (
    Focus,
    Fragments,
    attended_cosines,
    attention_weights,
    pair_products,
    products,
    score_in_blocks,
    turned,
)
from selhn.models.builders import WordSettings, builder
from selhn.models.cross_attention import CrossAttention, in_full_precision, mean_over, with_head

# The products and their gradients, both ways round, with weights for each, and passes over them.
BYTES_PER_PRODUCT = 8 * 4


class FocalAttention(nn.Module):
    """The scores of BFAN."""

    pairs_apart = True

    def __init__(self, focus: Focus, smooth: float):
        super().__init__()
        self.focus, self.smooth = focus, smooth

    def forward(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "..."]:
        """Every image against every text, or with its own; from -2 to 2."""
        cost = BYTES_PER_PRODUCT * images.mask.shape[1] * texts.mask.shape[1]
        with in_full_precision(images):
            if aligned:
                return self._aligned(images, texts)
            return score_in_blocks(self._score, images, texts, cost)

    def attention(self, images: Fragments, texts: Fragments) -> dict[str, Float[Tensor, "N M"]]:
        """The weights of one pair, both ways, after all that is below the average has been left out."""
        of_words = attention_weights(images, texts, self.smooth, self.focus)[0, :, :, 0].T
        return {
            "of_words": of_words,
            "of_regions": attention_weights(texts, images, self.smooth, self.focus)[0, :, :, 0],
        }

    def _aligned(self, images: Fragments, texts: Fragments) -> Float[Tensor, " P"]:
        dots = pair_products(images.vectors, texts.vectors)
        of_words = attended_cosines(images, texts, self.smooth, self.focus, dots, aligned=True)
        of_regions = attended_cosines(texts, images, self.smooth, self.focus, dots.transpose(1, 2), aligned=True)
        return (mean_over(of_words, texts.mask) + mean_over(of_regions, images.mask))[0]

    def _score(self, images: Fragments, texts: Fragments) -> Float[Tensor, "I T"]:
        if can_attend(images.vectors, texts.vectors):
            settings = AttentionSettings(self.smooth, self.focus)
            return attention_scores(images.vectors, images.mask, texts.vectors, texts.mask, ("t2i", "i2t"), settings)
        dots = products(images.vectors, texts.vectors)
        of_words = attended_cosines(images, texts, self.smooth, self.focus, dots)
        of_regions = attended_cosines(texts, images, self.smooth, self.focus, turned(dots))
        return mean_over(of_words, texts.mask) + mean_over(of_regions, images.mask).T


@builder
def bfan_equal(common: WordSettings, smooth: float = 20.0) -> CrossAttention:
    """BFAN (equal): a fragment is kept if its weight is above the mean weight."""
    return with_head(FocalAttention("equal", smooth), common)


@builder
def bfan_prob(common: WordSettings, smooth: float = 20.0) -> CrossAttention:
    """BFAN (prob): the mean is itself weighted, with the square roots of the weights."""
    return with_head(FocalAttention("prob", smooth), common)
