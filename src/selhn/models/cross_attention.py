"""Matchers that compare regions with words: two fragment encoders, and a head that scores all pairs."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from selhn.base.errors import SelhnError
from selhn.base.types import Attention, at_least_float32
from selhn.models.builders import WordSettings, xavier
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real, taken_side
from selhn.ops import Fragments, Pairing, WordGRU, real_or_all, unit
from selhn.text import Tokenizer


class RegionEncoder(nn.Module):
    """Region features to vectors, `unit(FC(x))` if `normed`; with `pool`, also to one for the image."""

    def __init__(self, feature_dim: int, dim: int, pool: nn.Module | None = None, normed: bool = True):
        super().__init__()
        self.fc = xavier(feature_dim, dim)
        self.pool = pool
        self.normed = normed

    def forward(self, regions: Regions, mask: RegionMask, **side: Tensor) -> Fragments:
        fragments = _fragments(self.fc(regions), mask, self.normed)
        return fragments if self.pool is None else self.pool(fragments, **side)


class WordEncoder(nn.Module):
    """Words to vectors, `unit(BiGRU(dropout(words)))` if `normed`; with `pool`, also to one for the text."""

    def __init__(
        self, vocab_size: int, word_dim: int, dim: int, dropout: float = 0.0, pool: nn.Module | None = None,
        normed: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.words = WordGRU(vocab_size, word_dim, dim, dropout)
        self.pool = pool
        self.normed = normed

    def forward(self, tokens: Tokens, mask: TokenMask, **side: Tensor) -> Fragments:
        fragments = _fragments(self.words(tokens, mask), mask, self.normed)
        return fragments if self.pool is None else self.pool(fragments, **side)


def _fragments(vectors: Float[Tensor, "n K d"], mask: Bool[Tensor, "n K"], normed: bool) -> Fragments:
    return Fragments.of(unit(vectors) if normed else at_least_float32(vectors), mask)


class SelfAttentionPool(nn.Module):
    """One vector for all fragments: unit(sum of p_k x_k), p = softmax of W (f(x_k) * g(mean of x)).

    With `unit_mean` the mean has length 1 (CVSE's texts).

    f and g are FC, tanh and dropout; for images there is a batch norm before tanh, and that of f has a
    channel per region position, so the number of regions is fixed in the model.
    """

    def __init__(self, dim: int, dropout: float, num_regions: int | None = None, unit_mean: bool = False):
        super().__init__()
        self.num_regions, self.unit_mean = num_regions, unit_mean

        def branch(channels: int | None) -> nn.Sequential:
            norm = [] if channels is None else [nn.BatchNorm1d(channels)]
            return nn.Sequential(xavier(dim, dim), *norm, nn.Tanh(), nn.Dropout(dropout))

        self.local = branch(num_regions)
        self.mean = branch(None if num_regions is None else dim)
        self.common = xavier(dim, 1)
        # The bias adds the same to all logits of a softmax; published weights have it.
        self.common.bias.requires_grad_(False)

    def forward(self, fragments: Fragments) -> Fragments:
        whole = unit(self.pooled(fragments.vectors, self.logits(fragments)))
        return Fragments(fragments.vectors, fragments.mask, whole)

    def pooled(self, vectors: Float[Tensor, "n K d"], logits: Float[Tensor, "n K"]) -> Float[Tensor, "n d"]:
        # Not a matrix product: autocast would round it.
        return (logits.softmax(1)[:, :, None] * vectors).sum(1)

    def logits(self, fragments: Fragments) -> Float[Tensor, "n K"]:
        """Logits of the softmax over fragments; -inf for padding."""
        vectors, mask = fragments.vectors, fragments.mask
        missing = 0 if self.num_regions is None else self.num_regions - mask.shape[1]
        if missing < 0:
            raise SelhnError(
                f"this model takes images of {self.num_regions} regions and got {mask.shape[1]}: make "
                f"one with num_regions={mask.shape[1]}, or give it features of {self.num_regions} regions"
            )
        mean = vectors.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        mean = unit(mean) if self.unit_mean else mean
        # All images of a split may have fewer regions than the model; the missing places are padding.
        places = pad(vectors, (0, 0, 0, missing)) if missing else vectors
        logits = self.common(self.local(places) * self.mean(mean)[:, None]).squeeze(2)[:, : mask.shape[1]]
        return logits.to(vectors.dtype).masked_fill(~real_or_all(mask), -torch.inf)


class CrossAttention(AbstractMatcher):
    """Encoders of fragments, and a head that gives a number for every pair.

    Args:
        head: `head(pairing)` gives the logits of a `Pairing` in float32 or wider, (I, T), or if it is aligned those
            of image p with text p, (P,); `head.attention(pairing)` the tensors of an `Attention` of one pair, by
            name; the matcher takes over the head's `pairs_apart` and `images_apart`.
        sigmoid: whether a score is the sigmoid of the head's number.
    """

    def __init__(
        self,
        image: RegionEncoder,
        text: WordEncoder,
        head: nn.Module,
        sigmoid: bool = False,
        tokenizer: Tokenizer | None = None,
    ):
        super().__init__(tokenizer)
        self.image = image
        self.text = text
        self.head = head
        self.sigmoid = sigmoid
        self.pairs_apart = bool(getattr(head, "pairs_apart", False))
        self.images_apart = self.pairs_apart or bool(getattr(head, "images_apart", False))
        self.settings = {"vocab_size": text.words.embed.num_embeddings}
        self.watched = {"image": image, "text": text, "image_fc": image.fc, "text_last": text.words.rnn}

    def encode_images(
        self, regions: Regions, region_mask: RegionMask | None = None, **side: Tensor
    ) -> Fragments:
        return self.image(regions, all_real(regions, region_mask), **taken_side(self, side, "images"))

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None, **side: Tensor) -> Fragments:
        return self.text(tokens, all_real(tokens, token_mask), **taken_side(self, side, "texts"))

    def score(self, images: Fragments, texts: Fragments) -> Float[Tensor, "I T"]:
        return self.activation(self.logits(images, texts))

    def logits(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "..."]:
        """The head's numbers, which still differ when their sigmoids are all 1."""
        return self.head(Pairing(images, texts, aligned))

    def activation(self, logits: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
        return logits.sigmoid() if self.sigmoid else logits

    def attention(self, images: Fragments, texts: Fragments) -> Attention:
        """Attention between the words of one text and the regions of one image, without padding.

        Words are numbered here; `selhn.eval.pair_attention` adds their spelling.
        """
        if len(images) != 1 or len(texts) != 1:
            raise SelhnError(
                f"attention is for one image and one text, got {len(images)} and {len(texts)}: "
                "cut them, for example images[2:3] and texts[5:6]"
            )
        with torch.no_grad():
            score = self.score(images, texts).item()
            head: Any = self.head
            weights = head.attention(Pairing(images, texts))
        regions, words = images.mask[0], texts.mask[0]
        present = {name: w[words][:, regions] if w.ndim == 2 else w[words] for name, w in weights.items()}
        numbers = tuple(str(number) for number in range(int(words.sum())))
        return Attention(score, **present, words=numbers, is_word=(True,) * len(numbers))


def with_head(head: nn.Module, common: WordSettings) -> CrossAttention:
    """A matcher with plain encoders, as SCAN and BFAN have them."""
    text = WordEncoder(common.num_words, common.word_dim, common.dim)
    return CrossAttention(
        RegionEncoder(common.feature_dim, common.dim), text, head, tokenizer=common.tokenizer
    )
