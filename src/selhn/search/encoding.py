"""Turns items and queries into vectors, with the towers of an index."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Float

from selhn.base.errors import SelhnError
from selhn.search.items import Array, Item, Record, as_numbers
from selhn.towers import AbstractTowers, TowerTokenizer

LONGEST_QUERY = 10_000
"""Characters: three pages of text; longer queries are refused, so that memory stays bounded."""
FEWEST, SHARE = 1000, 0.02
"""A tokenizer knows a script if it has this many words in it, or this share of all its words."""
_LATIN = frozenset({"LATIN"})
_KNOWN_SCRIPTS: "WeakKeyDictionary[TowerTokenizer, frozenset[str]]" = WeakKeyDictionary()


def require_towers(towers: object) -> None:
    """Refuse a model where towers are wanted, and the name of one."""
    if isinstance(towers, str | Path):
        raise SelhnError(f"an index takes towers, not a name: Index.build(open_towers({str(towers)!r}), ...)")
    if not isinstance(towers, AbstractTowers):
        raise SelhnError(
            f"an index takes towers, not an object of class {type(towers).__name__}: for a model, "
            "Index.build(towers_of(model), ...), after `from selhn import towers_of`"
        )


def encode_items(
    towers: AbstractTowers, items: Sequence[Item], records: Sequence[Record], width: int
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "t d"]]:
    """The vectors of images and of all their captions in order; NaN and infinity are refused."""
    images, regions = np.empty((len(items), width), np.float32), dict[int, Array]()
    for row, item in enumerate(items):
        if item.vector is not None:
            if tuple(item.vector.shape) != (width,):
                raise SelhnError(
                    f"the vector of {item.id!r} has shape {tuple(item.vector.shape)}, but the index needs "
                    f"({width},): use the model of the index"
                )
            images[row] = as_numbers(item.vector)
        elif item.regions is not None:
            regions[row] = item.regions
        else:
            raise SelhnError(f"{item.id!r} has neither regions nor a vector: give one of them")
    if regions:
        together = padded(towers, list(regions.values()), [repr(items[row].id) for row in regions])
        images[list(regions)] = towers.embed_regions(*together)
    captions = [text for record in records for text in record.captions]
    texts = towers.embed_texts(captions)
    _refuse_not_finite(images, [item.id for item in items], "image")
    _refuse_not_finite(texts, captions, "text")
    return images, texts


def padded(
    towers: AbstractTowers, images: Sequence[Array], names: Sequence[str]
) -> tuple[Float[np.ndarray, "n M F"], Bool[np.ndarray, "n M"]]:
    """Images with different numbers of regions as one array; a wrong width is refused."""
    width = towers.feature_dim or images[0].shape[-1]
    for own, name in zip(images, names):
        if own.ndim != 2 or own.shape[0] == 0 or own.shape[1] != width:
            raise SelhnError(
                f"the regions of {name} have shape {tuple(own.shape)}: give (M, {width}) for this model"
            )
    lengths = np.array([len(own) for own in images])
    regions = np.zeros((len(images), lengths.max(), width), np.float32)
    for row, own in zip(regions, images):
        row[: len(own)] = as_numbers(own)
    return regions, np.arange(regions.shape[1]) < lengths[:, None]


def encode_queries_of_text(towers: AbstractTowers, texts: list[str]) -> Float[np.ndarray, "Q d"]:
    """The vectors of sentences; a sentence without a known word is refused."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise SelhnError("the query is empty: write a few words")
        if len(text) > LONGEST_QUERY:
            raise SelhnError(f"the query has {len(text):,} characters: shorten it to {LONGEST_QUERY:,}")
    foreign = next((text for text in texts if not can_read(towers.tokenizer, text)), None)
    if foreign is not None:
        raise SelhnError(
            f"the model has no words in the script of {foreign[:60]!r}: ask in the language that it has learnt, "
            "which is English for the ready model"
        )
    known = have_known_words(towers.tokenizer, texts)
    if not known.all():
        text = texts[int((~known).argmax())]
        raise SelhnError(
            f"the model knows no word of {text[:60]!r}: ask with other words, in the language that it has learnt, "
            "which is English for the ready model"
        )
    encoded = towers.embed_texts(texts)
    _refuse_not_finite(encoded, texts, "query")
    return encoded


def have_known_words(tokenizer: TowerTokenizer, texts: Sequence[str]) -> Bool[np.ndarray, " T"]:
    """Whether a text has a token that stands for a word, or for a piece of one."""
    tokens, mask = tokenizer.encode(texts)
    return (np.isin(tokens, tokenizer.ordinary) & mask).any(1)


def encode_queries_of_images(towers: AbstractTowers, images: Sequence[Array]) -> Float[np.ndarray, "Q d"]:
    """The vectors of images by their regions (M, F); an image may also be its vector (d,) itself."""
    encoded = np.empty((len(images), towers.width), np.float32)
    regions = {row: own for row, own in enumerate(images) if own.ndim != 1}
    for row, own in enumerate(images):
        if own.ndim == 1:
            if tuple(own.shape) != (towers.width,):
                raise SelhnError(
                    f"the vector of the query image has {len(own)} numbers, but the index needs {towers.width}"
                )
            encoded[row] = as_numbers(own)
    if regions:
        together, mask = padded(towers, list(regions.values()), ["the query"] * len(regions))
        if not np.isfinite(together).all():
            raise SelhnError("the regions of the query image contain NaN or infinity: extract them again")
        encoded[list(regions)] = towers.embed_regions(together, mask)
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


def can_read(tokenizer: TowerTokenizer, text: str) -> bool:
    """Whether a text has a letter of a script that the tokenizer has words in, or no letters at all.

    Always true for a tokenizer without word pieces: it knows a word, or it does not.
    """
    if not tokenizer.inner.any():
        return True
    if tokenizer not in _KNOWN_SCRIPTS:
        whole = tokenizer.ordinary[~tokenizer.inner[tokenizer.ordinary]].tolist()
        _KNOWN_SCRIPTS[tokenizer] = known_scripts(tokenizer.spell(whole))
    own = scripts_of(text)
    return not own or bool(own & _KNOWN_SCRIPTS[tokenizer])


def _refuse_not_finite(vectors: Float[np.ndarray, "n d"], names: Sequence[str], what: str) -> None:
    bad = (~np.isfinite(vectors).all(1)).nonzero()[0]
    if len(bad):
        raise SelhnError(
            f"the vector of the {what} {names[int(bad[0])][:80]!r} contains NaN or infinity: "
            "check the features and the model"
        )
