"""The Triton kernels of `reasoning`; imported only where they run.

A program of a step has as many whole graphs as fit ROWS rows. All graphs of a program share its products: the
edges between nodes of two graphs are masked, as those to padding are. The weights are read CHANNELS at a time.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from selhn.kernels.hopper.touched import listed, summed_products
from selhn.kernels.pair_tiles import side
from selhn.ops.gpu import wide_product
from selhn.ops.reasoning import ROWS

CHANNELS, WARPS, STAGES = 64, 8, 2
CHANNELS_BACK, WARPS_BACK, STAGES_BACK = 64, 8, 1
# Compiled once for all batch sizes.
ANY_GRAPHS = {"do_not_specialize": ["num_rows", "per_tile", "places", "num_texts", "num_graphs"]}


class Step(NamedTuple):
    """The weights of a step, in the precision of the nodes; the biases are in float32."""

    mixed: Tensor
    mixed_bias: Tensor
    value: Tensor
    value_bias: Tensor


@triton.jit
def _tile(tile, mask, num_rows, per_tile, places, num_texts, ROWS: tl.constexpr):
    """The first row of a tile's graphs; the graph of each row, and which rows there are and are nodes."""
    row = tl.arange(0, ROWS)
    graph = row // places
    first = tile.to(tl.int64) * per_tile * places
    inside = (graph < per_tile) & (row < num_rows - first)
    text = (tile * per_tile + graph) % num_texts
    real = tl.load(mask + text * places + row - graph * places, mask=inside, other=0) != 0
    return first, row, inside, tl.where(real, graph, -1)


@triton.jit
def _weights(matrix, begin, S: tl.constexpr, CHANNELS: tl.constexpr):
    """Some rows of a linear layer's matrix."""
    return tl.load(matrix + (begin + tl.arange(0, CHANNELS))[:, None] * S + tl.arange(0, S)[None, :])


@triton.jit
def _softmax(logits, row, graph, places):
    """Edges are within a graph, from its real nodes. Rows without edges are padding, and become zeros."""
    logits = tl.where((row // places)[:, None] == graph[None, :], logits, -float("inf"))
    top = tl.max(logits, axis=1)
    e = tl.exp(logits - tl.where(top == -float("inf"), 0.0, top)[:, None])
    total = tl.sum(e, axis=1)
    return e * (1 / tl.where(total == 0, 1.0, total))[:, None]


@triton.jit(**ANY_GRAPHS)
def _step(
    nodes, mask, mixed, mixed_bias, value, value_bias, out, num_rows, per_tile, places, num_texts,
    S: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    first, row, inside, graph = _tile(tl.program_id(0), mask, num_rows, per_tile, places, num_texts, ROWS)
    half = nodes.dtype.element_ty
    nodes += first * S
    out += first * S
    x = tl.load(nodes + row[:, None] * S + tl.arange(0, S)[None, :], mask=inside[:, None], other=0.0)
    logits = tl.zeros([ROWS, ROWS], tl.float32)
    for begin in range(0, S, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        m = _weights(mixed, begin, S, CHANNELS)
        some = tl.load(nodes + row[:, None] * S + channel[None, :], mask=inside[:, None], other=0.0)
        query = tl.dot(x, tl.trans(m)) + tl.load(mixed_bias + channel)[None, :]
        logits = tl.dot(query.to(half), tl.trans(some), logits)
    edge = _softmax(logits, row, graph, places).to(half)
    for begin in range(0, S, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        v = tl.dot(x, tl.trans(_weights(value, begin, S, CHANNELS)))
        # A graph that is not finite has edges that are not: its values must not reach the graphs beside it.
        v = tl.where(v - v == 0, v, 0.0).to(half)
        y = tl.dot(edge, v) + tl.load(value_bias + channel)[None, :]
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + row[:, None] * S + channel[None, :], y.to(half), mask=inside[:, None])


@triton.jit(**ANY_GRAPHS)
def _step_backward(
    grad, tiles, count, nodes, mask, mixed, mixed_bias, value, out, grads, grad_biases, grad_nodes,
    num_rows, per_tile, places, num_texts,
    S: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of what is multiplied with the nodes (W_v X, then W X), of biases and of nodes."""
    if tl.program_id(0) >= tl.load(count):
        return
    tile = tl.load(tiles + tl.program_id(0))
    first, row, inside, graph = _tile(tile, mask, num_rows, per_tile, places, num_texts, ROWS)
    half = nodes.dtype.element_ty
    grad += first * S
    nodes += first * S
    out += first * S
    grads += first * (2 * S)
    grad_nodes += first * S
    grad_biases += tile * (2 * S)
    there = inside[:, None]
    x = tl.load(nodes + row[:, None] * S + tl.arange(0, S)[None, :], mask=there, other=0.0)
    logits = tl.zeros([ROWS, ROWS], tl.float32)
    for begin in range(0, S, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        m = _weights(mixed, begin, S, CHANNELS)
        some = tl.load(nodes + row[:, None] * S + channel[None, :], mask=there, other=0.0)
        query = (tl.dot(x, tl.trans(m)) + tl.load(mixed_bias + channel)[None, :]).to(half)
        logits = tl.dot(query, tl.trans(some), logits)
        # Kept for below where its gradient will be.
        tl.store(grads + row[:, None] * (2 * S) + S + channel[None, :], query, mask=there)
    edge = _softmax(logits, row, graph, places)
    turned = tl.trans(edge.to(half))
    d_edge = tl.zeros([ROWS, ROWS], tl.float32)
    for begin in range(0, S, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        pull = tl.load(grad + row[:, None] * S + channel[None, :], mask=there, other=0.0)
        y = tl.load(out + row[:, None] * S + channel[None, :], mask=there, other=0.0)
        pull = tl.where(y > 0, pull, 0.0).to(half)
        tl.store(grad_biases + channel, tl.sum(pull.to(tl.float32), axis=0))
        v = tl.dot(x, tl.trans(_weights(value, begin, S, CHANNELS))).to(half)
        d_edge = tl.dot(pull, tl.trans(v), d_edge)
        d_v = tl.dot(turned, pull).to(half)
        tl.store(grads + row[:, None] * (2 * S) + channel[None, :], d_v, mask=there)
    d_logits = (edge * (d_edge - tl.sum(edge * d_edge, axis=1)[:, None])).to(half)
    tl.debug_barrier()  # queries were stored by other threads
    turned = tl.trans(d_logits)
    for begin in range(0, S, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        some = tl.load(nodes + row[:, None] * S + channel[None, :], mask=there, other=0.0)
        query = tl.load(grads + row[:, None] * (2 * S) + S + channel[None, :], mask=there, other=0.0)
        to = row[:, None] * S + channel[None, :]
        tl.store(grad_nodes + to, tl.dot(turned, query).to(half), mask=there)
        d_query = tl.dot(d_logits, some)
        tl.store(grad_biases + S + channel, tl.sum(d_query, axis=0))
        tl.debug_barrier()
        tl.store(grads + row[:, None] * (2 * S) + S + channel[None, :], d_query.to(half), mask=there)
    tl.debug_barrier()
    column = tl.arange(0, S)[None, :]
    total = tl.load(grad_nodes + row[:, None] * S + column, mask=there, other=0.0).to(tl.float32)
    for begin in range(0, S, CHANNELS):
        at = row[:, None] * (2 * S) + begin + tl.arange(0, CHANNELS)[None, :]
        d_v = tl.load(grads + at, mask=there, other=0.0)
        total = tl.dot(d_v, _weights(value, begin, S, CHANNELS), total)
        d_query = tl.load(grads + S + at, mask=there, other=0.0)
        total = tl.dot(d_query, _weights(mixed, begin, S, CHANNELS), total)
    tl.debug_barrier()
    tl.store(grad_nodes + row[:, None] * S + column, total.to(half), mask=there)


@triton.jit
def _look(query, nodes, mask, graph, places, num_texts, S: tl.constexpr, PLACES: tl.constexpr):
    """The query and the nodes of a graph, its logits, and where its numbers are."""
    place, channel = tl.arange(0, PLACES), tl.arange(0, S)
    at = graph.to(tl.int64) * places * S + place[:, None] * S + channel[None, :]
    x = tl.load(nodes + at, mask=(place < places)[:, None], other=0.0).to(tl.float32)
    real = tl.load(mask + graph % num_texts * places + place, mask=place < places, other=0) != 0
    q = tl.load(query + graph.to(tl.int64) * S + channel).to(tl.float32)
    logits = tl.where(real, tl.sum(x * q[None, :], axis=1), -float("inf"))
    e = tl.exp(logits - tl.max(logits, axis=0))
    return q, x, e / tl.sum(e, axis=0), at, place < places


@triton.jit(**ANY_GRAPHS)
def _attend(query, nodes, mask, out, places, num_texts, S: tl.constexpr, PLACES: tl.constexpr):
    graph = tl.program_id(0)
    _, x, edge, _, _ = _look(query, nodes, mask, graph, places, num_texts, S, PLACES)
    y = tl.sum(edge[:, None] * x, axis=0)
    tl.store(out + graph.to(tl.int64) * S + tl.arange(0, S), y.to(out.dtype.element_ty))


@triton.jit(**ANY_GRAPHS)
def _attend_backward(
    grad, touched, query, nodes, mask, grad_query, grad_nodes, per_tile, places, num_texts,
    S: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Graphs of a tile without a gradient have none; its nodes are left alone."""
    graph, channel = tl.program_id(0), tl.arange(0, S)
    half = nodes.dtype.element_ty
    to = grad_query + graph.to(tl.int64) * S + channel
    if tl.load(touched + graph // per_tile) == 0:
        tl.store(to, tl.zeros([S], half))
        return
    q, x, edge, at, inside = _look(query, nodes, mask, graph, places, num_texts, S, PLACES)
    pull = tl.load(grad + graph.to(tl.int64) * S + channel).to(tl.float32)
    d_edge = tl.sum(x * pull[None, :], axis=1)
    d_logits = edge * (d_edge - tl.sum(edge * d_edge, axis=0))
    tl.store(to, tl.sum(d_logits[:, None] * x, axis=0).to(half))
    d_x = edge[:, None] * pull[None, :] + d_logits[:, None] * q[None, :]
    tl.store(grad_nodes + at, d_x.to(half), mask=inside[:, None])


class Reasoned(torch.autograd.Function):
    """(X, mask, W, b, W_v, b_v of every step but the last, W, b of the last) -> what its first node sees."""

    @staticmethod
    def forward(ctx: Any, nodes: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
        half, reached = nodes.dtype, [nodes.contiguous()]
        *given, last, last_bias = (
            part.to(half).contiguous() if part.ndim == 2 else part.float() for part in weights
        )
        steps = [Step(*given[first : first + 4]) for first in range(0, len(given), 4)]
        for step in steps:
            out = torch.empty_like(reached[-1])
            _step[(_num_tiles(nodes),)](
                reached[-1], mask, *step, out, *_sizes(nodes), ROWS, _some(nodes, CHANNELS),
                num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
            reached.append(out)
        query = torch.addmm(last_bias.to(half), reached[-1][:, :, 0].flatten(0, 1), last.T)
        seen = torch.empty_like(reached[-1][:, :, 0])
        _attend[(len(query),)](
            query, reached[-1], mask, seen, *_sizes(nodes)[2:], side(nodes.shape[2]), num_warps=_warps(nodes)
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(mask, query, last, *given, *reached)
            ctx.num_steps = len(steps)
        return seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, query, last, *kept = ctx.saved_tensors
        given, reached = kept[: 4 * ctx.num_steps], kept[4 * ctx.num_steps :]
        nodes, sizes = reached[0], _sizes(reached[0])
        per_tile, places, num_tiles = sizes[1], sizes[2], _num_tiles(nodes)
        grad = grad.to(nodes.dtype).contiguous().flatten(0, 1)
        # Most pairs have no gradient where negatives are mined: only tiles that have one are gone through.
        touched = pad((grad != 0).any(1), (0, -len(grad) % per_tile)).view(-1, per_tile).any(1)
        tiles, count = listed(touched)
        grad_nodes, grad_query = torch.zeros_like(nodes), torch.empty_like(query)
        with torch.autocast(grad.device.type, enabled=False):
            _attend_backward[(len(query),)](
                grad, touched, query, reached[-1], mask, grad_query, grad_nodes, *sizes[1:], side(nodes.shape[2]),
                num_warps=_warps(nodes),
            )  # fmt: skip
            firsts = reached[-1][:, :, 0].flatten(0, 1)
            found = [grad_query.sum(0, dtype=torch.float32), wide_product(grad_query.T, firsts)]
            grad_nodes[:, :, 0] += (grad_query @ last).view_as(grad_nodes[:, :, 0])
            grads = nodes.new_empty(nodes[..., 0].numel(), 2 * nodes.shape[3]) if given else nodes
            for number in reversed(range(ctx.num_steps)):
                mixed, mixed_bias, value, _ = given[4 * number : 4 * number + 4]
                before, own = reached[number], grad_nodes
                grad_nodes = torch.zeros_like(own) if number == 0 else torch.empty_like(own)
                biases = grads.new_zeros(num_tiles, grads.shape[1], dtype=torch.float32)
                _step_backward[(num_tiles,)](
                    own, tiles, count, before, mask, mixed, mixed_bias, value, reached[number + 1], grads, biases,
                    grad_nodes, *sizes, ROWS, _some(nodes, CHANNELS_BACK), num_warps=WARPS_BACK, num_stages=STAGES_BACK,
                )  # fmt: skip
                sums = summed_products(
                    grads, before.flatten(0, 2), (tiles, count), len(grads), per_tile * places
                )
                grad_value, grad_mixed = sums.chunk(2)
                grad_value_bias, grad_mixed_bias = biases.sum(0).chunk(2)
                found += [grad_value_bias, grad_value, grad_mixed_bias, grad_mixed]
        return grad_nodes, None, *reversed(found)


def _some(nodes: Tensor, most: int) -> int:
    return min(most, nodes.shape[3])


def _warps(nodes: Tensor) -> int:
    return 4 if side(nodes.shape[2]) <= 32 else 8


def _num_tiles(nodes: Tensor) -> int:
    return triton.cdiv(nodes.shape[0] * nodes.shape[1], ROWS // nodes.shape[2])


def _sizes(nodes: Tensor) -> tuple[int, ...]:
    """Arguments of the kernels after their tensors: rows, graphs of a tile, places, texts, size of a node."""
    num_rows, (_, texts, places, size) = nodes[..., 0].numel(), nodes.shape
    return num_rows, ROWS // places, places, texts, size
