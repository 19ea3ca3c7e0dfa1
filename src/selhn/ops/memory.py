"""The memory of IMRAM for all pairs, on a GPU without storing intermediate results.

Chen et al., CVPR 2020. A query q that looks at contexts v with the weights p remembers g q + (1 - g) tanh(o),
where o and the logit of g are W_q q + b + sum_k p_k W_x v_k.

One kernel makes that sum and the new memory of it, tile by tile, in half precision with sums in float32. The
backward pass makes the sum again; it writes the gradients of the two logits, from which matrix products make
those of all that went in.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from selhn.ops.cross_scores import MOST_REGIONS
from selhn.ops.gpu import HALVES, half_precision, takes_float32, wide_product

CHANNELS = 64
"""Channels per program; the width of a memory is a multiple of it."""


def memory_precision(contexts: Float[Tensor, "C M d"], queries: Float[Tensor, "Q L d"]) -> torch.dtype | None:
    """The precision in which a kernel keeps memories; None to compute without it."""
    dim = contexts.shape[2]
    if (
        not takes_float32(contexts, queries)
        or contexts.shape[1] > MOST_REGIONS
        or dim % CHANNELS
        # The kernels count in 32 bits from the first query of a context.
        or queries.shape[0] * queries.shape[1] * 2 * dim >= 2**31
    ):
        return None
    return half_precision(contexts.device)


def remembered(
    memory: Float[Tensor, "c W d"],
    known: Float[Tensor, "c W e"],
    weights: Float[Tensor, "C M W"],
    seen: Float[Tensor, "C M e"],
) -> Float[Tensor, "C W d"]:
    """`g q + (1 - g) tanh(o)` of W queries, from W_q q + b and the W_x v of what is seen, o first (e = 2 d).

    c is C, or 1 if all contexts meet the same queries. A kernel takes memories in half precision, and then all but
    the weights must be.
    """
    if memory.dtype in HALVES:
        from selhn.kernels.memory import Remembered

        return Remembered.apply(memory, known, weights, seen)
    look = weights.mT.to(seen.dtype)
    output, gate = torch.baddbmm(known.expand(len(seen), -1, -1), look, seen).chunk(2, 2)
    return torch.lerp(output.tanh(), memory.to(output.dtype).expand_as(output), gate.sigmoid())


def memory_products(
    vectors: Float[Tensor, "C M d"], memory: Float[Tensor, "C W d"]
) -> Float[Tensor, "C M W"]:
    """v q', where only the gradients round the vectors if memories are in half precision."""
    return _Products.apply(vectors, memory) if memory.dtype in HALVES else torch.bmm(vectors, memory.mT)


class _Products(torch.autograd.Function):
    """(v, q) -> v q'."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, memory: Tensor) -> Tensor:
        high = vectors.to(memory.dtype)
        ctx.save_for_backward(high, memory)
        lost = (vectors - high).to(memory.dtype)
        return wide_product(high, memory.mT) + wide_product(lost, memory.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        vectors, memory = ctx.saved_tensors
        grad = grad.to(memory.dtype)
        return wide_product(grad, memory), torch.bmm(grad.mT, vectors)
