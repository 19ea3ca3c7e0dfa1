"""The nodes of SGR, SAF and CMCAN for all pairs on a GPU: no difference as wide as an embedding is stored.

Diao et al., AAAI 2021. A word w attends to the regions of an image, as in SCAN t2i, giving a at unit length;
the node of the pair of them is unit(W_l (a - w)^2), and that of the whole pair unit(W_g (v - t)^2).
`selhn.models.sgraf` has the equations, and is the version without a GPU. CMCAN (Zhang et al., AAAI 2022) has
a ReLU before the length, and makes the weights itself.

Vectors and weights are rounded to float16, as TF32 would round them, and so are the squares; all sums are in
float32. One kernel makes the weights of a word from products with all regions, one the nodes: the differences
are made, squared and projected on the chip. The backward pass makes them again, in the precision of the
nodes, and keeps them no longer than it takes to sum them over images and over words.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.kernels.cross_scores import can_attend
from selhn.kernels.gpu import half_precision

USED = True
"""Whether the kernels are used where they can be."""
SHARED_BYTES = 208 * 2**10
"""Shared memory of the largest kernel: GPUs from Hopper on have it, except workstation GPUs."""
LEAST_CHANNELS = 64
SIZES_OF_NODES = (16, 32, 64, 128, 256)


class LinearWeights(NamedTuple):
    """A linear layer."""

    weight: Float[Tensor, "s d"]
    bias: Float[Tensor, " s"]


def node_precision(
    images: Float[Tensor, "I M d"], texts: Float[Tensor, "T N d"], projection: LinearWeights
) -> torch.dtype | None:
    """The precision of the nodes; None if the kernels cannot be used.

    For `attended_nodes`, images are the contexts and texts the queries.
    """
    if (
        not can_attend(images, texts)
        or images.shape[2] % LEAST_CHANNELS
        or len(projection.bias) not in SIZES_OF_NODES
        or projection.weight.dtype != torch.float32
        # The kernels count in 32 bits from an image's first row.
        or len(texts) * (texts.shape[1] + 1) * max(images.shape[2], len(projection.bias)) >= 2**31
        or not has_kernels(images.device)
    ):
        return None
    return half_precision(images.device)


def compared_nodes(
    images: Float[Tensor, "I M d"],
    region_mask: Bool[Tensor, "I M"],
    texts: Float[Tensor, "T N d"],
    wholes: tuple[Float[Tensor, "I d"], Float[Tensor, "T d"]],
    local: LinearWeights,
    whole: LinearWeights,
    smooth: float,
    dtype: torch.dtype,
    everywhere: bool,
) -> Float[Tensor, "I T X s"]:
    """X = 1 + N unit nodes of every image with every text: that of the whole, then those of the words.

    Vectors have length 1; those of padding have length 0. `everywhere` says that all pairs get a gradient, as
    through batch statistics; else the backward pass looks for those that have one. Both give the same.
    """
    from selhn.kernels.differences_triton import ComparedNodes

    with torch.autocast(images.device.type, enabled=False):
        given = images, texts, images @ images.mT, *wholes, *local, *whole
        return ComparedNodes.apply(region_mask.contiguous(), smooth, dtype, everywhere, *given)


def attended_nodes(
    weights: Float[Tensor, "C Q L K"],
    contexts: Float[Tensor, "C K d"],
    queries: Float[Tensor, "Q L d"],
    layer: LinearWeights,
    dtype: torch.dtype,
) -> Float[Tensor, "C Q L s"]:
    """`unit(ReLU(W (a - q)^2 + b))` of every fragment q and what it attends to, a = sum_k w_k c_k.

    Entries of vectors are about as large as those of unit vectors.
    """
    from selhn.kernels.differences_triton import AttendedNodes

    with torch.autocast(contexts.device.type, enabled=False):
        return AttendedNodes.apply(dtype, weights, contexts, queries, *layer)


def has_kernels(device: torch.device) -> bool:
    """Whether kernels are used on this GPU."""
    return USED and _shared_bytes(device) >= SHARED_BYTES


def _shared_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
