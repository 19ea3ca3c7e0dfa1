"""A bidirectional GRU over padded sequences, in half precision on a GPU.

A step of a GRU is a small matrix product and a few functions of its result, and the steps wait for each
other. cuDNN takes the two directions of a text one after the other, and in float16, where small gradients
vanish. Here a step of both directions is one kernel, which also finds where the second one, that reads from
the end, has its input; states and sums are float32, products bfloat16.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from selhn.kernels.gpu import fusable


def can_scan(sequences: Float[Tensor, "*K e"]) -> bool:
    """Whether `gru_scan` should be used: on a GPU, in half precision."""
    return fusable(sequences) and torch.is_autocast_enabled("cuda")


def gru_scan(
    sequences: Float[Tensor, "B N e"], lengths: Int[Tensor, " B"], ahead: nn.GRU, back: nn.GRU
) -> Float[Tensor, "B N h"]:
    """The mean of the states of two one-layer GRUs at every position, 0 in the padding.

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), sigmoid(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r * (U_n h + c_n)),   h <- (1 - z) n + z h,   beginning with h = 0

    One reads the first `length` positions of a sequence ahead, the other back.
    """
    from selhn.kernels.recurrent_triton import FusedScan

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(gru, name) for name in names for gru in (ahead, back)]
    with torch.autocast("cuda", enabled=False):
        return FusedScan.apply(sequences, lengths, *weights)
