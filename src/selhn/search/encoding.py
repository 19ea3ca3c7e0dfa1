"""Items and queries to vectors, by the model of an index."""

import hashlib
import json
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data import DenseFeatures, Split
from selhn.eval.encoded import encode_split
from selhn.eval.stored import identity_of_model
from selhn.models import AbstractMatcher, CrossAttention, Twins, in_eval_mode
from selhn.search.items import Item, Record
from selhn.search.scripts import can_read

LONGEST_QUERY = 10_000
"""Characters: the text of three pages, and bounded memory for whoever sends more."""


def require_vectors(model: AbstractMatcher) -> None:
    """Refuse a model that has no vector for an image."""
    if isinstance(model.both[0] if isinstance(model, Twins) else model, CrossAttention):
        raise SelhnError(
            f"{model.name or type(model).__name__} compares regions with words and has no vector to search by: "
            "build the index with an embedding model, such as rvse, and re-rank its answers with this one"
        )


def width_of(model: AbstractMatcher) -> int:
    """d, of the vector that the model gives a text."""
    return _texts_alone(model, ["a"]).shape[1]


def digest_of(model: AbstractMatcher) -> str:
    """What tells a model from every other whose vectors differ."""
    return hashlib.blake2b(json.dumps(identity_of_model(model)).encode(), digest_size=12).hexdigest()


def require_same_model(model: AbstractMatcher, written_by: str, name: str, place: object, remedy: str) -> None:
    """Refuse a model whose vectors are not those of an index: `written_by` is the digest of the one that has them."""
    if digest_of(model) != written_by:
        raise SelhnError(
            f"{place} was written by another model ({name}, {written_by}) than this one "
            f"({model.name or type(model).__name__}, {digest_of(model)}): their vectors cannot be compared; {remedy}"
        )


def encode_items(
    model: AbstractMatcher, items: Sequence[Item], records: Sequence[Record], width: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "t d"]]:
    """The vectors of images and of all their captions in order, on the CPU, none of them NaN."""
    by_regions = [row for row, item in enumerate(items) if item.vector is None]
    for row in by_regions:
        if items[row].regions is None:
            raise SelhnError(f"{items[row].id!r} has neither regions nor a vector: give one of them")
    captions = [text for record in records for text in record.captions]
    encoded, texts = _encode(model, [items[row] for row in by_regions], captions)
    images = torch.empty(len(items), width)
    for row, item in enumerate(items):
        if item.vector is not None:
            if item.vector.shape != (width,):
                raise SelhnError(
                    f"the vector of {item.id!r} has shape {tuple(item.vector.shape)}, those of the index ({width},): "
                    "give what the model of the index makes"
                )
            images[row] = item.vector
    images[by_regions] = encoded.reshape(-1, width)
    _refuse_not_finite(images, [item.id for item in items], "image")
    _refuse_not_finite(texts, captions, "text")
    return images, texts.reshape(-1, width)


def _encode(model: AbstractMatcher, items: Sequence[Item], captions: list[str]) -> tuple[Tensor, Tensor]:
    """As a split is encoded; with no image, texts alone."""
    if not items:
        return torch.empty(0, 0), _texts_alone(model, captions)
    regions, mask = padded([item.regions for item in items if item.regions is not None], [item.id for item in items])
    nobody = torch.zeros(len(captions), dtype=torch.int64)
    split = Split("the items", DenseFeatures(regions, None, mask), captions, nobody, [item.id for item in items])
    images, texts = encode_split(model, split)
    return images.float().cpu(), texts.float().cpu()


def _texts_alone(model: AbstractMatcher, captions: list[str], block: int = 512) -> Float[Tensor, "t d"]:
    device = next(model.parameters()).device
    with in_eval_mode(model):
        blocks = [model.tokenize(captions[first : first + block]) for first in range(0, len(captions), block)]
        encoded = [model.encode_texts(tokens.to(device), mask.to(device)).float().cpu() for tokens, mask in blocks]
    return torch.cat(encoded) if encoded else torch.empty(0, 0)


def padded(
    images: Sequence[Float[Tensor, "_ F"]], names: Sequence[str]
) -> tuple[Float[Tensor, "n M F"], Bool[Tensor, "n M"]]:
    """Images with different numbers of regions as one tensor."""
    for own, name in zip(images, names):
        if own.ndim != 2 or own.shape[0] == 0 or own.shape[1] != images[0].shape[-1]:
            raise SelhnError(
                f"the regions of {name!r} have shape {tuple(own.shape)}: give (M, F), with one F for all images"
            )
    longest = max(len(own) for own in images)
    regions = images[0].new_zeros(len(images), longest, images[0].shape[1], dtype=torch.float32)
    mask = torch.zeros(len(images), longest, dtype=torch.bool)
    for row, own in enumerate(images):
        regions[row, : len(own)], mask[row, : len(own)] = own, True
    return regions, mask.to(regions.device)


def encode_queries_of_text(model: AbstractMatcher, texts: list[str]) -> Float[Tensor, "Q d"]:
    """The vectors of sentences that people typed."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise SelhnError("the query is empty: write a few words")
        if len(text) > LONGEST_QUERY:
            raise SelhnError(f"the query has {len(text):,} characters, at most {LONGEST_QUERY:,} are read: shorten it")
    tokens, mask = model.tokenize(texts)
    assert model.tokenizer is not None
    foreign = next((text for text in texts if not can_read(model.tokenizer, text)), None)
    if foreign is not None:
        raise SelhnError(
            f"the model has no words in the script of {foreign[:60]!r}: ask in the language of its captions"
        )
    known = (torch.isin(tokens, model.tokenizer.kinds.ordinary.to(tokens.device)) & mask).any(1)
    if not bool(known.all()):
        text = texts[int((~known).nonzero()[0])]
        raise SelhnError(
            f"the model knows no word of {text[:60]!r}: it was trained on other words or another language; "
            "ask in the language of its captions"
        )
    device = next(model.parameters()).device
    with in_eval_mode(model):
        encoded = model.encode_texts(tokens.to(device), mask.to(device)).float()
    _refuse_not_finite(encoded, texts, "query")
    return encoded


def encode_queries_of_images(model: AbstractMatcher, images: list[Float[Tensor, "_ F"]]) -> Float[Tensor, "Q d"]:
    """The vectors of images that are asked with."""
    for regions in images:
        width = model.settings.get("feature_dim", regions.shape[-1])
        if regions.ndim != 2 or regions.shape[1] != width or regions.shape[0] == 0:
            raise SelhnError(
                f"an image is asked for by its regions, (M, {width}) for this model; got shape {tuple(regions.shape)}"
            )
        if not bool(regions.isfinite().all()):
            raise SelhnError("the regions of the image asked for hold NaN or infinity: extract them again")
    device = next(model.parameters()).device
    regions, mask = padded(images, ["the query"] * len(images))
    with in_eval_mode(model):
        encoded = model.encode_images(regions.to(device), mask.to(device)).float()
    _refuse_not_finite(encoded, ["of an image"] * len(images), "query")
    return encoded


def _refuse_not_finite(vectors: Float[Tensor, "n d"], names: Sequence[str], what: str) -> None:
    bad = (~vectors.isfinite().all(1)).nonzero()
    if len(bad):
        raise SelhnError(
            f"the vector of the {what} {names[int(bad[0])][:80]!r} holds NaN or infinity: nothing of it was indexed; "
            "find where the features or the model make it"
        )
