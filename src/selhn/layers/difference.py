"""W (a - w)^2 + b for words w and what they attend to, a = sum of p_k v_k: the nodes of SGRAF on a CPU.

The differences of all pairs of image and text, d numbers per word, are made for a few images at a time,
squared and projected while they are in a CPU's cache, and recomputed in the backward pass. That is a small
part of the work; the projection is not repeated.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from selhn.layers.fragments import chunks, is_ragged

# Bytes of differences that about fit the cache of a CPU core.
CHUNK_BYTES = 2**22


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


def _chunks(weights: Tensor, words: Tensor) -> list[tuple[slice, slice]]:
    """Some images, and the words that belong to them."""
    some = chunks(len(weights), words.element_size() * words[:1].numel(), CHUNK_BYTES, words.device)
    return [(images, images if len(words) == len(weights) else slice(None)) for images in some]


class _Projected(torch.autograd.Function):
    """(p, v, w, W, b) -> W (p v - w)^2 + b."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, bias: Tensor
    ) -> Tensor:
        out = weights.new_empty(*weights.shape[:2], len(matrix))
        for images, texts in _chunks(weights, words):
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
        for images, texts in _chunks(weights, words):
            difference = torch.baddbmm(words[texts], weights[images], regions[images], beta=-1)
            some = grad[images].flatten(0, 1)
            grad_difference = (some @ matrix).view_as(difference).mul_(difference).mul_(2)
            grad_matrix.addmm_(some.T, difference.square_().flatten(0, 1))
            torch.bmm(grad_difference, regions[images].transpose(1, 2), out=grad_weights[images])
            torch.bmm(weights[images].transpose(1, 2), grad_difference, out=grad_regions[images])
            grad_words[texts] -= grad_difference if texts == images else grad_difference.sum(0, keepdim=True)
        return grad_weights, grad_regions, grad_words, grad_matrix, grad.sum((0, 1))
