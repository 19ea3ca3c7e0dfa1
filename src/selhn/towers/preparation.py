"""From a picture to the input of a network, as in its training: resized, perhaps cropped, and scaled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from selhn.base.errors import SelhnError

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By their numbers in Pillow."""
MOST_SIDE, MOST_PIXELS = 4096, 50_000_000
"""Of what a network takes, and of a picture with the right shorter side: a line of 60,000 x 1 would become far more."""


@dataclass(frozen=True)
class Preparation:
    """Squash to a size, or resize the shorter side and cut the middle out; then `(x - mean) / deviation`.

    x is from 0 to 255.
    """

    size: tuple[int, int]
    """Height and width."""
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    shorter_side: int | None = None
    """Length of the shorter side before the middle is cut out; None to squash."""
    resampling: str = "bicubic"

    def __post_init__(self) -> None:
        sides = (*self.size, self.shorter_side or self.size[0])
        if not all(1 <= side <= MOST_SIDE for side in sides):
            raise SelhnError(f"pictures of {sides} pixels: give sides from 1 to {MOST_SIDE:,}")
        if not all(abs(x) < 1e9 for x in (*self.mean, *self.deviation)) or 0 in self.deviation:
            raise SelhnError("the mean and deviation of pixels must be below 1e9, and no deviation 0")
        if self.resampling not in RESAMPLING:
            raise SelhnError(f"resampling {self.resampling!r}: choose {', '.join(RESAMPLING)}")

    @classmethod
    def of_shares(cls, size: Any, mean: Any, deviation: Any, **how: Any) -> "Preparation":
        """From the numbers of other libraries, for x from 0 to 1; one size is used for both sides."""
        height, width = (size, size) if isinstance(size, int) else size
        mean, deviation = (tuple(255.0 * x for x in values) for values in (mean, deviation))
        return cls((height, width), mean, deviation, **how)

    @property
    def resized(self) -> tuple[int, int] | None:
        """Width and height, if a picture is first squashed as decoders do it; they may do it while decoding."""
        is_squashed = self.shorter_side is None and self.resampling == "bicubic"
        return self.size[::-1] if is_squashed else None

    def __call__(self, image: Image.Image) -> Float[np.ndarray, "3 H W"]:
        """The input of the network for an RGB picture."""
        height, width = self.size
        image = self._cut(image)
        # Faster than transposing an array.
        planes = b"".join(image.tobytes("raw", band) for band in "RGB")
        pixels = np.frombuffer(planes, np.uint8).reshape(3, height, width).astype(np.float32)
        pixels -= np.array(self.mean, np.float32)[:, None, None]
        pixels /= np.array(self.deviation, np.float32)[:, None, None]
        return pixels

    def _cut(self, image: Image.Image) -> Image.Image:
        height, width = self.size
        resampling = Image.Resampling(RESAMPLING.index(self.resampling))
        if self.shorter_side is None:
            return image if image.size == (width, height) else image.resize((width, height), resampling)
        side, shorter = self.shorter_side, min(image.size)
        if side * side * max(image.size) > MOST_PIXELS * shorter:
            image = _middle(image, math.ceil(shorter * max(2, 2 * max(self.size) / side)))
        size = [max(side, int(side * edge / shorter)) for edge in image.size]
        image = image.resize((size[0], size[1]), resampling)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        return image.crop((left, top, left + width, top + height))


def _middle(image: Image.Image, length: int) -> Image.Image:
    """The middle of a picture, at most `length` pixels along each side."""
    width, height = (min(length, side) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def preparation(settings: Mapping[str, Any], side: int) -> Preparation:
    """How pictures are prepared, from the settings of a processor of transformers."""
    scaled = settings.get("do_normalize", True)
    mean = settings.get("image_mean") or (0.5,) * 3 if scaled else (0.0,) * 3
    deviation = settings.get("image_std") or (0.5,) * 3 if scaled else (1.0,) * 3
    size, resampling = settings.get("size", side), RESAMPLING[Image.Resampling(settings.get("resample", 3))]
    crop = settings.get("crop_size", side) if settings.get("do_center_crop") else None
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size if crop is not None else None
    sides = _sides(crop or _sides(size, side), shortest or 0)
    return Preparation.of_shares(sides, mean, deviation, shorter_side=shortest, resampling=resampling)


def preparation_of_open_clip(known: Mapping[str, Any]) -> Preparation:
    """The same from the settings of open_clip."""
    mode, size = known.get("resize_mode", "shortest"), known["size"]
    if mode not in ("shortest", "squash"):
        raise SelhnError(f"this model resizes pictures by {mode!r}, which selhn does not: use another")
    shortest = min(_sides(size, 0)) if mode == "shortest" else None
    resampling = known.get("interpolation", "bicubic")
    sides = _sides(size, shortest or 0)
    return Preparation.of_shares(
        sides, known["mean"], known["std"], shorter_side=shortest, resampling=resampling
    )


def _sides(size: Any, side: int) -> tuple[int, int]:
    """Height and width, from any of the forms that settings have."""
    if isinstance(size, Mapping):
        return int(size.get("height", side)), int(size.get("width", side))
    return (int(size), int(size)) if isinstance(size, int | float) else (int(size[0]), int(size[1]))
