"""Use any model as a matcher: two functions that embed images and texts, or one that scores pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.models.pixels import as_pixels
from selhn.ops import Fragments, unit
from selhn.text import Tokenizer, TokenKinds
from selhn.text.tokenizer import decodable

MOST_TOKENS = 256
"""Longer texts are cut, even if a model has more positions."""


@dataclass(frozen=True)
class FastTokenizer:
    """A tokenizer of the library `tokenizers`, and how it is used."""

    tokenizer: Any
    """None if the texts are cut by other means."""
    longest: int
    is_padded: bool
    """Whether all texts are padded to `longest`; padding counts as text."""


class LibraryTokenizer:
    """The tokenizer of another library, as selhn's models use one.

    Args:
        encode: texts to ids and mask.
        special: ids that are not words.
        spell: the token of each id.
        fast: what does the work, to export it.
    """

    mask_id: int | None = None

    def __init__(
        self,
        encode: Callable[[list[str]], tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]],
        size: int,
        special: Sequence[int],
        spell: Callable[[list[int]], list[str]],
        pad_id: int = 0,
        fast: "FastTokenizer | None" = None,
    ):
        self._encode, self.spell, self.size, self.pad_id, self.fast = encode, spell, size, pad_id, fast
        is_special = torch.zeros(size, dtype=torch.bool)
        is_special[[i for i in special if i < size]] = True
        self.kinds = TokenKinds(
            is_special, torch.zeros(size, dtype=torch.bool), (~is_special).nonzero()[:, 0]
        )

    @classmethod
    def of_transformers(
        cls, words: Any, size: int = 0, longest: int = MOST_TOKENS, whole: bool = False
    ) -> "LibraryTokenizer":
        """A tokenizer of transformers; `whole` pads all texts to one length; padding counts as text."""
        longest = min(MOST_TOKENS, longest, words.model_max_length)
        encode = partial(_encode, words, longest, whole)
        size = max(len(words), size)
        fast = FastTokenizer(getattr(words, "backend_tokenizer", None), longest, whole)
        return cls(
            encode, size, words.all_special_ids, words.convert_ids_to_tokens, words.pad_token_id or 0, fast
        )

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        return self._encode(decodable(texts))

    def save(self, folder: Path) -> None:
        raise SelhnError("the tokenizer of another library is not saved: an index names the model instead")


def _encode(words: Any, longest: int, whole: bool, texts: list[str]) -> tuple[Tensor, Tensor]:
    padding = "max_length" if whole else "longest"
    found = words(
        texts,
        padding=padding,
        truncation=True,
        max_length=longest,
        return_tensors="pt",
        return_attention_mask=True,
    )
    mask = found["attention_mask"].bool()
    return found["input_ids"], torch.ones_like(mask) if whole else mask


def vectors_of(found: Any, items: int, of: str) -> Float[Tensor, "n d"]:
    """The vectors in the output of `images=` or `texts=`: the output itself, or its `pooler_output`."""
    vectors = found if isinstance(found, Tensor) else getattr(found, "pooler_output", None)
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != items:
        got = f"a tensor {tuple(vectors.shape)}" if isinstance(vectors, Tensor) else type(found).__name__
        raise SelhnError(
            f"the function {of}= returned {got} for {items} {of}: it must return a tensor with one vector for each, "
            f"({items}, d)"
        )
    return vectors


class Adapted(AbstractMatcher):
    """What `adapt` returns."""

    def __init__(
        self,
        module: nn.Module | None,
        images: Callable[..., Any] | None,
        texts: Callable[..., Any] | None,
        scores: Callable[..., Tensor] | None,
        tokenizer: Any,
        pixels: bool,
    ):
        if not isinstance(tokenizer, Tokenizer | None):
            tokenizer = LibraryTokenizer.of_transformers(tokenizer)
        super().__init__(tokenizer)
        if (images is None) != (texts is None) or (images is None and scores is None):
            raise SelhnError(
                "adapt takes images= and texts=, two functions that embed, or scores=, one that scores"
            )
        self.module, self.pixels = module, pixels
        self._images, self._texts, self._scores = images, texts, scores
        self.is_embedding = scores is None
        if module is None:
            self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # tells the device

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Any:
        mask = all_real(regions, region_mask)
        if self._images is None:
            return Fragments(regions, mask)
        found = self._images(as_pixels(regions, mask)) if self.pixels else self._images(regions, mask)
        return unit(vectors_of(found, len(regions), "images")) if self.is_embedding else found

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Any:
        mask = all_real(tokens, token_mask)
        if self._texts is None:
            return Fragments(tokens[..., None].double(), mask)  # float64 holds ids exactly
        found = self._texts(tokens.long(), mask)
        return unit(vectors_of(found, len(tokens), "texts")) if self.is_embedding else found

    def score(self, images: Any, texts: Any) -> Float[Tensor, "I T"]:
        if self._scores is None:
            return super().score(images, texts)
        if self._images is not None:
            return self._scores(images, texts)
        regions = as_pixels(images.vectors, images.mask) if self.pixels else images.vectors
        return self._scores(regions, images.mask, texts.vectors[..., 0].long(), texts.mask)


def adapt(
    module: nn.Module | None = None,
    *,
    images: Callable[..., Any] | None = None,
    texts: Callable[..., Any] | None = None,
    scores: Callable[..., Tensor] | None = None,
    tokenizer: Any = None,
    pixels: bool = False,
) -> AbstractMatcher:
    """Adapt any model for `selhn.train`, `evaluate`, `Index` and `diagnose`.

    Args:
        module: the module that is trained, moved to a device and saved; it holds all the functions use.
        images: `(regions, region_mask)` to one vector per image, or with `pixels` a function of pictures (I, 3, H, W)
            from -1 to 1, of data that was imported with the extractor pixels_SIDE_PATCH. Vectors are made unit vectors.
        texts: `(tokens, token_mask)` to one vector per text.
        scores: `(images, texts)` to (I, T), of what the two return, if these are not vectors to compare. Without
            `images` and `texts`: `(regions, region_mask, tokens, token_mask)` to (I, T).
        tokenizer: `Vocabulary.build(captions)`, or a tokenizer of transformers.

    To save it, and to train it by `selhn train`, register a function that builds it (`register_model`).

    Example:
        >>> model = adapt(clip, images=clip.get_image_features, pixels=True, tokenizer=words,
        ...     texts=lambda ids, mask: clip.get_text_features(input_ids=ids, attention_mask=mask))  # doctest: +SKIP
    """
    return Adapted(module, images, texts, scores, tokenizer, pixels)
