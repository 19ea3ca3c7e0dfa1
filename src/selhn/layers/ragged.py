"""Where the shape of the work may depend on values, such as the lengths of texts."""

import torch
from torch import Tensor

DEVICES: tuple[str, ...] = ("cpu",)


def is_ragged(tensor: Tensor) -> bool:
    """Whether padding is left out: on a CPU, in full precision, in a program that runs and is not exported.

    A GPU would wait for the host, and a step of which the shapes change cannot be recorded, nor exported.
    Half precision on a CPU is for checking what a GPU does.
    """
    kind = tensor.device.type
    return kind in DEVICES and not torch.is_autocast_enabled(kind) and not torch.compiler.is_exporting()
