"""NAAF: Zhang et al., Negative-Aware Attention Framework for Image-Text Matching, CVPR 2022.

Words attend to regions. With the products s_kl of regions and words, and a threshold t between matching and
mismatching words, the score of a word is

    n_l + f_l + r_l
    n_l = m_l if m_l < 0 else 0,  m_l = max_k s_kl - t     a word that no region matches lowers the score
    f_l = w_l . x_l / |x_l|,  x_l = sum_k p_kl v_k,  p_kl = softmax of smooth (s_kl - t) over the k with s_kl > t
    r_l = sum_k a_kl s_kl,  a the weights of SCAN t2i

and the score of a pair is the mean over its words. As in SCAN, x_l is never made: see `attended_squares`.

The threshold is learnt from the words of a batch. The largest products of words that match (a text and its
own image, if that scores highest) and of words that do not (the text and the image that scores lowest) are
modelled as two normal distributions, and t is where their densities cross, one of them scaled by alpha.
Scores in training thus depend on which pairs are positive; in evaluation a pair's score depends on that pair
alone.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.models.builders import WordSettings
from selhn.models.cross_attention import CrossAttention, with_head
from selhn.models.layouts import FRAGMENT_NAMES, SMOOTH, UNIT_VECTORS, AuthorsLayout
from selhn.models.scan import shown_attention
from selhn.models.table import Paper, model
from selhn.ops import Fragments, Pairing, fragment_mean, softmax_attention
from selhn.ops.attention import attended_squares, log_mask
from selhn.ops.thresholds import ThresholdRule, collected_words, learnt_thresholds, mined_words, walk_texts

# Bytes of products processed at a time, so that the passes over them stay in a CPU's cache.
CHUNK_BYTES = 2**20

Mining = Literal["text", "batch"]
"""When the threshold changes: after every text of a batch, or once after all of them."""


class Thresholds(nn.Module):
    """The threshold of training, and the lower one of evaluation: mu - 3 sigma of words that match."""

    def __init__(self, threshold: float, threshold_safe: float, alpha: float, min_words: int):
        super().__init__()
        if not (0 <= threshold <= 1 and 0 <= threshold_safe <= 1):
            raise SelhnError(
                f"the thresholds of naaf are {threshold} and {threshold_safe}: choose numbers from 0 to 1"
            )
        self.alpha, self.min_words = alpha, min_words
        self.register_buffer("training_value", torch.tensor(float(threshold), dtype=torch.float64))
        self.register_buffer("safe_value", torch.tensor(float(threshold_safe), dtype=torch.float64))

    def now(self, training: bool) -> Float[Tensor, ""]:
        return self.get_buffer("training_value" if training else "safe_value")

    def store(self, both: Float[Tensor, "2"]) -> None:
        self.now(True).copy_(both[0])
        self.now(False).copy_(both[1])

    def both(self) -> Float[Tensor, "2"]:
        return torch.stack([self.now(True), self.now(False)])


@dataclass
class Walk:
    """What was learnt so far from the texts of a batch, the longest first, some at a time."""

    state: Float[Tensor, "7"]
    """The thresholds and the statistics of words: see `learnt_thresholds`."""
    used: Float[Tensor, " T"]
    """The threshold that each text was scored with."""
    left: int
    """Texts to come. Once none is left, scores are computed again only for their gradients."""


class NegativeAwareAttention(nn.Module):
    """The scores of NAAF: see the equations above.

    In evaluation a word is mismatched if the mean of m over similar words is below 0,
    weighted with the softmax of `intra_lambda` times the products of words; with None, every word is judged
    alone.
    """

    def __init__(self, smooth: float, intra_lambda: float | None, thresholds: Thresholds, mining: Mining):
        super().__init__()
        self.smooth, self.intra_lambda, self.mining = smooth, intra_lambda, mining
        self.thresholds = thresholds

    def forward(self, pairing: Pairing) -> Float[Tensor, "..."]:
        images, texts = pairing.contexts, pairing.queries
        with torch.autocast(pairing.device.type, enabled=False):
            if self.training:
                if pairing.aligned or len(images) != len(texts):
                    raise SelhnError(
                        "NAAF in training learns its threshold from images and their own texts: "
                        "score a whole batch of pairs, or call eval()"
                    )
                return self._trained(images, texts)[0]
            # With its threshold, a text stays what it is when texts are sorted and cut.
            value = self.thresholds.now(False).to(texts.vectors.dtype)
            texts = replace(texts, whole=value.expand(len(texts), 1))
            return replace(pairing, queries=texts).scored(self._scores, 12 if torch.is_grad_enabled() else 6)

    def mine(self, images: Fragments, texts: Fragments) -> Float[Tensor, " T"]:
        """The threshold that each text of a batch is trained with; those of the next batch are stored."""
        with torch.no_grad():
            return self._trained(images, texts)[1]

    def attention(self, pairing: Pairing) -> dict[str, Float[Tensor, "N M"]]:
        """The weights of r; f attends to nothing if all regions mismatch."""
        return shown_attention(pairing, self.smooth, ("t2i",))

    def _scores(self, pairing: Pairing) -> Float[Tensor, "i T"]:
        parts = [self._mean(part, *self._of_words(part)) for part in _parts(pairing)]
        return torch.cat(parts, 1 if pairing.aligned else 0)

    def _trained(
        self, images: Fragments, texts: Fragments
    ) -> tuple[Float[Tensor, "I T"], Float[Tensor, " T"]]:
        """The scores of images and their own texts, and the threshold of each text."""
        # Official: batches are sorted by length, the longest text first.
        order = texts.mask.sum(1).argsort(descending=True, stable=True)
        both = self.thresholds.both().double()
        walk = Walk(torch.cat([both, both.new_zeros(5)]), both.new_zeros(len(texts)), len(texts))
        # Sorted and cut, a text keeps the number of its own image.
        ordered = replace(texts[order], whole=order[:, None].to(texts.vectors.dtype))
        numbers = 12 if torch.is_grad_enabled() else 6
        learning, pairing = partial(self._learning, walk), Pairing(images.with_gram(), ordered)
        scores = pairing.scored(learning, numbers, all_images=True)
        if self.mining == "batch":
            walk.state = learnt_thresholds(walk.state, walk.state[2] > 0, self._rule)
        self.thresholds.store(walk.state[:2])
        return scores.index_select(1, order.argsort()), walk.used

    def _learning(self, walk: Walk, pairing: Pairing) -> Float[Tensor, "I t"]:
        """The scores of the next texts of a batch; their thresholds are found on the way."""
        pairing = pairing.with_products()
        texts, dots, is_new = pairing.queries, pairing.products(), walk.left > 0
        assert texts.whole is not None
        own = texts.whole[:, 0].long()
        of_words = [self._of_words(part) for part in _parts(pairing)]
        matched, best = (torch.cat(some).detach() for some in zip(*of_words, strict=True))
        best = best.masked_fill(~texts.mask.T, 0)
        if is_new:
            walk.left -= len(texts)
            used = walk.state[0].expand(len(texts))
            if self.mining == "text":
                used, walk.state = walk_texts(
                    dots.detach(), best, fragment_mean(matched, texts.mask),
                    pairing.contexts.products().detach(), texts.mask, own, walk.state, self._rule,
                )  # fmt: skip
            walk.used = walk.used.index_copy(0, own, used)
        pairing = replace(pairing, queries=replace(texts, whole=walk.used[own, None].to(dots.dtype)))
        scores = torch.cat(
            [self._mean(part, *words) for part, words in zip(_parts(pairing), of_words, strict=True)]
        )
        if is_new and self.mining == "batch":
            adds, _ = mined_words(scores.detach(), collected_words(best, texts.mask, own), own)
            walk.state = torch.cat([walk.state[:2], walk.state[2:] + adds.sum(0)])
        return scores

    @property
    def _rule(self) -> ThresholdRule:
        return ThresholdRule(self.smooth, self.thresholds.alpha, self.thresholds.min_words)

    def _of_words(self, pairing: Pairing) -> tuple[Float[Tensor, "I N q"], Float[Tensor, "I N q"]]:
        """r, and the largest product of every word."""
        dots, mask = pairing.products(), pairing.contexts.mask
        matched = (softmax_attention(dots, mask, self.smooth) * dots).sum(1)
        return matched, (dots + log_mask(mask).to(dots.dtype)).amax(1)

    def _mean(
        self, pairing: Pairing, matched: Float[Tensor, "I N q"], best: Float[Tensor, "I N q"]
    ) -> Float[Tensor, "i T"]:
        """The mean of `n + f + r` over words, with the thresholds that are stored as `texts.whole`."""
        texts = pairing.queries
        assert texts.whole is not None
        threshold = texts.whole[:, :, None] if pairing.aligned else texts.whole[:, 0]
        each, over = matched + self._features(pairing, best, threshold), best - threshold
        each, over = (pairing.by_query(numbers.mT).mT for numbers in (each, over))
        return fragment_mean(each + self._negative(over, texts), texts.mask)

    def _features(
        self, pairing: Pairing, best: Float[Tensor, "I N q"], threshold: Float[Tensor, "*I_1 q"]
    ) -> Float[Tensor, "I N q"]:
        """f; 0 where no region is above the threshold."""
        dots = pairing.products()
        # Padding has products of 0, and a threshold is not below 0.
        weights = (self.smooth * dots).masked_fill(dots <= threshold.unsqueeze(-2), -1e9).softmax(1)
        # Official: not divided by the length of the word, which is 1.
        lengths = attended_squares(pairing.contexts, weights).sqrt().clamp(min=1e-8)
        return ((weights * dots).sum(1) / lengths).masked_fill(best <= threshold, 0)

    def _negative(self, over: Float[Tensor, "i N T"], texts: Fragments) -> Float[Tensor, "i N T"]:
        """n: how far words are below the threshold."""
        judged = over
        if not self.training and self.intra_lambda is not None:
            # Official: only in evaluation, similar words are judged together.
            gram = texts.products()
            absent = log_mask(texts.mask)[:, None, :, 0, 0]
            alike = (self.intra_lambda * gram + absent.to(gram.dtype)).softmax(2)
            judged = (alike @ over.permute(2, 1, 0)).permute(2, 1, 0)
        return over.masked_fill(judged >= 0, 0)


def _parts(pairing: Pairing) -> list[Pairing]:
    """A few images at a time on a CPU."""
    pairing = pairing.with_products()
    dots = pairing.products()
    return pairing.parts(dots.element_size() * dots[:1].numel(), CHUNK_BYTES)


_PAPER = Paper(
    "Zhang et al., CVPR 2022",
    "https://openaccess.thecvf.com/content/CVPR2022/html/Zhang_Negative-Aware_Attention_Framework_for_Image-Text_Matching_CVPR_2022_paper.html",
)
_LAYOUT = AuthorsLayout(
    [(r"^txt_enc\.embed\.glove\.", "txt_enc.embed."), *FRAGMENT_NAMES],
    UNIT_VECTORS,
    {
        **SMOOTH,
        "thres": ("threshold", float),
        "thres_safe": ("threshold_safe", float),
        "alpha": ("alpha", float),
    },
    unsaved=("head.thresholds.",),
    axes=(("vocab_size", "txt_enc.embed.glove.weight", 0), ("word_dim", "txt_enc.embed.glove.weight", 1)),
)


@model(_PAPER, "cross-attention", official=_LAYOUT)
def naaf(
    common: WordSettings,
    smooth: float = 20.0,
    intra_lambda: float | None = 5.0,
    alpha: float = 2.0,
    min_words: int = 200,
    threshold: float = 0.0,
    threshold_safe: float = 0.0,
    mining: Mining = "text",
) -> CrossAttention:
    """NAAF: words that no region matches count against a pair.

    `mining="batch"` learns the threshold once per batch: the authors do not do this; it is faster on a GPU.
    """
    thresholds = Thresholds(threshold, threshold_safe, alpha, min_words)
    return with_head(NegativeAwareAttention(smooth, intra_lambda, thresholds, mining), common)
