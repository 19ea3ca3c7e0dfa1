"""From a picture to the input of a vision model, as in its training: resized, perhaps cropped, and scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from selhn.base.errors import SelhnError

RESAMPLING = {
    name: getattr(Image.Resampling, name.upper()) for name in ("nearest", "bilinear", "bicubic", "lanczos")
}


@dataclass(frozen=True)
class Preprocessing:
    """Squash to a square, then `(x - mean) / deviation` with x from 0 to 255."""

    size: tuple[int, int]
    """Height and width."""
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    @classmethod
    def of_shares(cls, size: Any, mean: Any, deviation: Any) -> "Preprocessing":
        """From the numbers of other libraries, for x from 0 to 1; one size is used for both sides."""
        height, width = (size, size) if isinstance(size, int) else size
        return cls((height, width), tuple(255.0 * x for x in mean), tuple(255.0 * x for x in deviation))

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        height, width = self.size
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        planes = bytearray().join(
            image.tobytes("raw", band) for band in "RGB"
        )  # faster than transposing an array
        pixels = torch.frombuffer(planes, dtype=torch.uint8).view(3, height, width).float()
        return pixels.sub_(torch.tensor(self.mean)[:, None, None]).div_(
            torch.tensor(self.deviation)[:, None, None]
        )


@dataclass(frozen=True)
class Cropping:
    """Resize the shorter side and cut the middle out, or squash; then as `Preprocessing`."""

    last: Preprocessing
    side: int | None
    """Length of the shorter side; None to squash."""
    resampling: Image.Resampling

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        height, width = self.last.size
        if self.side is None:
            return self.last(image.resize((width, height), self.resampling))
        size = [max(self.side, int(self.side * edge / min(image.size))) for edge in image.size]
        image = image.resize((size[0], size[1]), self.resampling)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        return self.last(image.crop((left, top, left + width, top + height)))


def preparation(settings: Mapping[str, Any], side: int) -> Preprocessing | Cropping:
    """How pictures are prepared, from the settings of a processor of transformers."""
    scaled = settings.get("do_normalize", True)
    mean = settings.get("image_mean") or (0.5,) * 3 if scaled else (0.0,) * 3
    deviation = settings.get("image_std") or (0.5,) * 3 if scaled else (1.0,) * 3
    size, resampling = settings.get("size", side), Image.Resampling(settings.get("resample", 3))
    crop = settings.get("crop_size", side) if settings.get("do_center_crop") else None
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size if crop is not None else None
    return _prepared(shortest, crop or _sides(size, side), mean, deviation, resampling)


def preparation_of_open_clip(known: Mapping[str, Any]) -> Preprocessing | Cropping:
    """The same from the settings of open_clip."""
    mode, size = known.get("resize_mode", "shortest"), known["size"]
    if mode not in ("shortest", "squash"):
        raise SelhnError(f"this model resizes pictures by {mode!r}, which selhn does not: use another")
    shortest = min(_sides(size, 0)) if mode == "shortest" else None
    return _prepared(
        shortest, size, known["mean"], known["std"], RESAMPLING[known.get("interpolation", "bicubic")]
    )


def _prepared(
    shortest: int | None, size: Any, mean: Any, deviation: Any, resampling: Image.Resampling
) -> Preprocessing | Cropping:
    last = Preprocessing.of_shares(_sides(size, shortest or 0), mean, deviation)
    if shortest is None and resampling == Image.Resampling.BICUBIC:
        return last  # the decoder can do the resizing
    return Cropping(last, shortest, resampling)


def _sides(size: Any, side: int) -> tuple[int, int]:
    """Height and width, from any of the forms that settings have."""
    if isinstance(size, Mapping):
        return int(size.get("height", side)), int(size.get("width", side))
    return (int(size), int(size)) if isinstance(size, int | float) else (int(size[0]), int(size[1]))
