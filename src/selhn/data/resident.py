"""Features as one block of memory on a device, in the precision asked for: gathered without the host."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Float32, Int, Int8
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.int8_rows import to_int8
from selhn.data.batches import refuse_not_finite
from selhn.data.features import DenseFeatures, blocks, converted
from selhn.data.splits import Features, Split

FeaturePrecision = Literal["fp32", "fp16", "bf16", "int8"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, eq=False)
class QuantizedFeatures:
    """Regions as int8 with one scale each: `x = code * scale`, off by at most 1/254 of the region's largest entry."""

    codes: Int8[Tensor, "I M F"]
    scale: Float32[Tensor, "I M"]
    mask: Bool[Tensor, "I M"]

    @property
    def num_images(self) -> int:
        """I."""
        return len(self.codes)

    @property
    def num_regions(self) -> int:
        """M."""
        return self.codes.shape[1]

    @property
    def width(self) -> int:
        """F."""
        return self.codes.shape[2]

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features and mask of some images, on the device where the codes lie."""
        rows = rows.to(self.codes.device)
        return converted(self.codes[rows] * self.scale[rows, :, None], dtype), self.mask[rows]

    def to(self, device: torch.device | str) -> "QuantizedFeatures":
        """The same on a device."""
        return QuantizedFeatures(self.codes.to(device), self.scale.to(device), self.mask.to(device))

    @property
    def num_bytes(self) -> int:
        """Size of codes, scales and mask."""
        return self.codes.nbytes + self.scale.nbytes + self.mask.nbytes


def resident_bytes(features: Features, precision: FeaturePrecision) -> int:
    """How much memory `make_resident` takes."""
    regions = features.num_images * features.num_regions
    per_region = features.width * DTYPES[precision].itemsize + 1 + (4 if precision == "int8" else 0)
    return regions * per_region


def make_resident(split: Split, device: torch.device, precision: FeaturePrecision) -> Split:
    """The split with all its features on a device; wherever they come from, they are read or computed once."""
    if precision not in DTYPES:
        raise SelhnError(f"features={precision!r}: choose {', '.join(get_args(FeaturePrecision))}")
    features = split.features
    if 2 * features.num_bytes < resident_bytes(features, precision):
        features = features.to(device)  # packed or computed features are small, and the device unpacks them faster
    shape = (features.num_images, features.num_regions, features.width)
    store = torch.empty(shape, dtype=DTYPES[precision], device=device)
    mask = torch.empty(shape[:2], dtype=torch.bool, device=device)
    scale = torch.empty(shape[:2], device=device)
    for block in blocks(features.num_images, 4 * math.prod(shape[1:])):
        rows = torch.arange(block.start, block.stop)
        regions, mask[block] = (tensor.to(device) for tensor in features.gather(rows))
        refuse_not_finite(split, rows, regions)
        if precision == "int8":
            store[block], scale[block] = to_int8(regions)
        else:
            store[block] = regions.to(store.dtype)
    if precision == "int8":
        return replace(split, features=QuantizedFeatures(store, scale, mask))
    return replace(split, features=DenseFeatures(store, mask=None if bool(mask.all()) else mask))
