"""The gradient of a layer's weights, A' B over rows of which only some have a gradient.

Rows come in tiles; where negatives are mined, most tiles have no gradient, and nothing was written there. Those
that have one are listed on the device, which never waits for the host. A program sums the products of
some of them for a block of the result.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK, SHARES, WARPS, STAGES = 128, 32, 8, 2


@triton.jit(do_not_specialize=["group", "step"])
def _sum(
    left, right, tiles, count, sums, group, step,
    M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SHARES: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (M // BLOCK_M) * (N // BLOCK_N)
    share, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    m = block // (N // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    row, parts = tl.arange(0, ROWS)[:, None], tl.cdiv(group, step)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for number in range(share, tl.load(count).to(tl.int32), SHARES):
        tile = tl.load(tiles + number)
        begin = tile % parts * step
        first = tile // parts * group + begin
        there = (row < step) & (row < group - begin)
        a = tl.load(left + (first + row) * M + m[None, :], mask=there, other=0.0)
        b = tl.load(right + (first + row) * N + n[None, :], mask=there, other=0.0)
        total = tl.dot(tl.trans(a), b, total)
    tl.store(sums + (share * M + m[:, None]) * N + n[None, :], total)


def listed(touched: Bool[Tensor, " n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " 1"]]:
    """The numbers of the tiles that have a gradient, and after them anything; and how many there are."""
    place, last = touched.cumsum(0), len(touched)
    tiles = place.new_empty(last + 1)
    tiles.scatter_(0, torch.where(touched, place - 1, last), torch.arange(last, device=touched.device))
    return tiles, place[-1:]


def summed_products(
    left: Float[Tensor, "R m"],
    right: Float[Tensor, "R n"],
    some: tuple[Int[Tensor, " t"], Int[Tensor, " 1"]],
    group: int,
    step: int,
) -> Float[Tensor, "m n"]:
    """The sum over the rows of `some` tiles, as `listed`: `step` rows each, counted from the first of a group."""
    (m, n), rows = (left.shape[1], right.shape[1]), max(16, triton.next_power_of_2(step))
    block_m, block_n = min(BLOCK, m), min(BLOCK, n)
    sums = torch.empty(SHARES, m, n, device=left.device)
    _sum[(SHARES * (m // block_m) * (n // block_n),)](
        left, right, *some, sums, group, step, m, n, rows, block_m, block_n, SHARES,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return sums.sum(0)
