"""All tiles of scores in Triton: for half-precision embeddings on a Hopper GPU or newer.

The kernels cut the scores into blocks, multiply a block, accumulating in float32, and reduce it along both
axes before it leaves the registers. A maximum is an integer per anchor that every block may raise; a sum is
one number per anchor and block, and these are added afterwards in a fixed order. So the statistics are the
same in every run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from selhn.kernels.hopper import fused_triton
from selhn.kernels.hopper.sides import PARAMETERS, Asked, Constants

# The pairs in a block, and how much of d is multiplied at a time. At this size two programs fit on a multiprocessor of
# an H200, so that one multiplies while the other reduces: 14.4 ms for the maxima of 65,536 pairs, 16.4 with 256 x 128.
ROWS, COLUMNS, DEPTH = 128, 128, 64
LAUNCH = {"num_warps": 4, "num_stages": 3}
SUMS_PER_LAUNCH = 2**32
"""Bounds the sums that the blocks of a launch leave behind: 256 MiB for each."""
BACKWARD_TILE = 8192
"""The gradients of a tile are kept, in half precision: 128 MiB."""
add_wide = torch.addmm
LOWEST = -0x7F800001 << 32
"""The key of an anchor without candidates: -inf, and no block."""


Pair: TypeAlias = tuple[Tensor, Tensor]
"""Something of the images, and of the texts."""


@dataclass(frozen=True)
class Side:
    """The anchors along one side: embeddings, image labels, and what scores are compared with.

    `level` is the positive score in the forward pass; in the backward pass the value of a log-sum-exp.
    """

    emb: Float[Tensor, "A d"]
    label: Int[Tensor, " A"]
    level: Float[Tensor, " A"]

    def __len__(self) -> int:
        return len(self.emb)

    def __getitem__(self, part: slice | Tensor) -> "Side":
        return Side(self.emb[part], self.label[part], self.level[part])


def aligned(emb: Float[Tensor, "B d"]) -> Float[Tensor, "B e"]:
    """Embeddings as the copy engine needs them, rows at multiples of 16 bytes, d padded with zeros."""
    if emb.shape[1] % 8:
        emb = pad(emb, (0, -emb.shape[1] % 8))
    emb = emb.contiguous()
    return emb.clone() if emb.data_ptr() % 16 else emb


def positives(image_emb: Float[Tensor, "A d"], text_emb: Float[Tensor, "A d"]) -> Float[Tensor, " A"]:
    """The scores of A pairs, from blocks like those of the negatives, so that ties stay exact."""
    positive = torch.empty(len(image_emb), dtype=torch.float32, device=image_emb.device)
    with torch.cuda.device_of(positive):
        fused_triton.positive_scores[(triton.cdiv(len(positive), 128),)](
            _blocks(image_emb, 128), _blocks(text_emb, 128), positive, *image_emb.shape,
            ROWS=128, COLUMNS=128, DEPTH=DEPTH, num_warps=4, num_stages=3,
        )  # fmt: skip
    return positive


def reduce(
    images: Side, texts: Side, asked: Asked, constants: Constants
) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """All statistics, and the index of every maximum's winner, -1 for none."""
    maxima = [name for name in asked if not PARAMETERS[name]]
    sums = [name for name in asked if PARAMETERS[name]]
    keys = [
        side.label.new_full((len(maxima), len(side)), LOWEST, dtype=torch.int64) for side in (images, texts)
    ]
    of_parts: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in sums]
    ranges = _ranges(images.label, ROWS), _ranges(texts.label, COLUMNS)
    height = max(ROWS, SUMS_PER_LAUNCH // len(texts) // ROWS * ROWS) if sums else len(images)
    for rows in _spans(len(images), height):
        side = images[rows]
        row_sums = side.level.new_empty(len(sums), triton.cdiv(len(texts), COLUMNS), len(side))
        column_sums = side.level.new_empty(len(sums), triton.cdiv(len(side), ROWS), len(texts))
        _launch(
            fused_triton.reduce_scores, side, texts, ranges[0][rows.start // ROWS :], ranges[1], side.level,
            texts.level, keys[0][:, rows], keys[1], row_sums, column_sums, len(images), rows.start // ROWS,
            *constants, NAMES=(*maxima, *sums), MAXIMA=len(maxima),
        )  # fmt: skip
        for name, parts, of_rows, of_columns in zip(sums, of_parts, row_sums, column_sums):
            parts[0].append(_over_parts(name, of_rows))
            parts[1].append(_over_parts(name, of_columns))
    values: dict[str, Pair] = {
        name: (torch.cat(parts[0]), _over_parts(name, torch.stack(parts[1])))
        for name, parts in zip(sums, of_parts)
    }
    winners: dict[str, Pair] = {}
    for name, of_images, of_texts in zip(maxima, *keys):
        found = _find_winners(name, images, texts, of_images, COLUMNS)
        others = _find_winners(name, texts, images, of_texts, ROWS)
        values[name], winners[name] = zip(found, others)
    return values, winners


def _over_parts(name: str, values: Float[Tensor, "P A"]) -> Float[Tensor, " A"]:
    """The value over all negatives from those over parts of them."""
    return values.logsumexp(dim=0) if name == "log_sum_exp" else values.sum(dim=0)


def _find_winners(
    name: str, anchors: Side, candidates: Side, keys: Int[Tensor, " A"], block: int
) -> tuple[Float[Tensor, " A"], Int[Tensor, " A"]]:
    """The maxima, and their indices, from the keys that blocks of candidates left."""
    value, winner = torch.empty_like(anchors.level), torch.empty_like(anchors.label)
    order = (keys & 0x7FFFFFFF).int().argsort()
    with torch.cuda.device_of(keys):
        fused_triton.find_winners[(triton.cdiv(len(anchors), 64),)](
            anchors.emb, _blocks(candidates.emb, block), order, keys, anchors.label, candidates.label,
            anchors.level, value, winner, len(anchors), len(candidates), anchors.emb.shape[1],
            NAME=name, ROWS=64, COLUMNS=block, DEPTH=DEPTH, num_warps=4, num_stages=3,
        )  # fmt: skip
    return value, winner


def add_pulls(
    name: str, images: Side, texts: Side, weights: Pair, emb_grads: Pair, constants: Constants
) -> Pair:
    """Add the gradient of a sum over all negatives to both sides; return one or two sums for each anchor.

    The weights are the gradients of the anchors' statistics. The first sum is over what rounding took from
    the gradients by the scores. The second, for hinges, is over the gradient of an anchor's own statistic.
    """
    num_sums, device = 1 + (name == "hinge_sum"), images.emb.device
    ranges = _ranges(images.label, ROWS), _ranges(texts.label, COLUMNS)
    levels = _ranges(images.level, ROWS), _ranges(texts.level, COLUMNS)
    height = min(BACKWARD_TILE, len(images))
    width = BACKWARD_TILE**2 // height // COLUMNS * COLUMNS
    column_blocks = triton.cdiv(len(texts), COLUMNS)
    pulls = images.emb.new_empty(height * min(width, triton.cdiv(len(texts), 8) * 8))
    of_images = torch.empty(num_sums, len(images), device=device)
    of_texts = torch.zeros(num_sums, len(texts), device=device)
    for rows in _spans(len(images), height):
        side, first_row = images[rows], rows.start // ROWS
        of_rows = torch.empty(column_blocks, num_sums, len(side), device=device)
        of_columns = torch.empty(triton.cdiv(len(side), ROWS), num_sums, len(texts), device=device)
        for columns in _spans(len(texts), width):
            other, first_column = texts[columns], columns.start // COLUMNS
            stride = triton.cdiv(len(other), 8) * 8
            tile_pulls = pulls[: len(side) * stride].view(len(side), stride)[:, : len(other)]
            _launch(
                fused_triton.pull_scores, side, other, ranges[0][first_row:], ranges[1][first_column:],
                side.level, other.level, weights[0][rows], weights[1][columns], levels[0][first_row:],
                levels[1][first_column:], _blocks(tile_pulls, ROWS, COLUMNS // 2), of_rows[first_column:],
                of_columns[:, :, columns], len(texts), *constants,
                NAME=name,
            )  # fmt: skip
            for total, pulled, emb in (
                (emb_grads[0][rows], tile_pulls, other.emb),
                (emb_grads[1][columns], tile_pulls.mT, side.emb),
            ):
                add_wide(total, pulled, emb, torch.float32, out=total)
        of_images[:, rows] = of_rows.sum(dim=0)
        of_texts += of_columns.sum(dim=0)
    return of_images, of_texts


def _spans(length: int, size: int) -> Iterator[slice]:
    """The parts of a length, each of a size or less."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _ranges(numbers: Num[Tensor, " A"], size: int) -> Num[Tensor, "N 2"]:
    """The lowest and the highest of every `size` numbers."""
    places = torch.arange(triton.cdiv(len(numbers), size) * size, device=numbers.device)
    blocks = numbers[places.clamp(max=len(numbers) - 1)].view(-1, size)
    return torch.stack([blocks.amin(dim=1), blocks.amax(dim=1)], dim=1)


def _blocks(matrix: Float[Tensor, "A C"], height: int, width: int = DEPTH) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [height, width])


def _launch(kernel: Any, rows: Side, columns: Side, *arguments: Any, **settings: Any) -> None:
    """Run a kernel over all blocks of two sides."""
    blocks = triton.cdiv(len(rows), ROWS) * triton.cdiv(len(columns), COLUMNS)
    with torch.cuda.device_of(rows.emb):
        kernel[(blocks,)](
            _blocks(rows.emb, ROWS), _blocks(columns.emb, COLUMNS), len(rows), len(columns), rows.emb.shape[1],
            rows.label, columns.label, *arguments, **settings, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, **LAUNCH,
        )  # fmt: skip
