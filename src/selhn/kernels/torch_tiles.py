"""All tiles of scores, one after the other, in plain torch: for any device and any precision."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.kernels.statistics import MAXIMA, STATISTICS, Terms
from selhn.ops.gpu import wide_product

HALF = (torch.float16, torch.bfloat16)
Reduced = dict[str, tuple[Tensor, Tensor | None]]
"""Statistics of the anchors along one side; a maximum comes with the index of its winner, -1 for none."""
Weights = tuple[Float[Tensor, " R"], Float[Tensor, " C"]]
Sums = tuple[Float[Tensor, "S R"], Float[Tensor, "S C"]]


@dataclass(frozen=True)
class Side:
    """The anchors along one side: embeddings, image labels, and what scores are compared with.

    `level` is the positive score in the forward pass, and what `Statistic.level` gives in the backward pass.
    """

    emb: Float[Tensor, "A d"]
    label: Int[Tensor, " A"]
    level: Float[Tensor, "A *L"]

    def __len__(self) -> int:
        return len(self.emb)

    def __getitem__(self, part: slice | Tensor) -> "Side":
        return Side(self.emb[part], self.label[part], self.level[part])


def spans(length: int, tile: int) -> Iterator[slice]:
    """The parts of a length, each of a tile or less."""
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))


def product(left: Float[Tensor, "A d"], right: Float[Tensor, "d C"]) -> Float[Tensor, "A C"]:
    """A matrix product, never rounded to half precision: epsilon = 0.01 is under three steps of bfloat16."""
    if right.dtype not in HALF:
        return left @ right
    return wide_product(left, right) if right.is_cuda else left.float() @ right.float()


def add_product(total: Float[Tensor, "A d"], left: Float[Tensor, "A C"], right: Float[Tensor, "C d"]) -> None:
    """`total += left @ right`, accumulated in the precision of `total`."""
    if right.dtype in HALF and right.is_cuda:
        torch.addmm(total, left, right, torch.float32, out=total)
    else:
        total += product(left, right)


def positives(
    image_emb: Float[Tensor, "A d"], text_emb: Float[Tensor, "A d"], tile: int
) -> Float[Tensor, " A"]:
    """The scores of A pairs, from the same products as the negatives, so that ties stay exact."""
    parts = spans(len(image_emb), tile)
    return torch.cat([product(image_emb[part], text_emb[part].mT).diagonal() for part in parts])


def negative_scores(rows: Side, columns: Side) -> Float[Tensor, "R C"]:
    """A tile of scores, -inf at pairs of one image."""
    scores = product(rows.emb, columns.emb.mT)
    # Labels rise with the pairs unless ids are given: most tiles need no mask. Looking would stall a device.
    if scores.is_cuda or (
        rows.label.max() >= columns.label.min() and columns.label.max() >= rows.label.min()
    ):
        scores.masked_fill_(rows.label[:, None] == columns.label, -torch.inf)
    return scores


def reduce(
    images: Side, texts: Side, needs: tuple[str, ...], terms: Terms, tile: int
) -> tuple[Reduced, Reduced]:
    """All statistics of the images, then of the texts."""
    of_images, of_texts = _no_negatives(images, needs), _no_negatives(texts, needs)
    for rows in spans(len(images), tile):
        for columns in spans(len(texts), tile):
            scores = negative_scores(images[rows], texts[columns])
            for so_far, negatives, level, anchors, first in (
                (of_images, scores, images.level[rows], rows, columns.start),
                (of_texts, scores.mT, texts.level[columns], columns, rows.start),
            ):
                for name, (value, winner) in so_far.items():
                    _merge(name, value[anchors], winner if winner is None else winner[anchors],
                           STATISTICS[name].term(negatives, level[:, None], terms), first)  # fmt: skip
    return of_images, of_texts


def _no_negatives(side: Side, needs: tuple[str, ...]) -> Reduced:
    """The statistics of anchors without negatives."""
    values = {name: side.level.new_full((len(side),), STATISTICS[name].empty) for name in needs}
    none = side.label.new_full((len(side),), -1, dtype=torch.int64)
    return {name: (value, none.clone() if name in MAXIMA else None) for name, value in values.items()}


def _merge(
    name: str,
    value: Float[Tensor, " A"],
    winner: Int[Tensor, " A"] | None,
    negatives: Float[Tensor, "A C"],
    first: int,
) -> None:
    """Bring the terms of further negatives, from the index `first` on, into a statistic."""
    if winner is None:
        value.copy_(STATISTICS[name].merge(value, STATISTICS[name].reduce(negatives, dim=-1)))
        return
    best, index = negatives.max(dim=-1)
    # Strictly better, or NaN: tiles come in rising order, so the lowest index wins a tie.
    better = (best > value) | best.isnan()
    value.copy_(torch.where(better, best, value))
    winner.copy_(torch.where(better, index + first, winner))


def no_sums(name: str, weights: Weights) -> Sums:
    """Zeros, to add the sums of `add_pulls` to."""
    of_rows, of_columns = (
        weight.new_zeros(1 + STATISTICS[name].has_positive, len(weight)) for weight in weights
    )
    return of_rows, of_columns


def pull_tile(
    name: str, rows: Side, columns: Side, weights: Weights, terms: Terms
) -> tuple[Float[Tensor, "R C"], Sums]:
    """The gradient by every score of a tile, as precise as the embeddings, and the sums of `add_pulls`."""
    statistic, scores = STATISTICS[name], negative_scores(rows, columns)
    assert statistic.derivative is not None
    of_rows = statistic.derivative(scores, rows.level[:, None], terms) * weights[0][:, None]
    of_columns = statistic.derivative(scores.mT, columns.level[:, None], terms).mT * weights[1]
    exact = of_rows + of_columns
    pulls = exact.to(rows.emb.dtype)
    row_sums, column_sums = ([(exact - pulls).sum(dim)] for dim in (1, 0))
    if statistic.has_positive:
        row_sums.append(of_rows.sum(1))
        column_sums.append(of_columns.sum(0))
    return pulls, (torch.stack(row_sums), torch.stack(column_sums))


def add_pulls(
    name: str,
    images: Side,
    texts: Side,
    weights: Weights,
    emb_grads: tuple[Float[Tensor, "R d"], Float[Tensor, "C d"]],
    terms: Terms,
    tile: int,
) -> Sums:
    """Add the gradient of a sum over all negatives to both sides; return one or two sums for each anchor.

    The weights are the gradients of the anchors' statistics. The first sum is over what rounding took from
    the gradients by the scores. The second, for a statistic that has a positive, is over the gradient of an
    anchor's own statistic.
    """
    sums = no_sums(name, weights)
    for rows in spans(len(images), tile):
        for columns in spans(len(texts), tile):
            sides, both = (images[rows], texts[columns]), (weights[0][rows], weights[1][columns])
            pulls, (row_sums, column_sums) = pull_tile(name, *sides, both, terms)
            add_product(emb_grads[0][rows], pulls, sides[1].emb)
            add_product(emb_grads[1][columns], pulls.mT, sides[0].emb)
            sums[0][:, rows] += row_sums
            sums[1][:, columns] += column_sums
    return sums
