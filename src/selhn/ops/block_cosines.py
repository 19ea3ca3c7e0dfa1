"""The nodes of GSMN: cosines of a query fragment with what it attends to, in blocks of channels.

Liu et al., CVPR 2020. With the weights w_k of a query's fragment q for the fragments c_k of a context, and x
= sum_k w_k c_k, a kernel makes q . x and x . x in every block: weights and vectors are rounded to float16, as
TF32 would round them; all sums are in float32. The attended vectors are made on the chip, block by block, and
again in the backward pass, whose products are in TF32.

Elsewhere the attended vectors of all pairs of image and text, d numbers per fragment, are made for a few
contexts at a time, reduced to two numbers per block, and recomputed in the backward pass.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.ops.cross_scores import EPSILON
from selhn.ops.fragments import chunks_with_queries
from selhn.ops.gpu import half_precision, takes_float32

MOST_FRAGMENTS = 128
"""Most fragments per context."""
MOST_NUMBERS = 2**13
"""Largest block of a context that one program holds, in numbers."""
# Bytes of attended vectors made at a time: about what a CPU's cache holds, and what fills a GPU.
CHUNK_BYTES = {"cpu": 2**22, "cuda": 2**28}


def block_cosines(
    weights: Float[Tensor, "C q L K"],
    contexts: Float[Tensor, "C K d"],
    queries: Float[Tensor, "Q L d"],
    blocks: int,
) -> Float[Tensor, "C q L b"]:
    """`cos(q[block], x[block])` of x = sum_k w_k c_k; all queries (q = Q), or query c with context c (q = 1).

    Where half precision may be used, a GPU rounds weights and vectors to it.
    """
    aligned = weights.shape[1] == 1 and len(queries) == len(contexts)
    flat = queries if aligned else queries.flatten(0, 1)[None]
    rounded = half_precision(contexts.device) is not None
    with torch.autocast(contexts.device.type, enabled=False):
        if rounded and not aligned and can_attend_in_blocks(contexts, queries, blocks):
            found = attended_blocks(weights.permute(0, 3, 2, 1), contexts, queries, blocks)
            dot, square = (numbers.flatten(1, 2) for numbers in found)
        else:
            dot, square = _InBlocks.apply(weights.flatten(1, 2), contexts, flat, blocks)
    lengths = flat.unflatten(2, (blocks, -1)).square().sum(3).clamp(min=1e-30).sqrt()
    cosines = dot / (lengths * square.clamp(min=1e-30).sqrt()).clamp(min=EPSILON)
    return cosines.unflatten(1, weights.shape[1:3])


def can_attend_in_blocks(
    contexts: Float[Tensor, "C K d"], queries: Float[Tensor, "Q L d"], blocks: int
) -> bool:
    """Whether `attended_blocks` can be used: float32 on a GPU, with block sizes a matrix product supports."""
    (fragments, dim), width = contexts.shape[1:], contexts.shape[2] // blocks
    return (
        takes_float32(contexts, queries)
        and dim == width * blocks
        and width >= 16
        and all(size & (size - 1) == 0 for size in (width, blocks))
        and fragments <= MOST_FRAGMENTS
        and max(16, fragments) * width <= MOST_NUMBERS
        # The kernels count in 32 bits from a context's first number.
        and (len(queries) + 7) * queries.shape[1] * max(dim, MOST_FRAGMENTS) < 2**31
    )


def attended_blocks(
    weights: Float[Tensor, "C K L Q"],
    contexts: Float[Tensor, "C K d"],
    queries: Float[Tensor, "Q L d"],
    blocks: int,
) -> tuple[Float[Tensor, "C Q L b"], Float[Tensor, "C Q L b"]]:
    """q . x and x . x of every fragment of every query, in every context and block."""
    from selhn.kernels.block_cosines import AttendedBlocks

    return AttendedBlocks.apply(weights, contexts, queries, blocks)


class _InBlocks(torch.autograd.Function):
    """(w, c, q) -> q . x and x . x in every block, x = sum_k w_k c_k.

    With the gradients a of the first and b of the second: dL/dx = a q + 2 b x, dL/dq = a x.
    """

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, contexts: Tensor, queries: Tensor, blocks: int
    ) -> tuple[Tensor, Tensor]:
        dot = weights.new_empty(*weights.shape[:2], blocks)
        square = torch.empty_like(dot)
        chunk_bytes = CHUNK_BYTES.get(weights.device.type, 2**22)
        ctx.chunks = chunks_with_queries(weights, queries, chunk_bytes)
        for some, own in ctx.chunks:
            attended = torch.bmm(weights[some], contexts[some]).unflatten(2, (blocks, -1))
            torch.sum(attended * queries[own].unflatten(2, (blocks, -1)), 3, out=dot[some])
            torch.sum(attended.square_(), 3, out=square[some])
        ctx.save_for_backward(weights, contexts, queries)
        ctx.blocks = blocks
        return dot, square

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_dot: Tensor, grad_square: Tensor) -> tuple[Tensor | None, ...]:
        weights, contexts, queries = ctx.saved_tensors
        grad_weights, grad_contexts = torch.empty_like(weights), torch.empty_like(contexts)
        grad_queries = torch.zeros_like(queries)
        for some, own in ctx.chunks:
            attended = torch.bmm(weights[some], contexts[some]).unflatten(2, (ctx.blocks, -1))
            by_query = (attended * grad_dot[some, :, :, None]).flatten(2)
            grad_queries[own] += by_query if own == some else by_query.sum(0, keepdim=True)
            looked = queries[own].unflatten(2, (ctx.blocks, -1)) * grad_dot[some, :, :, None]
            grad = attended.mul_(2 * grad_square[some, :, :, None]).add_(looked).flatten(2)
            grad_weights[some] = torch.bmm(grad, contexts[some].transpose(1, 2))
            grad_contexts[some] = torch.bmm(weights[some].transpose(1, 2), grad)
        return grad_weights, grad_contexts, grad_queries, None
