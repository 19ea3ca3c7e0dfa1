"""Turns items and queries into vectors, with the model of an index."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.models import AbstractMatcher
from selhn.models.matcher import taken_side
from selhn.search.items import Item, Record
from selhn.text import Tokenizer

LONGEST_QUERY = 10_000
"""Characters: three pages of text; longer queries are refused, so that memory stays bounded."""
FEWEST, SHARE = 1000, 0.02
"""A tokenizer knows a script if it has this many words in it, or this share of all its words."""
_LATIN = frozenset({"LATIN"})
_KNOWN_SCRIPTS: "WeakKeyDictionary[Tokenizer, frozenset[str]]" = WeakKeyDictionary()


def width_of(model: AbstractMatcher) -> int:
    """Width of a model's vectors; a model without vectors to search by is refused."""
    return model.embed_texts(["a"]).shape[1]


def encode_items(
    model: AbstractMatcher, items: Sequence[Item], records: Sequence[Record], width: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "t d"]]:
    """The vectors of images and of all their captions in order, on the CPU; NaN and infinity are refused."""
    images, regions = torch.empty(len(items), width), dict[int, Tensor]()
    for row, item in enumerate(items):
        if item.vector is not None:
            if item.vector.shape != (width,):
                raise SelhnError(
                    f"the vector of {item.id!r} has shape {tuple(item.vector.shape)}, but the index needs "
                    f"({width},): use the model of the index"
                )
            images[row] = item.vector
        elif item.regions is not None:
            regions[row] = item.regions
        else:
            raise SelhnError(f"{item.id!r} has neither regions nor a vector: give one of them")
    if regions:
        together = padded(model, list(regions.values()), [repr(items[row].id) for row in regions])
        images[list(regions)] = model.embed_images(*together).float().cpu()
    captions = [text for record in records for text in record.captions]
    texts = model.embed_texts(captions).float().cpu()
    _refuse_not_finite(images, [item.id for item in items], "image")
    _refuse_not_finite(texts, captions, "text")
    return images, texts


def padded(
    model: AbstractMatcher, images: Sequence[Float[Tensor, "_ F"]], names: Sequence[str]
) -> tuple[Float[Tensor, "n M F"], Bool[Tensor, "n M"]]:
    """Images with different numbers of regions as one tensor; a wrong width is refused."""
    width = model.settings.get("feature_dim", images[0].shape[-1])
    for own, name in zip(images, names):
        if own.ndim != 2 or own.shape[0] == 0 or own.shape[1] != width:
            raise SelhnError(
                f"the regions of {name} have shape {tuple(own.shape)}: give (M, {width}) for this model"
            )
    regions = pad_sequence([own.float() for own in images], batch_first=True)
    lengths = torch.tensor([[len(own)] for own in images])
    return regions, (torch.arange(regions.shape[1]) < lengths).to(regions.device)


def encode_queries_of_text(model: AbstractMatcher, texts: list[str]) -> Float[Tensor, "Q d"]:
    """The vectors of sentences, by a model in evaluation mode; a sentence without a known word is refused."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise SelhnError("the query is empty: write a few words")
        if len(text) > LONGEST_QUERY:
            raise SelhnError(f"the query has {len(text):,} characters: shorten it to {LONGEST_QUERY:,}")
    taken_side(model, {}, "texts")  # a question has no side inputs
    tokens, mask = model.tokenize(texts)
    assert model.tokenizer is not None
    foreign = next((text for text in texts if not can_read(model.tokenizer, text)), None)
    if foreign is not None:
        raise SelhnError(
            f"the model has no words in the script of {foreign[:60]!r}: ask in the language that it has learnt, "
            "which is English for the ready model"
        )
    known = (torch.isin(tokens, model.tokenizer.kinds.ordinary.to(tokens.device)) & mask).any(1)
    if not bool(known.all()):
        text = texts[int((~known).nonzero()[0])]
        raise SelhnError(
            f"the model knows no word of {text[:60]!r}: ask with other words, in the language that it has learnt, "
            "which is English for the ready model"
        )
    device = device_of(model)
    encoded = model.encode_texts(tokens.to(device), mask.to(device)).float()
    _refuse_not_finite(encoded, texts, "query")
    return encoded


def encode_queries_of_images(
    model: AbstractMatcher, images: Sequence[Float[Tensor, "_ F"]]
) -> Float[Tensor, "Q d"]:
    """The vectors of images by their regions, by a model in evaluation mode."""
    together, mask = padded(model, images, ["the query"] * len(images))
    if not bool(together.isfinite().all()):
        raise SelhnError("the regions of the query image contain NaN or infinity: extract them again")
    encoded = model.embed_images(together, mask).float()
    _refuse_not_finite(encoded, ["of an image"] * len(images), "query")
    return encoded


def scripts_of(text: str) -> frozenset[str]:
    """The scripts of the letters in a text, by the names Unicode gives them: LATIN, CYRILLIC, CJK."""
    if text.isascii():
        return _LATIN if any(map(str.isalpha, text)) else frozenset()
    letters = {letter for letter in unicodedata.normalize("NFKC", text) if letter.isalpha()}
    return frozenset(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in letters)


def known_scripts(words: Iterable[str]) -> frozenset[str]:
    """The scripts of enough words: an English BERT also has single letters of many other scripts."""
    counts = Counter(script for word in words for script in scripts_of(word))
    enough = min(FEWEST, SHARE * counts.total())
    return frozenset(script for script, number in counts.items() if number >= enough)


def can_read(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has a letter of a script that the tokenizer has words in, or no letters at all.

    Always true for a tokenizer without word pieces: it knows a word, or it does not.
    """
    kinds = tokenizer.kinds
    if not bool(kinds.inner.any()):
        return True
    if tokenizer not in _KNOWN_SCRIPTS:
        whole = kinds.ordinary[~kinds.inner[kinds.ordinary]].tolist()
        _KNOWN_SCRIPTS[tokenizer] = known_scripts(tokenizer.spell(whole))
    own = scripts_of(text)
    return not own or bool(own & _KNOWN_SCRIPTS[tokenizer])


def _refuse_not_finite(vectors: Float[Tensor, "n d"], names: Sequence[str], what: str) -> None:
    bad = (~vectors.isfinite().all(1)).nonzero()
    if len(bad):
        raise SelhnError(
            f"the vector of the {what} {names[int(bad[0])][:80]!r} contains NaN or infinity: "
            "check the features and the model"
        )
