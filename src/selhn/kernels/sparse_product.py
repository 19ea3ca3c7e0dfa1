"""`sparse_product` in Triton: a program per row, which reads its entries in order and writes the row once.

A row may have any number of entries. Entries are also cut into chunks: one that belongs to a single row is
added up by a program of its own before, and the row takes that sum.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from selhn.ops.sparse_product import Base

CHUNK = 256
AT_ONCE = 4
"""How many entries are loaded at a time; most rows have fewer."""

kernel = triton.jit(do_not_specialize=["num_entries"])


def add_rows(
    in_order: Int[Tensor, " E"],
    starts: Int[Tensor, " N"],
    sources: Int[Tensor, " E"],
    weights: Float[Tensor, " E"],
    emb: Float[Tensor, "C d"],
    base: "Base | None",
    dtype: torch.dtype,
) -> Float[Tensor, "A d"]:
    """The product of entries that are sorted by row; those of row i begin at `starts[i]`."""
    emb = emb.contiguous()
    size, width, num_chunks = len(starts) - 1, emb.shape[1], len(sources) // CHUNK
    chunks = torch.empty(num_chunks, width, device=emb.device)
    result = torch.empty(size, width, dtype=dtype, device=emb.device)
    block = min(1024, triton.next_power_of_2(width))
    launch = {"AT_ONCE": AT_ONCE, "WIDTH": block, "CHUNK": CHUNK, "num_warps": 4}
    parts = triton.cdiv(width, block)
    with torch.cuda.device_of(emb):
        if num_chunks:
            _chunk_sums[(num_chunks, parts)](in_order, sources, weights, emb, chunks, width, **launch)
        if size and width:
            _row_sums[(size, parts)](
                starts, sources, weights, emb, chunks, *(base or [None] * 4), result, width,
                BASE=base is not None, **launch,
            )  # fmt: skip
    return result


@triton.jit
def _entries(total, start, stop, sources, weights, emb, columns, in_width, width, AT_ONCE: tl.constexpr):
    """Add the entries from `start` to `stop` to the total of a row."""
    for first in range(start, stop, AT_ONCE):
        places = first + tl.arange(0, AT_ONCE)
        valid = places < stop
        source = tl.load(sources + places, mask=valid, other=0).to(tl.int64)[:, None]
        weight = tl.load(weights + places, mask=valid, other=0.0)[:, None]
        rows = tl.load(
            emb + source * width + columns[None, :], mask=valid[:, None] & in_width[None, :], other=0.0
        )
        total += tl.sum(weight * rows.to(tl.float32), 0)
    return total


@kernel
def _chunk_sums(
    in_order, sources, weights, emb, chunks, width,
    AT_ONCE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The sums of chunks that belong to one row."""
    chunk = tl.program_id(0)
    if tl.load(in_order + chunk * CHUNK) == tl.load(in_order + chunk * CHUNK + CHUNK - 1):
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        in_width = columns < width
        total = tl.zeros((WIDTH,), tl.float32)
        start = chunk * CHUNK
        total = _entries(
            total, start, start + CHUNK, sources, weights, emb, columns, in_width, width, AT_ONCE
        )
        tl.store(chunks + chunk.to(tl.int64) * width + columns, total, mask=in_width)


@kernel
def _row_sums(
    starts, sources, weights, emb, chunks, base, lost, mean, unit, result, width,
    BASE: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Entries up to the first chunk that is the row's alone, these chunks, and the entries after them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = columns < width
    total = tl.zeros((WIDTH,), tl.float32)
    if BASE:
        total = tl.load(base + row * width + columns, mask=in_width, other=0.0)
        total += tl.load(lost + row) * tl.load(mean + columns, mask=in_width, other=0.0)
        total *= tl.load(unit)
    start, stop = tl.load(starts + row), tl.load(starts + row + 1)
    head = tl.minimum(tl.cdiv(start, CHUNK) * CHUNK, stop)
    tail = tl.maximum(stop // CHUNK * CHUNK, head)
    total = _entries(total, start, head, sources, weights, emb, columns, in_width, width, AT_ONCE)
    for first in range(head // CHUNK, tail // CHUNK, AT_ONCE):
        places = first + tl.arange(0, AT_ONCE)
        inside = (places < tail // CHUNK)[:, None] & in_width[None, :]
        total += tl.sum(
            tl.load(chunks + places[:, None] * width + columns[None, :], mask=inside, other=0.0), 0
        )
    total = _entries(total, tail, stop, sources, weights, emb, columns, in_width, width, AT_ONCE)
    tl.store(result + row * width + columns, total, mask=in_width)
