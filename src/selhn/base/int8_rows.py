"""Rows of numbers as int8 with one float32 scale per row: `row = codes * scale`."""

import torch
from jaxtyping import Float, Float32, Int8
from torch import Tensor

LARGEST_CODE = 127


def to_int8(rows: Float[Tensor, "*n d"]) -> tuple[Int8[Tensor, "*n d"], Float32[Tensor, "*n"]]:
    """Codes and scales; each entry is off by at most 1/254 of the largest of its row, whose code is 127."""
    rows = rows.float()
    scale = (rows.abs().amax(-1) / LARGEST_CODE).clamp(min=torch.finfo(torch.float32).tiny)
    return (rows / scale[..., None]).round().to(torch.int8), scale
