"""A tile of scores in one Triton kernel: for half-precision embeddings on a Hopper GPU or newer.

A tile may hold a billion pairs here: the kernels cut it into blocks, multiply a block, accumulating in
float32, and reduce it along both axes before it leaves the registers. Every block leaves one number per
anchor; these are reduced afterwards in a fixed order, so that the statistics are the same in every run.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from selhn.kernels import fused_triton
from selhn.kernels.statistics import MAXIMA, STATISTICS, Terms
from selhn.kernels.torch_tiles import Pulls, Reduced, Side, Weights

# The pairs in a block, and how much of d is multiplied at a time. At this size two programs fit on a
# multiprocessor of an H200, so that one multiplies while the other reduces: blocks of 128 x 256, as fast for
# a bare product, took twice the time.
ROWS, COLUMNS, DEPTH = 128, 128, 64
LAUNCH = {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH, "num_warps": 4, "num_stages": 3}
SCORES_PER_LAUNCH = 2**30
"""Bounds what the blocks of a launch leave behind: 192 MiB for a maximum and a sum."""
BACKWARD_TILE = 8192
"""The gradients of a tile are kept, in half precision: 128 MiB."""


def forward_tile(batch: int) -> tuple[int, int]:
    """The height and width of the tiles that a batch is traversed in."""
    return max(ROWS, SCORES_PER_LAUNCH // batch // ROWS * ROWS), batch


def aligned(emb: Float[Tensor, "B d"]) -> Float[Tensor, "B e"]:
    """Embeddings as the copy engine needs them, rows at multiples of 16 bytes, d padded with zeros."""
    if emb.shape[1] % 8:
        emb = pad(emb, (0, -emb.shape[1] % 8))
    emb = emb.contiguous()
    return emb.clone() if emb.data_ptr() % 16 else emb


def positives(image_emb: Float[Tensor, "A d"], text_emb: Float[Tensor, "A d"]) -> Float[Tensor, " A"]:
    """The scores of A pairs, from the same blocks as the negatives, so that ties stay exact."""
    batch, width = image_emb.shape
    positive = torch.empty(batch, dtype=torch.float32, device=image_emb.device)
    _launch(
        fused_triton.positive_scores, triton.cdiv(batch, ROWS), image_emb, text_emb, positive, batch, width
    )
    return positive


def reduce_tile(rows: Side, columns: Side, needs: tuple[str, ...], terms: Terms) -> list[Reduced]:
    """All statistics of the rows, then of the columns."""
    (num_rows, width), num_columns = rows.emb.shape, len(columns.emb)
    row_blocks, column_blocks = triton.cdiv(num_rows, ROWS), triton.cdiv(num_columns, COLUMNS)
    maxima = [name for name in needs if name in MAXIMA]
    names = tuple(maxima + [name for name in needs if name not in MAXIMA])
    left = [
        torch.empty(len(kept), *shape, dtype=dtype, device=rows.emb.device)
        for shape in ((column_blocks, num_rows), (row_blocks, num_columns))
        for kept, dtype in ((names, torch.float32), (maxima, torch.int32))
    ]
    _launch(
        fused_triton.reduce_scores, row_blocks * column_blocks, rows.emb, columns.emb, rows.label, columns.label,
        rows.level, columns.level, *left, num_rows, num_columns, width, terms.margin, 1 / terms.temperature,
        terms.bias, NAMES=names, MAXIMA=len(maxima),
    )  # fmt: skip
    return [_reduce_blocks(names, *left[:2]), _reduce_blocks(names, *left[2:])]


def _reduce_blocks(names: tuple[str, ...], values: Float[Tensor, "S N A"], winners: Tensor) -> Reduced:
    """Statistics of A anchors from those over N blocks of candidates each."""
    reduced: Reduced = {}
    for name, value, winner in zip(names, values, [*winners, *[None] * (len(values) - len(winners))]):
        if winner is not None:
            best, block = value.max(dim=0)  # of equal ones the first, which holds the lower indices
            reduced[name] = best, winner.gather(0, block[None])[0]
        else:
            reduced[name] = STATISTICS[name].reduce(value, dim=0), None
    return reduced


def pull_tile(name: str, rows: Side, columns: Side, weights: Weights, terms: Terms) -> Pulls:
    """As in `torch_tiles`; the first of the sums stays 0 except for "hinge_sum", which alone needs it."""
    (num_rows, width), num_columns = rows.emb.shape, len(columns.emb)
    row_blocks, column_blocks = triton.cdiv(num_rows, ROWS), triton.cdiv(num_columns, COLUMNS)
    pulls = rows.emb.new_empty(num_rows, triton.cdiv(num_columns, 8) * 8)[:, :num_columns]
    row_sums, column_sums = (
        torch.zeros(2, *shape, dtype=torch.float32, device=pulls.device)
        for shape in ((column_blocks, num_rows), (row_blocks, num_columns))
    )
    _launch(
        fused_triton.pull_scores, row_blocks * column_blocks, rows.emb, columns.emb,
        _blocks(pulls, ROWS, COLUMNS), rows.label, columns.label, rows.level, columns.level, *weights,
        row_sums, column_sums, num_rows, num_columns, width, terms.margin,
        1 / terms.temperature, terms.bias, NAME=name,
    )  # fmt: skip
    return pulls, row_sums.sum(dim=1), column_sums.sum(dim=1)


def _blocks(matrix: Float[Tensor, "A C"], height: int, width: int = DEPTH) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [height, width])


def _launch(
    kernel: Any, programs: int, rows: Tensor, columns: Tensor, *arguments: Any, **settings: Any
) -> None:
    with torch.cuda.device_of(rows):
        kernel[(programs,)](_blocks(rows, ROWS), _blocks(columns, COLUMNS), *arguments, **settings, **LAUNCH)
