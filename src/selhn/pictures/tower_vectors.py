"""Towers in the place of an extractor: files become vectors, one row per picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from selhn.towers import AbstractTowers

REDUCED = "JPEG reduced"
"""Marks features in a cache of which some belong to JPEGs that were decoded at a part of their size."""


@dataclass(frozen=True)
class TowerVectors:
    """What `Extraction` asks of an `Extractor`, by towers: a picture becomes (1, d)."""

    towers: AbstractTowers

    @property
    def width(self) -> int:
        return self.towers.width

    @property
    def cached_as(self) -> str:
        """Identifies these vectors in a cache: those of other weights, or of pictures read otherwise, are not mixed."""
        reduced = "" if self.towers.resized is None else f", {REDUCED}"
        return f"{self.towers.features}, vectors of {self.towers.picture_digest}{reduced}"

    @property
    def in_threads(self) -> bool:
        return self.towers.in_threads

    @property
    def resized(self) -> tuple[int, int] | None:
        return self.towers.resized

    def prepare(self, image: Image.Image) -> Any:
        return self.towers.prepare(image)

    def compute(self, prepared: Any) -> Float[np.ndarray, " d"]:
        """All that is left for one picture, for the thread that has read it, if `in_threads`."""
        return self.towers.embed_prepared([prepared])[0]

    def extract(self, pictures: Sequence[Any]) -> Float[Tensor, "B 1 d"]:
        """The vectors of prepared pictures, or of computed ones if `in_threads`."""
        vectors = np.stack(pictures) if self.in_threads else self.towers.embed_prepared(pictures)
        return torch.from_numpy(vectors)[:, None]
