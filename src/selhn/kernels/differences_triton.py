"""The Triton kernels of `differences`; imported only where they run.

Attention has a pair as a tile, as in `triton_tiles`. Projections have an image and some of its words, a row
each: the differences are made DEPTH channels at a time, and go from the registers into the next matrix
product.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from selhn.kernels import triton_tiles as tiles
from selhn.kernels.triton_tiles import EPSILON, LEAST_SQUARE, SLOPE

TEXTS = 8
"""Texts per program in the forward pass."""
TEXTS_BACK = 16
"""In the backward pass, which adds up their shares of the Gram matrix's gradient in registers."""
ROWS, DEPTH, WARPS, STAGES = 128, 64, 8, 3
ROWS_BACK, DEPTH_BACK, WARPS_BACK, STAGES_BACK = 128, 64, 8, 2
# Entries of unit vectors are about 0.03: times this, their squares have all digits of float16, and none is
# too large.
SCALE = tl.constexpr(32.0)
SQUARED_SCALE = 1024.0
# One version must serve batches of all sizes.
ANY_PAIRS = {
    "do_not_specialize": ["num_texts", "regions", "eights", "words", "wide"],
    "do_not_specialize_on_alignment": ["region_mask"],
}
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


@triton.jit(**ANY_PAIRS)
def _weights(
    dots, gram, region_mask, weights, num_texts, regions, eights, words, wide, smooth,
    TEXTS: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    image, first = tiles.place(num_texts, TEXTS)
    high, low, looked_at = tiles.read_context(gram, region_mask, image, regions, REGIONS)
    at, inside = tiles.tile(num_texts, regions, eights, REGIONS, WORDS)
    region, word, width = tl.arange(0, REGIONS)[:, None], tl.arange(0, WORDS)[None, :], wide * 8
    for text in range(first, tl.minimum(first + TEXTS, num_texts)):
        pair, start = tiles.pair_at(image, text, num_texts, regions, eights, 0)
        s = tl.load(dots + start + at, mask=inside, other=0.0)
        _, _, w, _, _, _, square = tiles.attend(s, high, low, looked_at, smooth, 0, None)
        w *= (1 / (tl.sqrt(tl.maximum(square, LEAST_SQUARE)) + EPSILON))[None, :]
        to = weights + pair * words * width + word * width + region
        tl.store(to, tiles.half(w), mask=(region < width) & (word < words))


@triton.jit(**ANY_PAIRS)
def _weights_backward(
    grad, scale, dots, gram, region_mask, grad_dots, grad_gram, num_texts, regions, eights, words, wide, smooth,
    TEXTS: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """All gradients times `scale`. Pairs without any, as most are with mined negatives, are skipped."""
    image, first = tiles.place(num_texts, TEXTS)
    high, low, looked_at = tiles.read_context(gram, region_mask, image, regions, REGIONS)
    at, inside = tiles.tile(num_texts, regions, eights, REGIONS, WORDS)
    region, word, width = tl.arange(0, REGIONS)[:, None], tl.arange(0, WORDS)[None, :], wide * 8
    factor = tl.load(scale)
    d_gram = tl.zeros([REGIONS, REGIONS], tl.float32)
    for text in range(first, tl.minimum(first + TEXTS, num_texts)):
        pair, start = tiles.pair_at(image, text, num_texts, regions, eights, 0)
        of_pair = grad + pair * words * width + word * width + region
        pull = tl.load(of_pair, mask=(region < regions) & (word < words), other=0.0) * factor
        if tl.sum(tl.sum((pull != 0).to(tl.int32), axis=0), axis=0) > 0:
            s = tl.load(dots + start + at, mask=inside, other=0.0)
            active, norm, w, w_high, gram_w, _, square = tiles.attend(s, high, low, looked_at, smooth, 0, None)
            root = tl.sqrt(tl.maximum(square, LEAST_SQUARE))
            inverse = 1 / (root + EPSILON)
            # What sees nothing has no direction.
            d_square = tl.where(square > LEAST_SQUARE, -0.5 * tl.sum(pull * w, axis=0) * inverse * inverse / root, 0.0)
            d_gram = tl.dot(tiles.half(w * d_square[None, :]), tl.trans(w_high), d_gram)
            d_w = pull * inverse[None, :] + gram_w * (2 * d_square)[None, :]
            d_logits = w * (d_w - tl.sum(w * d_w, axis=0)[None, :])
            along = tl.sum(d_logits * active, axis=1) / ((norm + EPSILON) * tl.maximum(norm, EPSILON))
            d_s = (d_logits - active * along[:, None]) * (smooth / (norm + EPSILON))[:, None]
            tl.store(grad_dots + start + at, tiles.half(tl.where(s > 0, d_s, SLOPE * d_s)), mask=inside)
    k, other = tl.arange(0, REGIONS)[:, None], tl.arange(0, REGIONS)[None, :]
    to = grad_gram + tl.program_id(0).to(tl.int64) * regions * regions + k * regions + other
    tl.store(to, d_gram, mask=(k < regions) & (other < regions))


@triton.jit
def _rows(num_words, ROWS: tl.constexpr):
    """The image of a program, its words, and which of them there are."""
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
def _difference(p, regions, words, image, num_regions, row, inside, channel, D: tl.constexpr, K: tl.constexpr):
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
    D: tl.constexpr, S: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
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
    inverse = 1 / (tl.sqrt(tl.sum(total * total, axis=1)) + EPSILON)
    node = _node(image, row, per_text, places, first_place, per_image)
    tl.store(inverses + node, inverse, mask=inside)
    to = nodes + node[:, None] * S + column[None, :]
    tl.store(to, (total * inverse[:, None]).to(nodes.dtype.element_ty), mask=inside[:, None])


@triton.jit(**ANY_ROWS)
def _project_backward(
    grad, weights, regions, words, matrix, nodes, inverses, grad_projected, grad_differences, squares, grad_weights,
    image_eights, num_words, num_regions, wide, per_text, places, first_place, per_image,
    D: tl.constexpr, S: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Words without a gradient, as most are with mined negatives, cost no more than writing zeros."""
    half = nodes.dtype.element_ty
    image, row, inside = _rows(num_words, ROWS)
    column = tl.arange(0, S)
    node = _node(image, row, per_text, places, first_place, per_image)
    at = node[:, None] * S + column[None, :]
    pull = tl.load(grad + at, mask=inside[:, None], other=0.0).to(tl.float32)
    x = tl.load(nodes + at, mask=inside[:, None], other=0.0).to(tl.float32)
    inverse = tl.load(inverses + node, mask=inside, other=0.0)
    d_projected = ((pull - x * tl.sum(pull * x, axis=1)[:, None]) * inverse[:, None]).to(half)
    here = image * num_words + row
    tl.store(grad_projected + here[:, None] * S + column[None, :], d_projected, mask=inside[:, None])
    p = _look(weights, image, image_eights, row, inside, wide, K)
    d_p = tl.zeros([ROWS, K], tl.float32)
    stop = 0
    if tl.sum(tl.sum((pull != 0).to(tl.int32), axis=1), axis=0) > 0:
        stop = D
    for begin in range(0, stop, DEPTH):
        channel = begin + tl.arange(0, DEPTH)
        m = tl.load(matrix + column[:, None] * D + channel[None, :])
        delta, v = _difference(p, regions, words, image, num_regions, row, inside, channel, D, K)
        d_delta = (tl.dot(d_projected, m) * delta * (2 / SCALE)).to(half)
        d_p = tl.dot(d_delta, tl.trans(v.to(tl.float32).to(half)), d_p)
        to = here[:, None] * D + channel[None, :]
        tl.store(grad_differences + to, d_delta, mask=inside[:, None])
        tl.store(squares + to, (delta * delta).to(half), mask=inside[:, None])
    nothing = tl.zeros([ROWS, DEPTH], half)
    for begin in range(stop, D, DEPTH):
        to = here[:, None] * D + begin + tl.arange(0, DEPTH)[None, :]
        tl.store(grad_differences + to, nothing, mask=inside[:, None])
        tl.store(squares + to, nothing, mask=inside[:, None])
    k, width = tl.arange(0, K)[None, :], wide * 8
    tl.store(grad_weights + here[:, None] * width + k, d_p, mask=inside[:, None] & (k < width))


def attend(dots: Tensor, gram: Tensor, region_mask: Tensor, words: int, smooth: float) -> Tensor:
    """Float16 weights (I, T * words, K') from products (I, K, T, N); K', N: K, `words` up to a multiple of 8."""
    images, regions, texts, _ = dots.shape
    weights = dots.new_empty(images, texts * words, regions + -regions % 8, dtype=torch.float16)
    _weights[(images * triton.cdiv(texts, TEXTS),)](
        dots, gram, region_mask, weights, *_pair_sizes(dots, words, smooth, TEXTS), **tiles.tile_options(dots, 3)
    )
    return weights


def attend_backward(
    grad: Tensor, scale: Tensor, dots: Tensor, gram: Tensor, region_mask: Tensor, words: int, smooth: float
) -> tuple[Tensor, Tensor]:
    """The gradients of the products, in float16, and of the Gram matrices. Both times `scale`."""
    images, texts = len(dots), dots.shape[2]
    parts = triton.cdiv(texts, TEXTS_BACK)
    grad_dots = torch.zeros_like(dots, dtype=torch.float16)
    grad_gram = gram.new_empty(images, parts, *gram.shape[1:])
    _weights_backward[(images * parts,)](
        grad, scale, dots, gram, region_mask, grad_dots, grad_gram, *_pair_sizes(dots, words, smooth, TEXTS_BACK),
        **tiles.tile_options(dots, 2),
    )  # fmt: skip
    return grad_dots, grad_gram.sum(1)


def project(weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, bias: Tensor, nodes: Nodes) -> None:
    """Write the nodes of all words (W, d) in all images (I, K, d), float16; `matrix` is (s, d)."""
    _project[_row_grid(regions, words, ROWS)](
        weights, regions, words, matrix.T.contiguous(), bias, nodes.vectors, nodes.inverse,
        *_row_sizes(weights, regions, words, nodes), ROWS, DEPTH, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def project_backward(
    grad: Tensor, weights: Tensor, regions: Tensor, words: Tensor, matrix: Tensor, nodes: Nodes
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of what was projected (I, W, s) and of the differences (I, W, d), their squares times
    SQUARED_SCALE, and the gradients of the weights (I, W, K') in float32.

    `grad`, `matrix` and the nodes have one precision, and so have the results but the last.
    """
    images, (num_words, dim), vectors = len(regions), words.shape, nodes.vectors
    projected = vectors.new_empty(images, num_words, vectors.shape[3])
    differences, squares = (vectors.new_empty(images, num_words, dim) for _ in range(2))
    grad_weights = nodes.inverse.new_empty(images, num_words, weights.shape[2])
    _project_backward[_row_grid(regions, words, ROWS_BACK)](
        grad, weights, regions, words, matrix, vectors, nodes.inverse, projected, differences, squares, grad_weights,
        *_row_sizes(weights, regions, words, nodes), ROWS_BACK, DEPTH_BACK,
        num_warps=WARPS_BACK, num_stages=STAGES_BACK,
    )  # fmt: skip
    return projected, differences, squares, grad_weights


def _pair_sizes(dots: Tensor, words: int, smooth: float, texts: int) -> tuple[int | float, ...]:
    """What both kernels of attention take after their tensors."""
    _, regions, num_texts, padded = dots.shape
    sizes = num_texts, regions, padded // 8, words, (regions + 7) // 8, float(smooth)
    return *sizes, texts, tiles.side(regions), tiles.side(padded)


def _row_grid(regions: Tensor, words: Tensor, rows: int) -> tuple[int]:
    return (len(regions) * triton.cdiv(len(words), rows),)


def _row_sizes(weights: Tensor, regions: Tensor, words: Tensor, nodes: Nodes) -> tuple[int, ...]:
    """What both kernels of projection take after their tensors."""
    num_regions, dim = regions.shape[1:]
    _, texts, places, sim_dim = nodes.vectors.shape
    # Weights that are the same for all images are there once.
    image_eights = weights[0].numel() // 8 if len(weights) > 1 else 0
    strides = nodes.per_text, places, nodes.first, texts * places
    return image_eights, len(words), num_regions, weights.shape[2] // 8, *strides, dim, sim_dim, tiles.side(num_regions)
