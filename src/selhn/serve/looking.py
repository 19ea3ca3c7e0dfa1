"""Which part of a picture each word of a question is about, as far as the towers can say."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from PIL import Image
from pydantic import BaseModel

from selhn.pictures.decoding import decode_picture
from selhn.pictures.picture_folders import located_source
from selhn.search.encoding import have_known_words
from selhn.text import split_words
from selhn.towers import AbstractTowers

KEPT = 32
MOST_WORDS = 24
FULL_FIT = 0.4
"""Score of one part with one word that is drawn in the full colour; weaker maxima stay paler than that."""


class LookMessage(BaseModel):
    """What the words of a sentence look at in a picture."""

    kind: Literal["attention", "fit"]
    """The attention of a model that has one, or how well each part alone fits each word alone."""
    words: list[str]
    boxes: list[list[float]]
    """x1, y1, x2, y2 as shares of width and height."""
    weights: list[list[float]]
    """One row per word, one column per box."""
    full: float
    """The weight that is drawn in the full colour."""

    @classmethod
    def of(
        cls,
        kind: Literal["attention", "fit"],
        words: list[str],
        boxes: Float[np.ndarray, "B 4"],
        weights: Float[np.ndarray, "words B"],
        least: float,
    ) -> "LookMessage":
        """`least`: the smallest weight that may be drawn in the full colour."""
        full = max([least, *weights.flatten().tolist()])
        return cls(kind=kind, words=words, boxes=boxes.tolist(), weights=weights.tolist(), full=full)


class Looking(ABC):
    """Compares the words of a sentence with the parts of a picture.

    Args:
        prepare: turns a picture into what `compute` takes.
        compute: turns that into what `compare` takes. Of the last pictures, both results are kept.
        resized: see `AbstractTowers.resized`.
    """

    def __init__(
        self,
        prepare: Callable[[Image.Image], Any],
        compute: Callable[[Any], Any],
        resized: tuple[int, int] | None,
    ):
        self._prepare, self._compute, self._resized = prepare, compute, resized
        self._prepared, self._parts = lru_cache(KEPT)(self._read), lru_cache(KEPT)(self._computed)

    def prepare(self, path: Path, moment: float | None = None) -> None:
        """Decode a picture, or the frame of a video, before `look`, perhaps in another thread."""
        self._prepared(path, moment, path.lstat().st_mtime_ns)

    def look(self, path: Path, text: str, moment: float | None = None) -> LookMessage:
        return self.compare(self._parts(path, moment, path.lstat().st_mtime_ns), text)

    @abstractmethod
    def compare(self, parts: Any, text: str) -> LookMessage:
        """The words of a sentence with the parts of a picture."""

    def _read(self, path: Path, moment: float | None, changed: int) -> Any:
        """The time of the last change is part of the key, so that a changed picture is read again."""
        found = decode_picture(located_source(path, moment), path.name, resized=self._resized)
        return self._prepare(found.image)

    def _computed(self, path: Path, moment: float | None, changed: int) -> Any:
        return self._compute(self._prepared(path, moment, changed))


class LookingAtParts(Looking):
    """Each part of a picture as if it were the whole, each word as if it were the sentence: shows their scores."""

    def __init__(self, towers: AbstractTowers):
        super().__init__(towers.prepare, towers.embed_parts, towers.resized)
        self.towers = towers

    def compare(
        self, parts: tuple[Float[np.ndarray, "M d"], Float[np.ndarray, "M 4"]] | None, text: str
    ) -> LookMessage:
        words = [word for word in split_words(text) if any(map(str.isalnum, word))][:MOST_WORDS]
        if not words or parts is None:
            return LookMessage.of("fit", [], np.empty((0, 4)), np.empty((0, 0)), 1.0)
        vectors, boxes = parts
        known = have_known_words(self.towers.tokenizer, words)
        scores = self.towers.score(vectors, self.towers.embed_texts(words)).T
        return LookMessage.of("fit", words, boxes, np.where(known[:, None], scores, 0).clip(min=0), FULL_FIT)
