"""Where the features of a run are kept: on its device if they fit, else on the host."""

from dataclasses import replace

import torch

from selhn.base.errors import SelhnError
from selhn.base.types import FeaturePrecision
from selhn.data import Data, make_resident, resident_bytes
from selhn.training.config import TrainConfig


def on_device(data: Data, config: TrainConfig, device: torch.device, half: bool) -> Data:
    """The data with all features on the device if they fit into the byte budget, else unchanged.

    Encoders that compute in bfloat16 round their features to it first, so keeping them in it changes no
    number. Features that do not fit are copied to the device in every step instead.
    """
    if device.type == "cpu" and config.feature_precision == "auto":
        return data
    precision: FeaturePrecision = "bfloat16" if half else "float32"
    if config.feature_precision != "auto":
        precision = config.feature_precision
    splits = (data.train, data.dev, data.test)
    budget = config.feature_bytes or _half_of_free(device)
    needed = sum(resident_bytes(split.features, precision) for split in splits)
    if needed > budget:
        if config.feature_precision != "auto":
            raise SelhnError(
                f"feature_precision={precision} takes {needed / 2**30:.1f} GiB and feature_bytes allows "
                f"{budget / 2**30:.1f} GiB of the device: take int8, raise feature_bytes, "
                "or leave feature_precision=auto to read them as needed"
            )
        return data
    train, dev, test = (make_resident(split, device, precision) for split in splits)
    return replace(data, train=train, dev=dev, test=test)


def _half_of_free(device: torch.device) -> int:
    """Half of the memory that is free; a CPU is not asked, since features are moved there only by request."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 2**62
