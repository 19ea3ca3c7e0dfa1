"""The hardest negatives of every image and of every text of a split, found tile by tile."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from selhn.base.device import device_of
from selhn.data import Split, TextBlocks, image_blocks
from selhn.layers import Fragments, unit
from selhn.models import AbstractMatcher, in_eval_mode

TILE_BYTES = 2**28
BYTES_PER_SCORE = 16
"""A float32 score, a masked copy of it, its mask, and what topk needs."""


class TextsOfImages(NamedTuple):
    """The texts of every image, as many places as any image has texts, and how many of them are taken."""

    texts: Int[Tensor, "I most"]
    number: Int[Tensor, " I"]

    @classmethod
    def of(cls, split: Split, device: torch.device) -> "TextsOfImages":
        """Those of a split, on a device."""
        image_of_text = split.image_of_text.cpu()
        count = image_of_text.bincount(minlength=split.num_images)
        by_image = image_of_text.argsort(stable=True)
        place = torch.arange(split.num_texts) - (count.cumsum(0) - count)[image_of_text[by_image]]
        texts = torch.zeros(split.num_images, max(1, int(count.max())), dtype=torch.int64)
        texts[image_of_text[by_image], place] = by_image
        return cls(texts.to(device), count.to(device))


def hardest_negatives(
    model: AbstractMatcher, split: Split, num_texts: int, num_images: int, tile_bytes: int = TILE_BYTES
) -> tuple[Int32[Tensor, "I t"], Int32[Tensor, "T i"]]:
    """The hardest negative texts of every image, and the hardest negative images of every text, hardest first.

    Embedding models rank by their own scores, exactly. A model that compares fragments ranks by one vector
    per item (see `one_vector`). In memory are a vector per image and text, and one tile. Images without texts
    are left out.
    """
    device = device_of(model)
    assert model.tokenizer is not None
    with in_eval_mode(model):
        blocks = TextBlocks(split, model.tokenizer, device=device)
        images = torch.cat([one_vector(model.encode_images(*part)) for part in image_blocks(split, device=device)])
        texts = torch.cat([one_vector(model.encode_texts(*part)) for part in blocks])[blocks.inverse]
        has_fragments = isinstance(model.encode_texts(*next(iter(blocks))), Fragments)
        score: Callable[[Tensor, Tensor], Tensor] = _cosines if has_fragments else model.score
        image_of_text = split.image_of_text.to(device)
        every_image = torch.arange(split.num_images, device=device)
        without_texts = image_of_text.bincount(minlength=split.num_images) == 0

        def for_images(rows: slice) -> tuple[Tensor, Tensor]:
            return score(images[rows], texts), every_image[rows, None] == image_of_text

        def for_texts(rows: slice) -> tuple[Tensor, Tensor]:
            return score(images, texts[rows]).T, (image_of_text[rows, None] == every_image) | without_texts

        rows_at_once = [max(1, tile_bytes // (BYTES_PER_SCORE * many)) for many in (split.num_texts, split.num_images)]
        return (
            _largest(for_images, split.num_images, rows_at_once[0], num_texts),
            _largest(for_texts, split.num_texts, rows_at_once[1], num_images),
        )


def one_vector(encoded: Any) -> Float[Tensor, "n d"]:
    """One vector per item: the embedding, that of the whole item, or the mean direction of its fragments."""
    if not isinstance(encoded, Fragments):
        return encoded
    return unit(encoded.vectors.sum(dim=1) if encoded.whole is None else encoded.whole)


def _cosines(images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
    return images @ texts.T


def _largest(
    tile: Callable[[slice], tuple[Float[Tensor, "q n"], Bool[Tensor, "q n"]]], queries: int, step: int, k: int
) -> Int32[Tensor, "Q k"]:
    """Places of the k largest scores of every query; `tile` gives those of some, and which do not count."""
    found = []
    for first in range(0, queries, step):
        scores, left_out = tile(slice(first, first + step))
        found.append(scores.masked_fill(left_out, -torch.inf).topk(k, dim=1).indices.int())
    return torch.cat(found)
