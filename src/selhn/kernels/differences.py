"""The nodes of SGR and SAF for all pairs on a GPU: no difference as wide as an embedding is stored.

Diao et al., AAAI 2021. A word w looks at the regions of an image, as in SCAN t2i, and sees a at unit length;
the node of the pair of them is unit(W_l (a - w)^2), and that of the whole pair unit(W_g (v - t)^2).
`selhn.models.sgraf` has the equations, and is the way without a GPU.

Vectors and weights are rounded to float16, as TF32 would round them, and so are the squares; all sums are in
float32. One kernel makes the weights of a word from products with all regions, one the nodes: the differences
are made, squared and projected on the chip. The backward pass makes them again, in the precision of the
nodes, and keeps them no longer than it takes to sum them over images and over words.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels.cross_scores import LARGEST_PULL, can_attend
from selhn.kernels.gpu import wide_product

USED = True
"""Whether the kernels are used where they can be."""
SHARED_BYTES = 208 * 2**10
"""What the largest kernel needs on the chip: GPUs from Hopper on have it, but for those of workstations."""
LEAST_CHANNELS = 64
SIZES_OF_NODES = (16, 32, 64, 128, 256)


class LinearWeights(NamedTuple):
    """A linear layer."""

    weight: Float[Tensor, "s d"]
    bias: Float[Tensor, " s"]


def node_precision(
    images: Float[Tensor, "I M d"], texts: Float[Tensor, "T N d"], projection: LinearWeights
) -> torch.dtype | None:
    """In which precision `compared_nodes` would make nodes; None if it cannot be used.

    That of autocast; or float16, where no gradient is asked for.
    """
    halves = torch.is_autocast_enabled(images.device.type)
    if (
        not USED
        or not (halves or not torch.is_grad_enabled())
        or not can_attend(images, texts)
        or images.shape[2] % LEAST_CHANNELS
        or len(projection.bias) not in SIZES_OF_NODES
        or projection.weight.dtype != torch.float32
        # The kernels count in 32 bits from an image's first row.
        or len(texts) * (texts.shape[1] + 1) * max(images.shape[2], len(projection.bias)) >= 2**31
        or _shared_bytes(images.device) < SHARED_BYTES
    ):
        return None
    return torch.get_autocast_dtype(images.device.type) if halves else torch.float16


def compared_nodes(
    images: Float[Tensor, "I M d"],
    region_mask: Bool[Tensor, "I M"],
    texts: Float[Tensor, "T N d"],
    wholes: tuple[Float[Tensor, "I d"], Float[Tensor, "T d"]],
    local: LinearWeights,
    whole: LinearWeights,
    smooth: float,
    dtype: torch.dtype,
) -> Float[Tensor, "I T X s"]:
    """X = 1 + N unit nodes of every image with every text: that of the whole, then those of the words.

    Vectors have the length 1, or 0 where they are padding.
    """
    with torch.autocast(images.device.type, enabled=False):
        gram = images @ images.mT
        return _Nodes.apply(images, texts, gram, *wholes, *local, *whole, region_mask.contiguous(), smooth, dtype)


class _Nodes(torch.autograd.Function):
    """(regions, words, gram, v, t, W_l, b_l, W_g, b_g) -> the nodes."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        gram: Tensor,
        image_whole: Tensor,
        text_whole: Tensor,
        local: Tensor,
        local_bias: Tensor,
        whole: Tensor,
        whole_bias: Tensor,
        region_mask: Tensor,
        smooth: float,
        dtype: torch.dtype,
    ) -> Tensor:
        from selhn.kernels import differences_triton

        num_words = texts.shape[1]
        regions, words = images.half().contiguous(), texts.half().contiguous().flatten(0, 1)
        # The kernels read eight words at a time.
        padded = pad(words.view_as(texts), (0, 0, 0, -num_words % 8))
        dots = wide_product(regions.flatten(0, 1), padded.flatten(0, 1).T)
        dots = dots.view(*images.shape[:2], *padded.shape[:2])
        weights = differences_triton.attend(dots, gram, region_mask, num_words, smooth)
        image_whole, text_whole = image_whole.half().contiguous()[:, None], text_whole.half().contiguous()
        vectors = torch.empty(len(images), len(texts), 1 + num_words, len(local), dtype=dtype, device=images.device)
        inverse = dots.new_empty(vectors.shape[:3])
        nodes = differences_triton.Nodes(vectors, inverse, per_text=num_words, first=1)
        pairs = differences_triton.Nodes(vectors, inverse, per_text=1, first=0)
        differences_triton.project(weights, regions, words, local.half(), local_bias, nodes)
        differences_triton.project(_all_of_it(text_whole), image_whole, text_whole, whole.half(), whole_bias, pairs)
        if any(ctx.needs_input_grad):
            kept = dots, gram, region_mask, weights, regions, padded, words, image_whole, text_whole, local, whole
            ctx.save_for_backward(*kept, vectors, inverse)
            ctx.smooth = smooth
        return vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from selhn.kernels import differences_triton

        *kept, vectors, inverse = ctx.saved_tensors
        dots, gram, region_mask, weights, regions, padded, words, image_whole, text_whole, local, whole = kept
        grad, num_words = grad.to(vectors.dtype).contiguous(), vectors.shape[2] - 1
        nodes = differences_triton.Nodes(vectors, inverse, per_text=num_words, first=1)
        pairs = differences_triton.Nodes(vectors, inverse, per_text=1, first=0)
        with torch.autocast(dots.device.type, enabled=False):
            _, grad_image_whole, grad_text_whole, *grad_whole = _project_backward(
                grad, _all_of_it(text_whole), image_whole, text_whole, whole, pairs
            )
            grad_weights, grad_regions, grad_words, *grad_local = _project_backward(
                grad, weights, regions, words, local, nodes
            )
            scale = LARGEST_PULL / grad_weights.abs().amax().clamp(min=1e-30)
            grad_dots, grad_gram = differences_triton.attend_backward(
                grad_weights, scale, dots, gram, region_mask, num_words, ctx.smooth
            )
            matrix = grad_dots.flatten(2).flatten(0, 1)
            grad_regions += wide_product(matrix, padded.flatten(0, 1)).div_(scale).view_as(grad_regions)
            grad_texts = wide_product(matrix.T, regions.flatten(0, 1)).div_(scale).view(padded.shape)[:, :num_words]
            grad_texts += grad_words.view_as(grad_texts)
        grads = grad_regions, grad_texts, grad_gram.div_(scale), grad_image_whole.squeeze(1), grad_text_whole
        return *grads, *grad_local, *grad_whole, None, None, None


def _project_backward(
    grad: Tensor, weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, nodes: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of weights, regions, words, matrix and bias, in float32."""
    from selhn.kernels import differences_triton

    grad_projected, grad_differences, squares, grad_weights = differences_triton.project_backward(
        grad, weights, regions, words, matrix.to(grad.dtype), nodes
    )
    by_word = weights.to(grad.dtype).expand(len(regions), -1, -1).contiguous()
    grad_regions = wide_product(by_word.mT, grad_differences)[:, : regions.shape[1]]
    grad_words = grad_differences.sum(0, dtype=torch.float32).neg_()
    rows = grad_projected.flatten(0, 1)
    grad_matrix = wide_product(rows.T, squares.flatten(0, 1)).div_(differences_triton.SQUARED_SCALE)
    return grad_weights, grad_regions, grad_words, grad_matrix, rows.sum(0, dtype=torch.float32)


def _shared_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


def _all_of_it(text_whole: Float[Tensor, "T d"]) -> Float[Tensor, "1 T 8"]:
    """The weights with which a text's vector sees that of an image, the one and only."""
    return pad(text_whole.new_ones(1, len(text_whole), 1), (0, 7))
