"""Features as one block of memory on a device, in the requested precision: gathered without the host."""

import math
from dataclasses import replace
from typing import get_args

import torch

from selhn.base.errors import SelhnError
from selhn.base.int8_rows import to_int8
from selhn.base.types import FeaturePrecision
from selhn.data.batches import refuse_not_finite
from selhn.data.features import DenseFeatures, Features, blocks
from selhn.data.splits import Split


def resident_bytes(features: Features, precision: FeaturePrecision) -> int:
    """How much memory `make_resident` takes."""
    per_region = features.width * getattr(torch, precision).itemsize + 1 + (4 if precision == "int8" else 0)
    return features.num_images * features.num_regions * per_region


def make_resident(split: Split, device: torch.device, precision: FeaturePrecision) -> Split:
    """The split with its features on a device, each read or computed once; int8 has one scale per region."""
    if precision not in get_args(FeaturePrecision):
        raise SelhnError(f"feature_precision={precision!r}: choose {', '.join(get_args(FeaturePrecision))}")
    features = split.features
    if 2 * features.num_bytes < resident_bytes(features, precision):
        features = features.to(device)  # packed or computed features are small, and a device unpacks faster
    store = torch.empty(features.shape, dtype=getattr(torch, precision), device=device)
    mask = torch.empty(features.shape[:2], dtype=torch.bool, device=device)
    scale = torch.empty(features.shape[:2], device=device) if precision == "int8" else None
    for block in blocks(features.num_images, 4 * math.prod(features.shape[1:])):
        rows = torch.arange(block.start, block.stop)
        regions, mask[block] = (tensor.to(device) for tensor in features.gather(rows))
        refuse_not_finite(split, rows, regions)
        if scale is not None:
            store[block], scale[block] = to_int8(regions)
        else:
            store[block] = regions.to(store.dtype)
    some_masked = not bool(mask.all())
    return replace(split, features=DenseFeatures(store, mask=mask if some_masked else None, scale=scale))
