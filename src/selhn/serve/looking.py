"""Which part of a picture each word of a question is about, as far as the model can say."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel
from torch import Tensor

from selhn.eval import region_attention
from selhn.models import AbstractMatcher, CrossAttention
from selhn.pictures import Extractor, grid_boxes
from selhn.pictures.extractor import Prepared
from selhn.pictures.picture_folders import located_source
from selhn.text import split_words

Regions = Float[Tensor, "M F"]
Boxes = Float[Tensor, "M 4"]
Compared = tuple[list[str], Float[Tensor, "B 4"], Float[Tensor, "words B"], float]
"""Words, boxes, a weight for each pair, and the least weight that is drawn in the full colour."""
KEPT = 32
MOST_WORDS = 24
FULL_FIT = 0.4
"""Score of one region with one word that is drawn in the full colour; weaker maxima stay paler than that."""


class LookMessage(BaseModel):
    """What the words of a sentence look at in a picture."""

    kind: Literal["attention", "fit"]
    """The attention of a model that has one, or how well each region alone fits each word alone."""
    words: list[str]
    boxes: list[list[float]]
    """x1, y1, x2, y2 as shares of width and height."""
    weights: list[list[float]]
    """One row per word, one column per box."""
    full: float
    """The weight that is drawn in the full colour."""


class Looking:
    """Compares the words of a sentence with the regions of a picture.

    Args:
        model: one that compares regions with words shows its attention. An embedding model encodes each
            region as if it were the whole picture, each word as if it were the sentence, and shows scores.
        extractor: makes the regions and their boxes.
    """

    def __init__(self, model: AbstractMatcher, extractor: Extractor):
        self.model, self.extractor = model, extractor
        self._prepared, self._regions = lru_cache(KEPT)(self._prepare), lru_cache(KEPT)(self._extract)

    @staticmethod
    def can(model: AbstractMatcher, extractor: Extractor | None) -> bool:
        if extractor is None or model.tokenizer is None:
            return False
        fits = model.settings.get("feature_dim", extractor.width) == extractor.width
        return fits and (isinstance(model, CrossAttention) or model.is_embedding)

    def prepare(self, path: Path, moment: float | None = None) -> None:
        """Decode a picture, or the frame of a video, before `look`, perhaps in another thread."""
        self._prepared(path, moment, path.lstat().st_mtime_ns)

    def look(self, path: Path, text: str, moment: float | None = None) -> LookMessage:
        regions, boxes = self._regions(path, moment, path.lstat().st_mtime_ns)
        attends = isinstance(self.model, CrossAttention)
        words, boxes, weights, least = (self._attention if attends else self._fit)(regions, boxes, text)
        return LookMessage(
            kind="attention" if attends else "fit",
            words=words,
            boxes=boxes.tolist(),
            weights=weights.tolist(),
            full=max([least, *weights.flatten().tolist()]),
        )

    def _attention(self, regions: Regions, boxes: Boxes, text: str) -> Compared:
        found = region_attention(self.model, regions, text, boxes)
        rows = [row for row, is_word in enumerate(found.is_word) if is_word][:MOST_WORDS]
        return [found.words[row] for row in rows], boxes, found.weights.cpu()[rows], 3 / len(boxes)

    def _fit(self, regions: Regions, boxes: Boxes, text: str) -> Compared:
        parts = ~torch.isclose(boxes, grid_boxes(1)[:1]).all(1)  # the whole picture says nothing about where
        words = [word for word in split_words(text) if any(map(str.isalnum, word))][:MOST_WORDS]
        if not words or not bool(parts.any()):
            return [], boxes[:0], torch.empty(0, 0), 1.0
        assert self.model.tokenizer is not None
        tokens, mask = self.model.tokenize(words)
        known = (torch.isin(tokens, self.model.tokenizer.kinds.ordinary.to(tokens.device)) & mask).any(1)
        images = self.model.embed_images(regions[parts][:, None])
        scores = self.model.score(images, self.model.embed_texts(words)).T.float().cpu()
        return words, boxes[parts], torch.where(known[:, None], scores, 0).clamp(min=0), FULL_FIT

    def _prepare(self, path: Path, moment: float | None, changed: int) -> Prepared:
        """The time of the last change is part of the key, so that a changed picture is read again."""
        return self.extractor.prepare(self.extractor.decode(located_source(path, moment), path.name).image)

    def _extract(self, path: Path, moment: float | None, changed: int) -> tuple[Regions, Boxes]:
        prepared = self._prepared(path, moment, changed)
        return self.extractor.extract([prepared])[0], prepared.boxes
