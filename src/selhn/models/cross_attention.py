"""Matchers that compare regions with words: two encoders of fragments, and a head that scores all pairs."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.types import Attention
from selhn.layers import Fragments, WordGRU, unit
from selhn.models.builders import WordSettings, xavier
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real, taken_side
from selhn.text import Tokenizer


class RegionEncoder(nn.Module):
    """Region features to vectors, `unit(FC(x))` if `normed`; with `pool`, also to one vector for the image."""

    def __init__(self, feature_dim: int, dim: int, pool: nn.Module | None = None, normed: bool = True):
        super().__init__()
        self.fc = xavier(feature_dim, dim)
        self.pool = pool
        self.normed = normed

    def forward(self, regions: Regions, mask: RegionMask, **side: Tensor) -> Fragments:
        fragments = _fragments(self.fc(regions), mask, self.normed)
        return fragments if self.pool is None else self.pool(fragments, **side)


class WordEncoder(nn.Module):
    """Words to vectors, `unit(BiGRU(dropout(words)))` if `normed`; with `pool`, also to one vector for the text."""

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
    """In float32 or wider."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return Fragments.of(unit(wide) if normed else wide, mask)


class CrossAttention(AbstractMatcher):
    """Fragments of images and texts, and a head that makes a number of every pair.

    Args:
        head: `head(images, texts, aligned)` gives (I, T) logits, or with `aligned` those of image p with text p,
            (P,), in float32 or wider; `head.attention(images, texts)` the tensors of an `Attention` of one
            pair, by name; `head.pairs_apart` is that of the matcher.
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
        self.settings = {"vocab_size": text.words.embed.num_embeddings}
        self.watched = {"image": image, "text": text, "image_fc": image.fc, "text_last": text.words.rnn}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None, **side: Tensor) -> Fragments:
        return self.image(regions, all_real(regions, region_mask), **taken_side(self, side, "images"))

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None, **side: Tensor) -> Fragments:
        return self.text(tokens, all_real(tokens, token_mask), **taken_side(self, side, "texts"))

    def score(self, images: Fragments, texts: Fragments) -> Float[Tensor, "I T"]:
        return self.activation(self.logits(images, texts))

    def logits(self, images: Fragments, texts: Fragments, aligned: bool = False) -> Float[Tensor, "..."]:
        """The head's numbers, which still differ where their sigmoids are all 1."""
        return self.head(images, texts, aligned)

    def activation(self, logits: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
        return logits.sigmoid() if self.sigmoid else logits

    @property
    def pairs_apart(self) -> bool:
        """Whether a pair scores the same without the others, in training too: no statistics over pairs."""
        return bool(getattr(self.head, "pairs_apart", False))

    def attention(self, images: Fragments, texts: Fragments) -> Attention:
        """Which word of one text looks at which region of one image, or vice versa, without padding.

        Words are called by their numbers here; `selhn.eval.pair_attention` knows what they are.
        """
        if len(images) != 1 or len(texts) != 1:
            raise SelhnError(
                f"attention is that of one image and one text, got {len(images)} and {len(texts)}: "
                "cut them, for example images[2:3] and texts[5:6]"
            )
        with torch.no_grad():
            score = self.score(images, texts).item()
            head: Any = self.head
            weights = head.attention(images, texts)
        regions, words = images.mask[0], texts.mask[0]
        present = {name: w[words][:, regions] if w.ndim == 2 else w[words] for name, w in weights.items()}
        numbers = tuple(str(number) for number in range(int(words.sum())))
        return Attention(score, **present, words=numbers, is_word=(True,) * len(numbers))


def with_head(head: nn.Module, common: WordSettings) -> CrossAttention:
    """A matcher with plain encoders, as SCAN and BFAN have them."""
    text = WordEncoder(common.num_words, common.word_dim, common.dim)
    return CrossAttention(RegionEncoder(common.feature_dim, common.dim), text, head, tokenizer=common.tokenizer)
