"""Several GRUs of one shape over padded sequences at once, in half precision on a GPU.

A step of a GRU is a small matrix product and a few functions of its result, and the steps wait for each
other. cuDNN takes the two directions of a text one after the other, and in float16, where small gradients
vanish. Here a step of all directions is one batched product and one kernel; states and sums are float32,
products bfloat16.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.kernels.gpu import fusable


def can_scan(sequences: Float[Tensor, "*K e"]) -> bool:
    """Whether `gru_scan` should be used: on a GPU, in half precision."""
    return fusable(sequences) and torch.is_autocast_enabled("cuda")


def gru_scan(sequences: Float[Tensor, "D N B e"], grus: tuple[nn.GRU, ...]) -> Float[Tensor, "D N B h"]:
    """The states of D one-layer GRUs, each over its own B sequences of N steps, beginning with zeros.

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), sigmoid(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r * (U_n h + c_n)),   h <- (1 - z) n + z h
    """
    from selhn.kernels.recurrent_triton import FusedScan

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    stacked = [torch.stack([getattr(gru, name) for gru in grus]) for name in names]
    with torch.autocast("cuda", enabled=False):
        return FusedScan.apply(sequences, *stacked)
