"""The Triton kernels of `memory`; imported only where they run.

A program has a context, some of its queries, and some channels of their memories.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.kernels.pair_tiles import side
from selhn.ops.gpu import wide_product
from selhn.ops.memory import CHANNELS

ROWS, WARPS = 64, 4
# Compiled once for all batch sizes.
ANY_SIZE = {"do_not_specialize": ["queries", "fragments", "shared"]}


@triton.jit
def _tile(
    memory, known, weights, seen, queries, fragments, shared,
    DIM: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Of a program: the rows of its queries, which there are, its channels, and there q, tanh(o) and g."""
    columns, parts = DIM // CHANNELS, tl.cdiv(queries, ROWS)
    context = (tl.program_id(0) // (columns * parts)).to(tl.int64)
    query = tl.program_id(0) // columns % parts * ROWS + tl.arange(0, ROWS)
    channel = (tl.program_id(0) % columns * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    inside, fragment = (query < queries)[:, None], context * fragments + tl.arange(0, K)[:, None]
    there = tl.arange(0, K)[:, None] < fragments
    p = tl.load(
        weights + fragment * queries + query[None, :], mask=there & (query < queries)[None, :], other=0.0
    )
    p = tl.trans(p).to(seen.dtype.element_ty)
    # Queries shared by all contexts are stored once.
    row = tl.where(shared != 0, 0, context * queries) + query[:, None]
    of_seen, of_known = seen + fragment * (2 * DIM) + channel, known + row * (2 * DIM) + channel
    output = tl.load(of_known, mask=inside, other=0.0).to(tl.float32)
    output = tl.dot(p, tl.load(of_seen, mask=there, other=0.0), output)
    gate = tl.load(of_known + DIM, mask=inside, other=0.0).to(tl.float32)
    gate = tl.dot(p, tl.load(of_seen + DIM, mask=there, other=0.0), gate)
    q = tl.load(memory + row * DIM + channel, mask=inside, other=0.0).to(tl.float32)
    return (
        context * queries + query[:, None],
        inside,
        channel,
        q,
        2 * tl.sigmoid(2 * output) - 1,
        tl.sigmoid(gate),
    )


@triton.jit(**ANY_SIZE)
def _remember(
    memory, known, weights, seen, out, queries, fragments, shared,
    DIM: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, inside, channel, q, output, gate = _tile(
        memory, known, weights, seen, queries, fragments, shared, DIM, K, ROWS, CHANNELS
    )
    new = output + gate * (q - output)
    tl.store(out + row * DIM + channel, new.to(out.dtype.element_ty), mask=inside)


@triton.jit(**ANY_SIZE)
def _remember_backward(
    grad, memory, known, weights, seen, grad_memory, grad_logits, queries, fragments, shared,
    DIM: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, inside, channel, q, output, gate = _tile(
        memory, known, weights, seen, queries, fragments, shared, DIM, K, ROWS, CHANNELS
    )
    half = grad_memory.dtype.element_ty
    pull = tl.load(grad + row * DIM + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_memory + row * DIM + channel, (pull * gate).to(half), mask=inside)
    of_output = pull * (1 - gate) * (1 - output * output)
    of_gate = pull * (q - output) * gate * (1 - gate)
    to = grad_logits + row * (2 * DIM) + channel
    tl.store(to, of_output.to(half), mask=inside)
    tl.store(to + DIM, of_gate.to(half), mask=inside)


class Remembered(torch.autograd.Function):
    """(q, W_q q + b, p, W_x v) -> g q + (1 - g) tanh(o)."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, known: Tensor, weights: Tensor, seen: Tensor) -> Tensor:
        given = [part.contiguous() for part in (memory, known, weights, seen)]
        out = memory.new_empty(len(seen), *memory.shape[1:])
        _remember[_grid(out)](*given, out, *_sizes(given), num_warps=WARPS)
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        memory, known, weights, seen = given = ctx.saved_tensors
        grad = grad.contiguous()
        grad_memory = torch.empty_like(grad, dtype=memory.dtype)
        grad_logits = memory.new_empty(*grad.shape[:2], seen.shape[2])
        _remember_backward[_grid(grad)](
            grad, *given, grad_memory, grad_logits, *_sizes(given), num_warps=WARPS
        )
        grad_weights = wide_product(seen, grad_logits.mT)
        grad_seen = torch.bmm(weights.to(seen.dtype), grad_logits)
        if len(memory) < len(seen):  # one for all contexts
            grad_memory = grad_memory.sum(0, keepdim=True, dtype=torch.float32).to(memory.dtype)
            grad_logits = grad_logits.sum(0, keepdim=True, dtype=torch.float32).to(known.dtype)
        return grad_memory, grad_logits, grad_weights, grad_seen


def _grid(memories: Tensor) -> tuple[int]:
    contexts, queries, dim = memories.shape
    return (contexts * triton.cdiv(queries, ROWS) * (dim // CHANNELS),)


def _sizes(given: list[Tensor]) -> tuple[int, ...]:
    """The arguments of both kernels after their tensors."""
    memory, _, weights, _ = given
    contexts, fragments, queries = weights.shape
    return queries, fragments, int(len(memory) < contexts), memory.shape[2], side(fragments), ROWS, CHANNELS
