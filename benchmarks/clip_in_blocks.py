"""CLIP's loss from embeddings in plain Triton: the reference of `loss.py` that keeps no B x B matrix.

Public programs that save memory (MemoryEfficientCLIP, for one) compute each block of scores once for the loss and once
more for the gradients, and take both gradients from that one recomputation. So does this one, in the shortest form: a
program has one block of scores, and adds its part to sums and gradients by atomic additions.

    L = 1 / (2 B) sum_i [ log sum_j exp(s_ij / t) + log sum_j exp(s_ji / t) - 2 s_ii / t ]

The logits are at most 1 / t, which is subtracted instead of a maximum.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, DEPTH = 128, 64


@triton.jit
def _logits(images, texts, rows, columns, B, D, scale, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Logits of a block, less the largest that is possible."""
    scores = tl.zeros((BLOCK, BLOCK), tl.float32)
    depth = tl.arange(0, DEPTH)
    for k in range(0, D, DEPTH):
        a = tl.load(images + rows[:, None] * D + k + depth[None, :], mask=(rows < B)[:, None], other=0.0)
        b = tl.load(texts + columns[None, :] * D + k + depth[:, None], mask=(columns < B)[None, :], other=0.0)
        scores = tl.dot(a, b, scores)
    return tl.where((rows < B)[:, None] & (columns < B)[None, :], (scores - 1) * scale, float("-inf"))


@triton.jit
def _add_sums(images, texts, of_rows, of_columns, B, D, scale, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exponentials = tl.exp(_logits(images, texts, rows, columns, B, D, scale, BLOCK, DEPTH))
    tl.atomic_add(of_rows + rows, tl.sum(exponentials, 1), mask=rows < B)
    tl.atomic_add(of_columns + columns, tl.sum(exponentials, 0), mask=columns < B)


@triton.jit
def _add_gradients(
    images, texts, of_rows, of_columns, grad_images, grad_texts, B, D, scale, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exponentials = tl.exp(_logits(images, texts, rows, columns, B, D, scale, BLOCK, DEPTH))
    of_row = tl.load(of_rows + rows, mask=rows < B, other=1.0)[:, None]
    of_column = tl.load(of_columns + columns, mask=columns < B, other=1.0)[None, :]
    pull = exponentials / of_row + exponentials / of_column
    pull = (pull - tl.where(rows[:, None] == columns[None, :], 2.0, 0.0)).to(images.dtype.element_ty)
    depth = tl.arange(0, DEPTH)
    for k in range(0, D, DEPTH):
        at_rows = rows[:, None] * D + k + depth[None, :]
        at_columns = columns[:, None] * D + k + depth[None, :]
        a = tl.load(images + at_rows, mask=(rows < B)[:, None], other=0.0)
        b = tl.load(texts + at_columns, mask=(columns < B)[:, None], other=0.0)
        tl.atomic_add(grad_images + at_rows, tl.dot(pull, b), mask=(rows < B)[:, None], sem="relaxed")
        tl.atomic_add(
            grad_texts + at_columns, tl.dot(tl.trans(pull), a), mask=(columns < B)[:, None], sem="relaxed"
        )


class _ClipInBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, texts: Tensor, scale: float) -> Tensor:
        batch, width = images.shape
        grid = (triton.cdiv(batch, BLOCK),) * 2
        sums = torch.zeros(2, batch, device=images.device)
        _add_sums[grid](images, texts, *sums, batch, width, scale, BLOCK, DEPTH, num_warps=8)
        ctx.save_for_backward(images, texts, sums)
        ctx.grid, ctx.scale = grid, scale
        positive = (images * texts).sum(1, dtype=torch.float32)
        return (sums.log().sum() - 2 * scale * (positive - 1).sum()) / (2 * batch)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        images, texts, sums = ctx.saved_tensors
        batch, width = images.shape
        grads = torch.zeros(2, batch, width, device=images.device)
        _add_gradients[ctx.grid](
            images, texts, *sums, *grads, batch, width, ctx.scale, BLOCK, DEPTH, num_warps=8
        )
        of_images, of_texts = (grads * (grad * ctx.scale / (2 * batch))).to(images.dtype)
        return of_images, of_texts, None


def clip_in_blocks(images: Tensor, texts: Tensor, temperature: float = 0.07) -> Tensor:
    """The loss of unit rows, whose width is a multiple of 64."""
    return _ClipInBlocks.apply(images, texts, 1 / temperature)
