"""Towers in the place of an extractor: files become vectors, one row per picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from selhn.pictures.decoding import MOST_PIXELS, Moment, Picture, decode_picture, decode_video
from selhn.towers import AbstractTowers

REDUCED = "JPEG reduced"
"""Marks features in a cache of which some belong to JPEGs that were decoded at a part of their size."""


@dataclass(frozen=True)
class Vector:
    """A picture that was computed ahead."""

    values: Float[np.ndarray, " d"]


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

    def decode(self, content: bytes | Moment, name: str, most_pixels: int = MOST_PIXELS) -> Picture:
        """The picture of a file for `prepare`; resized while it is decoded if `prepare` begins with that."""
        return decode_picture(content, name, most_pixels, resized=self.towers.resized)

    def decode_video(self, path: Path, name: str) -> list[Picture]:
        """`decode` for some key frames of a video."""
        return decode_video(path, name, resized=self.towers.resized)

    def prepare(self, image: Image.Image) -> Any:
        return self.towers.prepare(image)

    def compute(self, prepared: Any) -> Vector:
        """All that is left for one picture, for the thread that has read it."""
        return Vector(self.towers.embed_prepared([prepared])[0])

    def extract(self, pictures: Sequence[Any]) -> Float[Tensor, "B 1 d"]:
        """The vectors of prepared pictures."""
        if isinstance(pictures[0], Vector):
            vectors = np.stack([picture.values for picture in pictures])
        else:
            vectors = self.towers.embed_prepared(pictures)
        return torch.from_numpy(vectors)[:, None]
