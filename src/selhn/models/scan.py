"""SCAN: Lee et al., Stacked Cross Attention for Image-Text Matching, ECCV 2018.

Words attend to regions (t2i) or regions to words (i2t). A score is the mean cosine of each query
with what it attends to (AVG), or log(sum of exp(lambda * cosine)) / lambda (LSE).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, with_head
from selhn.models.layouts import FRAGMENT_NAMES, FRAGMENTS, SMOOTH, AuthorsLayout, Options
from selhn.models.table import Paper, model
from selhn.ops import Direction, Pairing, attended_cosines, fragment_mean, real_or_all
from selhn.ops.attention import Focus, attention_weights
from selhn.ops.cross_scores import AttentionSettings, attention_scores, can_attend


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

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        # At most: a product, its gradient, a weight for each direction, and the backward pass over them.
        return pairing.scored(self._score, products=4 + 2 * len(self.directions))

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        return shown_attention(pairing, self.smooth, self.directions, self.focus)

    def _score(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        images, texts = pairing.contexts, pairing.queries
        if not pairing.aligned and can_attend(images.vectors, texts.vectors):
            settings = AttentionSettings(self.smooth, self.focus, self.lambda_lse)
            return attention_scores(
                images.vectors, images.mask, texts.vectors, texts.mask, self.directions, settings
            )
        return pairing.summed(self.directions, self._of_side)

    def _of_side(self, _: Direction, side: Pairing) -> Float[Tensor, "c Q"]:
        return self._pool(attended_cosines(side, self.smooth, self.focus), side.queries.mask)

    def _pool(self, cosines: Float[Tensor, "C L Q"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "C Q"]:
        if self.lambda_lse is None:
            return fragment_mean(cosines, mask)
        # Official: a sum inside the logarithm and not a mean, so that more words score higher.
        left_out = ~real_or_all(mask).T
        pooled = (self.lambda_lse * cosines).masked_fill(left_out, -torch.inf).logsumexp(1) / self.lambda_lse
        return pooled.masked_fill(~mask.any(1), 0)


def shown_attention(
    pairing: Pairing,
    smooth: float,
    directions: tuple[Direction, ...] = ("t2i", "i2t"),
    focus: Focus | None = None,
) -> dict[str, Float[Tensor, "N M"]]:
    """The tensors of an `Attention` of one pair, by name: the weights of SCAN or BFAN."""
    return pairing.shown(directions, lambda _, side: attention_weights(side, smooth, focus))


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
