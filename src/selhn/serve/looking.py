"""Words against regions: which part of a picture a word of the question is about, as far as the model can say."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.data import DenseFeatures, Split
from selhn.eval import pair_attention
from selhn.models import AbstractMatcher, CrossAttention, in_eval_mode
from selhn.pictures import Extractor, grid_boxes
from selhn.pictures.extractor import Prepared
from selhn.pictures.files import decode_picture
from selhn.serve.thumbnails import PictureFolders
from selhn.text import split_words

KEPT = 32
MOST_WORDS = 24
FULL_FIT = 0.4
"""A score of one region with one word that is shown in the full colour; no picture is made to look surer than this."""


@dataclass(frozen=True)
class Look:
    """Where the words of a sentence look in a picture."""

    kind: Literal["attention", "fit"]
    """The attention of a model that has one, or how well each region by itself fits each word by itself."""
    words: list[str]
    boxes: list[list[float]]
    """x1, y1, x2, y2 as shares of width and height."""
    weights: list[list[float]]
    """A row for every word, a column for every box."""
    full: float
    """The weight of the full colour."""


class Looking:
    """Looks at pictures with a model.

    Args:
        model: one that compares regions with words has attention; of one with a vector for an image and one for a text,
            every region is encoded as if it were all there is, every word too, and their scores are shown.
        extractor: makes the regions, of which the boxes are known.
    """

    def __init__(self, model: AbstractMatcher, extractor: Extractor, pictures: PictureFolders):
        self.model, self.extractor, self.pictures = model, extractor, pictures
        self._kept: OrderedDict[tuple[Path, int], tuple[Float[Tensor, "M F"], Prepared]] = OrderedDict()

    @staticmethod
    def can(model: AbstractMatcher, extractor: Extractor | None) -> bool:
        """Whether there is something to show."""
        if extractor is None or model.tokenizer is None:
            return False
        fits = model.settings.get("feature_dim", extractor.width) == extractor.width
        return fits and (isinstance(model, CrossAttention) or model.is_embedding)

    def look(self, path: Path, text: str) -> Look:
        """At a located picture, with a sentence."""
        regions, prepared = self._regions(path)
        if isinstance(self.model, CrossAttention):
            return self._attention(regions, prepared.boxes, text)
        return self._fit(regions, prepared.boxes, text)

    def _attention(self, regions: Float[Tensor, "M F"], boxes: Float[Tensor, "M 4"], text: str) -> Look:
        none = torch.zeros(0, dtype=torch.int64)
        mask = torch.ones(1, len(regions), dtype=torch.bool)
        split = Split("the picture", DenseFeatures(regions[None], None, mask), [], none, ["picture"], boxes[None])
        found = pair_attention(self.model, split, 0, text)
        rows = [row for row, is_word in enumerate(found.is_word) if is_word][:MOST_WORDS]
        weights = found.weights.cpu()[rows]
        full = max(float(weights.max()) if len(rows) else 0.0, 3 / len(boxes))
        return Look("attention", [found.words[row] for row in rows], boxes.tolist(), weights.tolist(), full)

    def _fit(self, regions: Float[Tensor, "M F"], boxes: Float[Tensor, "M 4"], text: str) -> Look:
        # The whole picture says nothing about where.
        parts = ~torch.isclose(boxes, grid_boxes(1)[:1]).all(1)
        words = [word for word in split_words(text) if any(map(str.isalnum, word))][:MOST_WORDS]
        if not words or not bool(parts.any()):
            return Look("fit", [], [], [], 1.0)
        tokens, mask = self.model.tokenize(words)
        assert self.model.tokenizer is not None
        known = (torch.isin(tokens, self.model.tokenizer.kinds.ordinary.to(tokens.device)) & mask).any(1)
        device = next(self.model.parameters()).device
        number = int(parts.sum())
        alone = torch.ones(number, 1, dtype=torch.bool, device=device)
        with in_eval_mode(self.model):
            images = self.model.encode_images(regions[parts][:, None].to(device), alone)
            texts = self.model.encode_texts(tokens.to(device), mask.to(device))
            scores = self.model.score(images, texts).T.float().cpu()
        scores = torch.where(known[:, None], scores, 0).clamp(min=0)
        return Look("fit", words, boxes[parts].tolist(), scores.tolist(), max(FULL_FIT, float(scores.max())))

    def _regions(self, path: Path) -> tuple[Float[Tensor, "M F"], Prepared]:
        key = (path, path.stat().st_mtime_ns)
        if key not in self._kept:
            prepared = self.extractor.prepare(decode_picture(self.pictures.read(path), path.name).image)
            self._kept[key] = (self.extractor.extract([prepared])[0], prepared)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
