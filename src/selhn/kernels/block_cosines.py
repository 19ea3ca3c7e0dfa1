"""GSMN's nodes on a GPU: products of a query fragment with what it attends to, in blocks of channels.

Liu et al., CVPR 2020. With the weights w_k of a query's fragment q for the fragments c_k of a context, and x
= sum_k w_k c_k, these are q . x and x . x in every block. `selhn.layers.block_cosines` makes cosines of them,
and has the version without a GPU.

Weights and vectors are rounded to float16, as TF32 would round them; all sums are in float32. The attended
vectors are made on the chip, block by block, and again in the backward pass, whose products are in TF32.
"""

from jaxtyping import Float
from torch import Tensor

from selhn.kernels.gpu import takes_float32

MOST_FRAGMENTS = 128
"""Most fragments per context."""
MOST_NUMBERS = 2**13
"""Largest block of a context that one program holds, in numbers."""


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
    from selhn.kernels.block_cosines_triton import AttendedBlocks

    return AttendedBlocks.apply(weights, contexts, queries, blocks)
