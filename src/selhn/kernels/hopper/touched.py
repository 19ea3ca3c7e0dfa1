"""Sums over rows of which only some have a gradient; imported only where its kernels run.

Rows come in tiles. Where negatives are mined, most tiles have no gradient: they are not touched, nothing was
written there, and nothing is read. The device decides, and never waits for the host.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.kernels.pair_tiles import side

BLOCK, SHARES, WARPS, STAGES = 128, 32, 8, 2
CHANNELS = 64


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


@triton.jit(do_not_specialize=["image_eights", "num_words", "num_regions", "wide"])
def _sum_over_words(
    weights, rows, touched, sums, image_eights, num_words, num_regions, wide,
    D: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    image = (tl.program_id(0) // (D // CHANNELS)).to(tl.int64)
    channel = (tl.program_id(0) % (D // CHANNELS) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    k, width, parts = tl.arange(0, K), wide * 8, tl.cdiv(num_words, ROWS)
    total = tl.zeros([K, CHANNELS], tl.float32)
    for part in range(0, parts):
        row = (part * ROWS + tl.arange(0, ROWS))[:, None]
        inside = (row < num_words) & (tl.load(touched + image * parts + part) != 0)
        at = weights + image * (image_eights * 8) + row * width + k[None, :]
        p = tl.load(at, mask=inside & (k < width)[None, :], other=0.0)
        d = tl.load(rows + (image * num_words + row) * D + channel, mask=inside, other=0.0)
        total = tl.dot(tl.trans(p.to(d.dtype)), d, total)
    to = sums + (image * num_regions + k[:, None]) * D + channel
    tl.store(to, total, mask=(k < num_regions)[:, None])


@triton.jit(do_not_specialize=["num_images", "num_words"])
def _sum_over_images(
    rows, touched, sums, num_images, num_words,
    D: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0) // (D // CHANNELS)
    channel = (tl.program_id(0) % (D // CHANNELS) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    row, parts = (part * ROWS + tl.arange(0, ROWS))[:, None], tl.cdiv(num_words, ROWS)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for image in range(0, num_images):
        inside = (row < num_words) & (tl.load(touched + image * parts + part) != 0)
        own = rows + image * (num_words.to(tl.int64) * D)
        total += tl.load(own + row * D + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + row * D + channel, total, mask=row < num_words)


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
    (m, n), rows = (left.shape[1], right.shape[1]), side(step)
    block_m, block_n = min(BLOCK, m), min(BLOCK, n)
    sums = torch.empty(SHARES, m, n, device=left.device)
    _sum[(SHARES * (m // block_m) * (n // block_n),)](
        left, right, *some, sums, group, step, m, n, rows, block_m, block_n, SHARES,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return sums.sum(0)


def summed_over_words(
    weights: Float[Tensor, "i W k"],
    rows: Float[Tensor, "I W d"],
    touched: Bool[Tensor, " t"],
    num_regions: int,
    step: int,
) -> Float[Tensor, "I M d"]:
    """`weights' rows` of every image, or of one for all (i = 1); tiles are `step` words of an image."""
    images, num_words, dim = rows.shape
    sums, channels = torch.empty(images, num_regions, dim, device=rows.device), min(CHANNELS, dim)
    # Weights that are the same for all images are stored once.
    image_eights = weights[0].numel() // 8 if len(weights) > 1 else 0
    _sum_over_words[(images * (dim // channels),)](
        weights, rows, touched, sums, image_eights, num_words, num_regions, weights.shape[2] // 8,
        dim, side(num_regions), step, channels, num_warps=4, num_stages=3,
    )  # fmt: skip
    return sums


def summed_over_images(
    rows: Float[Tensor, "I W d"], touched: Bool[Tensor, " t"], step: int
) -> Float[Tensor, "W d"]:
    """The same tiles, summed over images."""
    images, num_words, dim = rows.shape
    sums, channels = torch.empty(num_words, dim, device=rows.device), min(CHANNELS, dim)
    _sum_over_images[(triton.cdiv(num_words, step) * (dim // channels),)](
        rows, touched, sums, images, num_words, dim, step, channels, num_warps=8
    )
    return sums
