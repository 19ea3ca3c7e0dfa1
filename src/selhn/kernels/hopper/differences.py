"""The Triton kernels that make nodes of differences; imported only where they run.

A program has an image and some of its words, one per row: the differences are made DEPTH channels at a time,
and go from the registers into the next matrix product.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels import pair_tiles as tiles
from selhn.kernels.hopper.touched import listed, summed_over_images, summed_over_words, summed_products
from selhn.kernels.hopper.unit_weights import unit_weights, unit_weights_backward
from selhn.kernels.pair_tiles import EPSILON
from selhn.ops.cross_scores import LARGEST_PULL
from selhn.ops.gpu import wide_product

ROWS, DEPTH, WARPS, STAGES = 128, 64, 8, 3
ROWS_BACK, DEPTH_BACK, WARPS_BACK, STAGES_BACK = 128, 64, 8, 2
# Entries of unit vectors are about 0.03: times this, squares have all digits of float16, and none is too
# large.
SCALE = tl.constexpr(32.0)
SQUARED_SCALE = 1024.0
# Compiled once for all batch sizes.
ANY_ROWS = {
    "do_not_specialize": [
        "image_eights", "num_words", "num_regions", "wide", "per_text", "places", "first_place", "per_image",
    ]
}  # fmt: skip


class Nodes(NamedTuple):
    """Rows of nodes: those of a text's `per_text` words begin at its place `first`."""

    vectors: Tensor
    inverse: Tensor
    per_text: int
    first: int
    relu: bool = False


@triton.jit
def _rows(num_words, ROWS: tl.constexpr):
    """The image of a program, its words, and which of them exist."""
    parts = tl.cdiv(num_words, ROWS)
    row = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    return (tl.program_id(0) // parts).to(tl.int64), row, row < num_words


@triton.jit
def _look(weights, image, image_eights, row, inside, wide, K: tl.constexpr):
    """The weights of some words for the regions of an image."""
    k, width = tl.arange(0, K)[None, :], wide * 8
    at = weights + image * (image_eights * 8) + row[:, None] * width + k
    return tl.load(at, mask=inside[:, None] & (k < width), other=0.0)


@triton.jit
def _difference(
    p, regions, words, image, num_regions, row, inside, channel, D: tl.constexpr, K: tl.constexpr
):
    """a - w in some channels, times SCALE; and the regions."""
    k = tl.arange(0, K)[:, None]
    v = tl.load(regions + image * num_regions * D + k * D + channel[None, :], mask=k < num_regions, other=0.0)
    w = tl.load(words + row[:, None] * D + channel[None, :], mask=inside[:, None], other=0.0)
    return (tl.dot(p, v) - w.to(tl.float32)) * SCALE, v


@triton.jit
def _node(image, row, per_text, places, first_place, per_image):
    """The row among all nodes."""
    text = row // per_text
    return image * per_image + (text * places + first_place + row - text * per_text)


@triton.jit(**ANY_ROWS)
def _project(
    weights, regions, words, matrix, bias, nodes, inverses, image_eights,
    num_words, num_regions, wide, per_text, places, first_place, per_image,
    D: tl.constexpr, S: tl.constexpr, K: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    image, row, inside = _rows(num_words, ROWS)
    p = _look(weights, image, image_eights, row, inside, wide, K)
    column = tl.arange(0, S)
    total = tl.zeros([ROWS, S], tl.float32)
    for begin in range(0, D, DEPTH):
        channel = begin + tl.arange(0, DEPTH)
        m = tl.load(matrix + channel[:, None] * S + column[None, :])
        delta, _ = _difference(p, regions, words, image, num_regions, row, inside, channel, D, K)
        total = tl.dot((delta * delta).to(tl.float16), m, total)
    total = total * (1 / (SCALE * SCALE)) + tl.load(bias + column)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = 1 / (tl.sqrt(tl.sum(total * total, axis=1)) + EPSILON)
    node = _node(image, row, per_text, places, first_place, per_image)
    tl.store(inverses + node, inverse, mask=inside)
    to = nodes + node[:, None] * S + column[None, :]
    tl.store(to, (total * inverse[:, None]).to(nodes.dtype.element_ty), mask=inside[:, None])


@triton.jit(**ANY_ROWS)
def _project_backward(
    grad, weights, regions, words, matrix, nodes, inverses, grad_projected, grad_differences, squares, grad_weights,
    grad_bias, touched, image_eights, num_words, num_regions, wide, per_text, places, first_place, per_image,
    D: tl.constexpr, S: tl.constexpr, K: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    EVERYWHERE: tl.constexpr,
):  # fmt: skip
    """Of words without a gradient (most, with mined negatives), only those of weights are written: zeros.

    With EVERYWHERE all zeros are written, because what comes next reads every row.
    """
    half = nodes.dtype.element_ty
    image, row, inside = _rows(num_words, ROWS)
    column = tl.arange(0, S)
    node = _node(image, row, per_text, places, first_place, per_image)
    at = node[:, None] * S + column[None, :]
    pull = tl.load(grad + at, mask=inside[:, None], other=0.0).to(tl.float32)
    here = image * num_words + row
    k, width = tl.arange(0, K)[None, :], wide * 8
    to_weights, in_weights = grad_weights + here[:, None] * width + k, inside[:, None] & (k < width)
    to_bias = grad_bias + tl.program_id(0) * S + column
    some = tl.sum(tl.sum((pull != 0).to(tl.int32), axis=1), axis=0) > 0
    tl.store(touched + tl.program_id(0), some)
    if not some:
        tl.store(to_weights, tl.zeros([ROWS, K], tl.float32), mask=in_weights)
        tl.store(to_bias, tl.zeros([S], tl.float32))
        if EVERYWHERE:
            nothing = tl.zeros([ROWS, S], half)
            tl.store(grad_projected + here[:, None] * S + column[None, :], nothing, mask=inside[:, None])
            for begin in range(0, D, DEPTH):
                there = here[:, None] * D + begin + tl.arange(0, DEPTH)[None, :]
                none = tl.zeros([ROWS, DEPTH], half)
                tl.store(grad_differences + there, none, mask=inside[:, None])
                tl.store(squares + there, none, mask=inside[:, None])
        return
    x = tl.load(nodes + at, mask=inside[:, None], other=0.0).to(tl.float32)
    inverse = tl.load(inverses + node, mask=inside, other=0.0)
    d_projected = (pull - x * tl.sum(pull * x, axis=1)[:, None]) * inverse[:, None]
    if RELU:
        d_projected = tl.where(x == 0, 0.0, d_projected)
    d_projected = d_projected.to(half)
    tl.store(grad_projected + here[:, None] * S + column[None, :], d_projected, mask=inside[:, None])
    tl.store(to_bias, tl.sum(d_projected.to(tl.float32), axis=0))
    p = _look(weights, image, image_eights, row, inside, wide, K)
    d_p = tl.zeros([ROWS, K], tl.float32)
    for begin in range(0, D, DEPTH):
        channel = begin + tl.arange(0, DEPTH)
        m = tl.load(matrix + column[:, None] * D + channel[None, :])
        delta, v = _difference(p, regions, words, image, num_regions, row, inside, channel, D, K)
        d_delta = (tl.dot(d_projected, m) * delta * (2 / SCALE)).to(half)
        d_p = tl.dot(d_delta, tl.trans(v.to(tl.float32).to(half)), d_p)
        to = here[:, None] * D + channel[None, :]
        tl.store(grad_differences + to, d_delta, mask=inside[:, None])
        tl.store(squares + to, (delta * delta).to(half), mask=inside[:, None])
    tl.store(to_weights, d_p, mask=in_weights)


class AttendedNodes(torch.autograd.Function):
    """(weights, contexts, queries, W, b) -> the nodes."""

    @staticmethod
    def forward(
        ctx: Any,
        dtype: torch.dtype,
        weights: Tensor,
        contexts: Tensor,
        queries: Tensor,
        matrix: Tensor,
        bias: Tensor,
    ) -> Tensor:
        # The kernels read eight fragments of a context at a time.
        look = pad(weights.half(), (0, -weights.shape[3] % 8)).contiguous().flatten(1, 2)
        contexts, queries = contexts.half().contiguous(), queries.half().contiguous().flatten(0, 1)
        vectors = torch.empty(*weights.shape[:3], len(matrix), dtype=dtype, device=matrix.device)
        inverse = matrix.new_empty(vectors.shape[:3])
        _projected(
            look,
            contexts,
            queries,
            matrix,
            bias,
            Nodes(vectors, inverse, vectors.shape[2], first=0, relu=True),
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(look, contexts, queries, matrix, vectors, inverse)
        return vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        look, contexts, queries, matrix, vectors, inverse = ctx.saved_tensors
        nodes, rows = Nodes(vectors, inverse, vectors.shape[2], first=0, relu=True), vectors.shape[1:3]
        with torch.autocast(grad.device.type, enabled=False):
            grads = _projected_backward(
                grad.to(vectors.dtype).contiguous(), look, contexts, queries, matrix, nodes, everywhere=False
            )
        of_weights, grad_contexts, grad_queries, *grad_layer = grads
        of_weights = of_weights[:, :, : grad_contexts.shape[1]].unflatten(1, rows)
        # In the order of memory in which attention makes weights, for its backward pass.
        of_weights = of_weights.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1)
        return None, of_weights, grad_contexts, grad_queries.unflatten(0, rows), *grad_layer


class ComparedNodes(torch.autograd.Function):
    """(regions, words, gram, v, t, W_l, b_l, W_g, b_g) -> the nodes."""

    @staticmethod
    def forward(
        ctx: Any, region_mask: Tensor, smooth: float, dtype: torch.dtype, everywhere: bool, *given: Tensor
    ) -> Tensor:
        images, texts, gram, image_whole, text_whole, local, local_bias, whole, whole_bias = given
        num_words = texts.shape[1]
        regions, words = images.half().contiguous(), texts.half().contiguous().flatten(0, 1)
        # The kernels read eight words at a time.
        padded = pad(words.view_as(texts), (0, 0, 0, -num_words % 8))
        dots = wide_product(regions.flatten(0, 1), padded.flatten(0, 1).T)
        dots = dots.view(*images.shape[:2], *padded.shape[:2])
        weights = unit_weights(dots, gram, region_mask, num_words, smooth)
        image_whole, text_whole = image_whole.half().contiguous()[:, None], text_whole.half().contiguous()
        vectors = torch.empty(
            len(images), len(texts), 1 + num_words, len(local), dtype=dtype, device=images.device
        )
        inverse = dots.new_empty(vectors.shape[:3])
        nodes, pairs = Nodes(vectors, inverse, num_words, first=1), Nodes(vectors, inverse, 1, first=0)
        _projected(weights, regions, words, local, local_bias, nodes)
        _projected(_all_of_it(text_whole), image_whole, text_whole, whole, whole_bias, pairs)
        if any(ctx.needs_input_grad):
            kept = (
                dots,
                gram,
                region_mask,
                weights,
                regions,
                padded,
                words,
                image_whole,
                text_whole,
                local,
                whole,
            )
            ctx.save_for_backward(*kept, vectors, inverse)
            ctx.smooth, ctx.everywhere = smooth, everywhere
        return vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *kept, vectors, inverse = ctx.saved_tensors
        dots, gram, region_mask, weights, regions, padded, words, image_whole, text_whole, local, whole = kept
        grad, num_words = grad.to(vectors.dtype).contiguous(), vectors.shape[2] - 1
        nodes, pairs = Nodes(vectors, inverse, num_words, first=1), Nodes(vectors, inverse, 1, first=0)
        with torch.autocast(dots.device.type, enabled=False):
            _, grad_image_whole, grad_text_whole, *grad_whole = _projected_backward(
                grad, _all_of_it(text_whole), image_whole, text_whole, whole, pairs, ctx.everywhere
            )
            grad_weights, grad_regions, grad_words, *grad_local = _projected_backward(
                grad, weights, regions, words, local, nodes, ctx.everywhere
            )
            scale = LARGEST_PULL / torch.linalg.vector_norm(grad_weights, torch.inf).clamp(min=1e-30)
            given = dots, gram, region_mask, num_words, ctx.smooth
            grad_dots, grad_gram = unit_weights_backward(grad_weights, scale, *given)
            matrix = grad_dots.flatten(2).flatten(0, 1)
            grad_regions += wide_product(matrix, padded.flatten(0, 1)).div_(scale).view_as(grad_regions)
            grad_texts = (
                wide_product(matrix.T, regions.flatten(0, 1)).div_(scale).view(padded.shape)[:, :num_words]
            )
            grad_texts += grad_words.view_as(grad_texts)
        grads = grad_regions, grad_texts, grad_gram.div_(scale), grad_image_whole.squeeze(1), grad_text_whole
        return None, None, None, None, *grads, *grad_local, *grad_whole


def _projected(
    weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, bias: Tensor, nodes: Nodes
) -> None:
    """Write the nodes of all words (W, d) in all images (I, K, d), float16; `matrix` is (s, d)."""
    _project[_row_grid(regions, words, ROWS)](
        weights, regions, words, matrix.half().T.contiguous(), bias, nodes.vectors, nodes.inverse,
        *_row_sizes(weights, regions, words, nodes), ROWS, DEPTH, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def _projected_backward(
    grad: Tensor,
    weights: Tensor,
    regions: Tensor,
    words: Tensor,
    matrix: Tensor,
    nodes: Nodes,
    everywhere: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of weights, regions, words, matrix and bias in float32; `grad` is as precise as the nodes."""
    images, (num_words, dim), vectors = len(regions), words.shape, nodes.vectors
    grid, size = _row_grid(regions, words, ROWS_BACK), vectors.shape[3]
    projected = vectors.new_empty(images, num_words, size)
    differences, squares = (vectors.new_empty(images, num_words, dim) for _ in range(2))
    grad_weights = nodes.inverse.new_empty(images, num_words, weights.shape[2])
    grad_biases = nodes.inverse.new_empty(*grid, size)
    touched = torch.empty(grid, dtype=torch.bool, device=grad.device)
    _project_backward[grid](
        grad, weights, regions, words, matrix.to(grad.dtype), vectors, nodes.inverse, projected, differences, squares,
        grad_weights, grad_biases, touched, *_row_sizes(weights, regions, words, nodes), ROWS_BACK, DEPTH_BACK,
        everywhere, num_warps=WARPS_BACK, num_stages=STAGES_BACK,
    )  # fmt: skip
    found = projected.flatten(0, 1), squares.flatten(0, 1)
    if everywhere:  # the sums of cuBLAS and torch are then faster
        by_word = weights.to(grad.dtype).expand(images, -1, -1).contiguous()
        grad_regions = wide_product(by_word.mT, differences)[:, : regions.shape[1]]
        grad_words = differences.sum(0, dtype=torch.float32)
        grad_matrix = wide_product(found[0].T, found[1])
    else:
        grad_regions = summed_over_words(weights, differences, touched, regions.shape[1], ROWS_BACK)
        grad_words = summed_over_images(differences, touched, ROWS_BACK)
        grad_matrix = summed_products(*found, listed(touched), num_words, ROWS_BACK)
    return grad_weights, grad_regions, grad_words.neg_(), grad_matrix.div_(SQUARED_SCALE), grad_biases.sum(0)


def _row_grid(regions: Tensor, words: Tensor, rows: int) -> tuple[int]:
    return (len(regions) * triton.cdiv(len(words), rows),)


def _row_sizes(weights: Tensor, regions: Tensor, words: Tensor, nodes: Nodes) -> tuple[int, ...]:
    """The arguments of both projection kernels after their tensors."""
    num_regions, dim = regions.shape[1:]
    _, texts, places, sim_dim = nodes.vectors.shape
    # Weights that are the same for all images are stored once.
    image_eights = weights[0].numel() // 8 if len(weights) > 1 else 0
    strides = nodes.per_text, places, nodes.first, texts * places
    rows = image_eights, len(words), num_regions, weights.shape[2] // 8
    return *rows, *strides, dim, sim_dim, tiles.side(num_regions), nodes.relu


def _all_of_it(text_whole: Float[Tensor, "T d"]) -> Float[Tensor, "1 T 8"]:
    """Weights for the pooled vectors: a text's vector attends to the single vector of an image."""
    return pad(text_whole.new_ones(1, len(text_whole), 1), (0, 7))
