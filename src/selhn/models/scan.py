"""SCAN: Lee et al., Stacked Cross Attention for Image-Text Matching, ECCV 2018.

Words attend to regions (t2i) or regions to words (i2t). A score is the mean cosine of each query
with what it attends to (AVG), or log(sum of exp(lambda * cosine)) / lambda (LSE).
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, with_head
from selhn.models.layouts import FRAGMENT_NAMES, FRAGMENTS, SMOOTH, AuthorsLayout, Options
from selhn.models.table import Paper, model
from selhn.ops import (
    AttentionSettings,
    Focus,
    Fragments,
    attended_cosines,
    attention_scores,
    attention_weights,
    can_attend,
    fragment_mean,
    products,
    score_in_blocks,
    turned,
)

Direction = Literal["t2i", "i2t"]
"""Which side attends to the other: words to regions, or regions to words."""


class StackedAttention(nn.Module):
    """The scores of SCAN, or summed over both directions and with a focus, those of BFAN.

    `smooth` scales the softmax; without `lambda_lse` a score is a mean; without `focus` all fragments count.
    """

    pairs_apart = True

    def __init__(
        self,
        directions: tuple[Direction, ...],
        smooth: float,
        lambda_lse: float | None = None,
        focus: Focus | None = None,
    ):
        super().__init__()
        self.directions, self.smooth, self.lambda_lse, self.focus = directions, smooth, lambda_lse, focus

    def forward(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "..."]:
        # At most: a product, its gradient, a weight for each direction, and the backward pass over them.
        bytes_per_product = 4 * (4 + 2 * len(self.directions))
        cost = bytes_per_product * images.mask.shape[1] * texts.mask.shape[1]
        with torch.autocast(images.vectors.device.type, enabled=False):
            if aligned:
                return self._looking(images, texts, aligned)[0]
            return score_in_blocks(self._score, images, texts, cost)

    def attention(self, images: Fragments, texts: Fragments) -> dict[str, Float[Tensor, "N M"]]:
        return shown_attention(images, texts, self.smooth, self.directions, self.focus)

    def _score(self, images: Fragments, texts: Fragments) -> Float[Tensor, "I T"]:
        if not can_attend(images.vectors, texts.vectors):
            return self._looking(images, texts)
        settings = AttentionSettings(self.smooth, self.focus, self.lambda_lse)
        return attention_scores(
            images.vectors, images.mask, texts.vectors, texts.mask, self.directions, settings
        )

    def _looking(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "i T"]:
        """The sum over the directions; with `aligned`, i = 1: each image with its own text."""
        dots = back = None
        if len(self.directions) == 2:  # the products of both are the same
            dots = products(images.vectors, texts.vectors, aligned)
            back = dots.transpose(1, 2) if aligned else turned(dots)
        scores = []
        for direction in self.directions:
            seen, looking, own = (images, texts, dots) if direction == "t2i" else (texts, images, back)
            pooled = self._pool(
                attended_cosines(seen, looking, self.smooth, self.focus, own, aligned), looking.mask
            )
            scores.append(pooled if direction == "t2i" or aligned else pooled.T)
        return scores[0] if len(scores) == 1 else scores[0] + scores[1]

    def _pool(self, cosines: Float[Tensor, "C L Q"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "C Q"]:
        if self.lambda_lse is None:
            return fragment_mean(cosines, mask)
        # Official: a sum inside the logarithm and not a mean, so that more words score higher.
        none = ~mask.any(1)
        left_out = ~(mask | none[:, None]).T
        pooled = (self.lambda_lse * cosines).masked_fill(left_out, -torch.inf).logsumexp(1) / self.lambda_lse
        return pooled.masked_fill(none, 0)


def shown_attention(
    images: Fragments,
    texts: Fragments,
    smooth: float,
    directions: tuple[Direction, ...] = ("t2i", "i2t"),
    focus: Focus | None = None,
) -> dict[str, Float[Tensor, "N M"]]:
    """The tensors of an `Attention` of one pair, by name."""
    weights = {}
    if "t2i" in directions:
        weights["of_words"] = attention_weights(images, texts, smooth, focus)[0, :, :, 0].T
    if "i2t" in directions:
        weights["of_regions"] = attention_weights(texts, images, smooth, focus)[0, :, :, 0]
    return weights


_PAPER = Paper("Lee et al., ECCV 2018", "https://arxiv.org/abs/1803.08024")


def _layout(direction: Direction, pooling: str) -> AuthorsLayout:
    fixed = {**FRAGMENTS, "cross_attn": direction, "agg_func": pooling}
    lse: Options = {"lambda_lse": ("lambda_lse", float)} if pooling == "LogSumExp" else {}
    return AuthorsLayout(FRAGMENT_NAMES, fixed, {**SMOOTH, **lse})


@model(_PAPER, "cross-attention", official=_layout("t2i", "Mean"))
def scan_t2i_avg(common: WordSettings, smooth: float = 9.0) -> CrossAttention:
    """SCAN t2i AVG: the mean over words that attend to regions."""
    return with_head(StackedAttention(("t2i",), smooth), common)


@model(_PAPER, "cross-attention", official=_layout("t2i", "LogSumExp"))
def scan_t2i_lse(common: WordSettings, smooth: float = 9.0, lambda_lse: float = 6.0) -> CrossAttention:
    """SCAN t2i LSE: log-sum-exp over words that attend to regions."""
    return with_head(StackedAttention(("t2i",), smooth, lambda_lse), common)


@model(_PAPER, "cross-attention", official=_layout("i2t", "Mean"))
def scan_i2t_avg(common: WordSettings, smooth: float = 4.0) -> CrossAttention:
    """SCAN i2t AVG: the mean over regions that attend to words."""
    return with_head(StackedAttention(("i2t",), smooth), common)


@model(_PAPER, "cross-attention", official=_layout("i2t", "LogSumExp"))
def scan_i2t_lse(common: WordSettings, smooth: float = 4.0, lambda_lse: float = 6.0) -> CrossAttention:
    """SCAN i2t LSE: log-sum-exp over regions that attend to words; the authors took lambda 5 or 20."""
    return with_head(StackedAttention(("i2t",), smooth, lambda_lse), common)
