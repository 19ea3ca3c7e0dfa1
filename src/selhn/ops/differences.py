"""The nodes of SGR, SAF and CMCAN for all pairs: no difference as wide as an embedding is stored.

Diao et al., AAAI 2021. A word w attends to the regions of an image, as in SCAN t2i, giving a at unit length;
the node of the pair of them is unit(W_l (a - w)^2), and that of the whole pair unit(W_g (v - t)^2).
`selhn.models.sgraf` has the equations. CMCAN (Zhang et al., AAAI 2022) has
a ReLU before the length, and makes the weights itself.

Vectors and weights are rounded to float16, as TF32 would round them, and so are the squares; all sums are in
float32. One kernel makes the weights of a word from products with all regions, one the nodes: the differences
are made, squared and projected on the chip. The backward pass makes them again, in the precision of the
nodes, and keeps them no longer than it takes to sum them over images and over words.

On a CPU the differences of all pairs, d numbers per word, are made for a few images at a time, squared and
projected while they are in its cache, and recomputed in the backward pass. That is a small part of the work;
the projection is not repeated.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from selhn.ops.cross_scores import can_attend
from selhn.ops.fragments import chunks_with_queries, is_ragged
from selhn.ops.gpu import half_precision
from selhn.ops.pairing import Pairing

USED = True
"""Whether the kernels are used where they can be."""
SHARED_BYTES = 208 * 2**10
"""Shared memory of the largest kernel: GPUs from Hopper on have it, except workstation GPUs."""
LEAST_CHANNELS = 64
SIZES_OF_NODES = (16, 32, 64, 128, 256)
# Bytes of differences that about fit the cache of a CPU core.
CHUNK_BYTES = 2**22


class LinearWeights(NamedTuple):
    """The weights of a linear layer that is no module, because they are computed."""

    weight: Float[Tensor, "s d"]
    bias: Float[Tensor, " s"]


Linear = nn.Linear | LinearWeights


def node_precision(pairing: Pairing, projection: Linear) -> torch.dtype | None:
    """The precision of the nodes; None if the kernels cannot be used."""
    images, texts = pairing.contexts.vectors, pairing.queries.vectors
    if (
        pairing.aligned
        or not can_attend(images, texts)
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
    pairing: Pairing, local: Linear, whole: Linear, smooth: float, dtype: torch.dtype, everywhere: bool
) -> Float[Tensor, "I T X s"]:
    """X = 1 + N unit nodes of every image with every text: that of the whole, then those of the words.

    Vectors have length 1; those of padding have length 0. `everywhere` says that all pairs get a gradient, as
    through batch statistics; else the backward pass looks for those that have one. Both give the same.
    """
    from selhn.kernels.hopper.differences import ComparedNodes

    images, texts = pairing.contexts, pairing.queries
    with torch.autocast(pairing.device.type, enabled=False):
        given = images.vectors, texts.vectors, images.products(), images.whole, texts.whole
        layers = local.weight, local.bias, whole.weight, whole.bias
        return ComparedNodes.apply(images.mask.contiguous(), smooth, dtype, everywhere, *given, *layers)


def attended_nodes(
    weights: Float[Tensor, "C Q L K"],
    contexts: Float[Tensor, "C K d"],
    queries: Float[Tensor, "Q L d"],
    layer: Linear,
    dtype: torch.dtype,
) -> Float[Tensor, "C Q L s"]:
    """`unit(ReLU(W (a - q)^2 + b))` of every fragment q and what it attends to, a = sum_k w_k c_k.

    Entries of vectors are about as large as those of unit vectors.
    """
    from selhn.kernels.hopper.differences import AttendedNodes

    with torch.autocast(contexts.device.type, enabled=False):
        return AttendedNodes.apply(dtype, weights, contexts, queries, layer.weight, layer.bias)


def has_kernels(device: torch.device) -> bool:
    """Whether kernels are used on this GPU."""
    return USED and _shared_bytes(device) >= SHARED_BYTES


def _shared_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


def projected_differences(
    weights: Float[Tensor, "I W K"],
    regions: Float[Tensor, "I K d"],
    words: Float[Tensor, "i W d"],
    layer: nn.Linear,
) -> Float[Tensor, "I W s"]:
    """`layer` of the squared differences, for words of all texts (i = 1) or of each image's own (i = I)."""
    if is_ragged(weights):
        return _Projected.apply(weights, regions, words, layer.weight, layer.bias)
    difference = torch.baddbmm(words, weights, regions, beta=-1)
    # Not square(), which autocast takes out of half precision.
    return layer(difference * difference)


class _Projected(torch.autograd.Function):
    """(p, v, w, W, b) -> W (p v - w)^2 + b."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, bias: Tensor
    ) -> Tensor:
        out = weights.new_empty(*weights.shape[:2], len(matrix))
        for images, texts in chunks_with_queries(weights, words, CHUNK_BYTES):
            difference = torch.baddbmm(words[texts], weights[images], regions[images], beta=-1)
            out[images] = linear(difference.square_(), matrix, bias)
        ctx.save_for_backward(weights, regions, words, matrix)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        weights, regions, words, matrix = ctx.saved_tensors
        grad_weights, grad_regions = torch.empty_like(weights), torch.empty_like(regions)
        grad_words, grad_matrix = torch.zeros_like(words), torch.zeros_like(matrix)
        for images, texts in chunks_with_queries(weights, words, CHUNK_BYTES):
            difference = torch.baddbmm(words[texts], weights[images], regions[images], beta=-1)
            some = grad[images].flatten(0, 1)
            grad_difference = (some @ matrix).view_as(difference).mul_(difference).mul_(2)
            grad_matrix.addmm_(some.T, difference.square_().flatten(0, 1))
            torch.bmm(grad_difference, regions[images].transpose(1, 2), out=grad_weights[images])
            torch.bmm(weights[images].transpose(1, 2), grad_difference, out=grad_regions[images])
            grad_words[texts] -= grad_difference if texts == images else grad_difference.sum(0, keepdim=True)
        return grad_weights, grad_regions, grad_words, grad_matrix, grad.sum((0, 1))
