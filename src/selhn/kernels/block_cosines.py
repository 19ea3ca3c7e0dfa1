"""The Triton kernels of `block_cosines`; imported only where they run.

A tile has the same few fragments of a few queries, a row each: weights are stored with the queries along the
last axis, and where negatives are mined, most tiles have no gradient and are skipped.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels import pair_tiles as tiles

QUERIES = tl.constexpr(8)
PLACES = tl.constexpr(8)
ROWS = tl.constexpr(64)
OPTIONS = {"num_warps": 4, "num_stages": 2}
# Compiled once for all batch sizes.
ANY_SIZE = {"do_not_specialize": ["num_contexts", "num_queries", "eights", "length", "num_fragments"]}


@triton.jit
def _tiles(num_queries, length):
    return tl.cdiv(num_queries, QUERIES) * tl.cdiv(length, PLACES)


@triton.jit
def _rows(tile, num_queries, length):
    """The query and position of each row, its index among all fragments, and which rows exist."""
    row, across = tl.arange(0, ROWS), tl.cdiv(num_queries, QUERIES)
    query = tile % across * QUERIES + row % QUERIES
    place = tile // across * PLACES + row // QUERIES
    return query, place, query * length + place, (query < num_queries) & (place < length)


@triton.jit
def _look(look, context, query, place, eights, length, num_fragments, K: tl.constexpr):
    """The weights of some rows for the fragments of a context."""
    k, wide = tl.arange(0, K)[None, :], eights * 8
    start = context * num_fragments.to(tl.int64) * length * wide
    at = look + start + (k * length + place[:, None]) * wide + query[:, None]
    return tl.load(at, mask=((query < wide) & (place < length))[:, None] & (k < num_fragments), other=0.0)


@triton.jit
def _seen(contexts, context, num_fragments, block, D: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr):
    """A block of a context's fragments."""
    k, channel = tl.arange(0, K)[:, None], block * WIDTH + tl.arange(0, WIDTH)[None, :]
    start = context * num_fragments.to(tl.int64) * D
    return tl.load(contexts + start + k * D + channel, mask=k < num_fragments, other=0.0)


@triton.jit
def _asked(queries, row, inside, block, D: tl.constexpr, WIDTH: tl.constexpr):
    """A block of some rows of the queries."""
    channel = block * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(queries + row[:, None] * D + channel, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def _number(numbers, context, row, inside, num_queries, length, block, BLOCKS: tl.constexpr):
    """The results of some rows in one block of one context."""
    at = numbers + context * num_queries.to(tl.int64) * length * BLOCKS + row * BLOCKS + block
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _any(a, b):
    return tl.sum(((a != 0) | (b != 0)).to(tl.int32), axis=0) > 0


@triton.jit(**ANY_SIZE)
def _products(
    look, contexts, queries, dots, squares, num_contexts, num_queries, eights, length, num_fragments,
    D: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program has a context and a tile: q . x and x . x."""
    number = _tiles(num_queries, length)
    context = tl.program_id(0) // number
    query, place, row, inside = _rows(tl.program_id(0) % number, num_queries, length)
    p = _look(look, context, query, place, eights, length, num_fragments, K)
    column = tl.arange(0, BLOCKS)[None, :]
    dot, square = tl.zeros([ROWS, BLOCKS], tl.float32), tl.zeros([ROWS, BLOCKS], tl.float32)
    for block in range(BLOCKS):
        x = tl.dot(p, _seen(contexts, context, num_fragments, block, D, WIDTH, K))
        q = _asked(queries, row, inside, block, D, WIDTH)
        dot = tl.where(column == block, tl.sum(q * x, axis=1)[:, None], dot)
        square = tl.where(column == block, tl.sum(x * x, axis=1)[:, None], square)
    to = context * num_queries.to(tl.int64) * length * BLOCKS + row[:, None] * BLOCKS + column
    tl.store(dots + to, dot, mask=inside[:, None])
    tl.store(squares + to, square, mask=inside[:, None])


@triton.jit(**ANY_SIZE)
def _grad_weights(
    grad_dots, grad_squares, look, contexts, queries, grad_weights,
    num_contexts, num_queries, eights, length, num_fragments,
    D: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program has a context and a tile: dL/dw_k = c_k . (a q + 2 b x), with a, b the gradients of both."""
    number = _tiles(num_queries, length)
    context = tl.program_id(0) // number
    query, place, row, inside = _rows(tl.program_id(0) % number, num_queries, length)
    p = _look(look, context, query, place, eights, length, num_fragments, K)
    d_p = tl.zeros([ROWS, K], tl.float32)
    for block in range(BLOCKS):
        a = _number(grad_dots, context, row, inside, num_queries, length, block, BLOCKS)
        b = _number(grad_squares, context, row, inside, num_queries, length, block, BLOCKS)
        if _any(a, b):
            c = _seen(contexts, context, num_fragments, block, D, WIDTH, K)
            q = _asked(queries, row, inside, block, D, WIDTH)
            d_x = a[:, None] * q + (2 * b)[:, None] * tl.dot(p, c)
            d_p = tl.dot(d_x, tl.trans(c.to(tl.float32)), d_p, input_precision="tf32")
    k = tl.arange(0, K)[None, :]
    start = context * num_fragments.to(tl.int64) * length * num_queries
    to = grad_weights + start + (k * length + place[:, None]) * num_queries + query[:, None]
    tl.store(to, d_p, mask=inside[:, None] & (k < num_fragments))


@triton.jit(**ANY_SIZE)
def _grad_queries(
    grad_dots, look, contexts, grad_queries, num_contexts, num_queries, eights, length, num_fragments,
    D: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program has a tile and a block: dL/dq = sum over contexts of a x."""
    block = tl.program_id(0) % BLOCKS
    query, place, row, inside = _rows(tl.program_id(0) // BLOCKS, num_queries, length)
    d_q = tl.zeros([ROWS, WIDTH], tl.float32)
    for context in range(num_contexts):
        a = _number(grad_dots, context, row, inside, num_queries, length, block, BLOCKS)
        if _any(a, a):
            p = _look(look, context, query, place, eights, length, num_fragments, K)
            d_q += a[:, None] * tl.dot(p, _seen(contexts, context, num_fragments, block, D, WIDTH, K))
    to = grad_queries + row[:, None] * D + block * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(to, d_q, mask=inside[:, None])


@triton.jit(**ANY_SIZE)
def _grad_contexts(
    grad_dots, grad_squares, look, contexts, queries, grad_contexts,
    num_contexts, num_queries, eights, length, num_fragments,
    D: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program has a context and a block: dL/dc_k = sum over all rows of w_k (a q + 2 b x)."""
    context, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    c = _seen(contexts, context, num_fragments, block, D, WIDTH, K)
    d_c = tl.zeros([K, WIDTH], tl.float32)
    for tile in range(_tiles(num_queries, length)):
        query, place, row, inside = _rows(tile, num_queries, length)
        a = _number(grad_dots, context, row, inside, num_queries, length, block, BLOCKS)
        b = _number(grad_squares, context, row, inside, num_queries, length, block, BLOCKS)
        if _any(a, b):
            p = _look(look, context, query, place, eights, length, num_fragments, K)
            q = _asked(queries, row, inside, block, D, WIDTH)
            d_x = a[:, None] * q + (2 * b)[:, None] * tl.dot(p, c)
            d_c = tl.dot(tl.trans(p.to(tl.float32)), d_x, d_c, input_precision="tf32")
    k, channel = tl.arange(0, K)[:, None], block * WIDTH + tl.arange(0, WIDTH)[None, :]
    to = grad_contexts + context * num_fragments.to(tl.int64) * D + k * D + channel
    tl.store(to, d_c, mask=k < num_fragments)


class AttendedBlocks(torch.autograd.Function):
    """(w, c, q) -> q . x and x . x in every block."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, contexts: Tensor, queries: Tensor, blocks: int
    ) -> tuple[Tensor, Tensor]:
        # The kernels read eight queries at a time.
        look = pad(weights.half(), (0, -len(queries) % 8)).contiguous()
        kept = look, contexts.half().contiguous(), queries.half().contiguous()
        dots, squares = (weights.new_empty(len(contexts), *queries.shape[:2], blocks) for _ in range(2))
        _products[(len(contexts) * _num_tiles(queries),)](
            *kept, dots, squares, *_sizes(*kept, blocks), **OPTIONS
        )
        ctx.save_for_backward(*kept)
        return dots, squares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_dots: Tensor, grad_squares: Tensor) -> tuple[Tensor | None, ...]:
        kept = look, contexts, queries = ctx.saved_tensors
        num_contexts, num_tiles, blocks = len(contexts), _num_tiles(queries), grad_dots.shape[3]
        grads, sizes = (
            (grad_dots.contiguous(), grad_squares.contiguous()),
            _sizes(look, contexts, queries, blocks),
        )
        grad_weights = grad_dots.new_empty(*look.shape[:3], len(queries))
        grad_contexts, grad_queries = (
            torch.empty_like(vectors, dtype=torch.float32) for vectors in (contexts, queries)
        )
        _grad_weights[(num_contexts * num_tiles,)](*grads, *kept, grad_weights, *sizes, **OPTIONS)
        _grad_queries[(num_tiles * blocks,)](grads[0], look, contexts, grad_queries, *sizes, **OPTIONS)
        _grad_contexts[(num_contexts * blocks,)](*grads, *kept, grad_contexts, *sizes, **OPTIONS)
        return grad_weights, grad_contexts, grad_queries, None


def _num_tiles(queries: Tensor) -> int:
    return triton.cdiv(len(queries), QUERIES.value) * triton.cdiv(queries.shape[1], PLACES.value)


def _sizes(look: Tensor, contexts: Tensor, queries: Tensor, blocks: int) -> tuple[int, ...]:
    """The arguments of all kernels after their tensors."""
    (num_contexts, fragments, dim), (num_queries, length) = contexts.shape, queries.shape[:2]
    any_size = num_contexts, num_queries, look.shape[3] // 8, length, fragments
    return *any_size, dim, blocks, dim // blocks, tiles.side(fragments)
