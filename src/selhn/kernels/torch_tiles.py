"""The numbers of one tile of scores in plain torch: for any device and any precision."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.kernels.gpu import wide_product
from selhn.kernels.statistics import MAXIMA, STATISTICS, Terms

HALF = (torch.float16, torch.bfloat16)
Reduced = dict[str, tuple[Tensor, Tensor | None]]
"""Statistics of the anchors along one side of a tile; a maximum comes with the index of its winner."""
Weights = tuple[Float[Tensor, " R"], Float[Tensor, " C"]]
Pulls = tuple[Float[Tensor, "R C"], Float[Tensor, "2 R"], Float[Tensor, "2 C"]]


@dataclass(frozen=True)
class Side:
    """The anchors along one side of a tile: embeddings, image labels, and what scores are compared with.

    `level` is the positive score in the forward pass, and what `Statistic.level` gives in the backward pass.
    """

    emb: Float[Tensor, "A d"]
    label: Int[Tensor, " A"]
    level: Float[Tensor, "A *L"]

    def __getitem__(self, part: slice | Tensor) -> "Side":
        return Side(self.emb[part], self.label[part], self.level[part])


def product(left: Float[Tensor, "A d"], right: Float[Tensor, "d C"]) -> Float[Tensor, "A C"]:
    """A matrix product, never rounded to half precision: epsilon = 0.01 is under three steps of bfloat16."""
    if right.dtype not in HALF:
        return left @ right
    return wide_product(left, right) if right.is_cuda else left.float() @ right.float()


def add_product(
    total: Float[Tensor, "B d"], part: slice | Tensor, left: Float[Tensor, "A C"], right: Float[Tensor, "C d"]
) -> None:
    """`total[part] += left @ right`, accumulated in the precision of `total`."""
    if not isinstance(part, slice):
        total.index_add_(0, part, product(left, right))
    elif right.dtype in HALF and right.is_cuda:
        torch.addmm(total[part], left, right, torch.float32, out=total[part])
    else:
        total[part] += product(left, right)


def positives(image_emb: Float[Tensor, "A d"], text_emb: Float[Tensor, "A d"]) -> Float[Tensor, " A"]:
    """The scores of A pairs, from the same products as the negatives, so that ties stay exact."""
    return product(image_emb, text_emb.mT).diagonal().clone()


def negative_scores(rows: Side, columns: Side) -> Float[Tensor, "R C"]:
    """A tile of scores, -inf at pairs of one image."""
    scores = product(rows.emb, columns.emb.mT)
    # Labels rise with the pairs unless ids are given: most tiles need no mask. Looking would stall a device.
    if scores.is_cuda or (
        rows.label.max() >= columns.label.min() and columns.label.max() >= rows.label.min()
    ):
        scores.masked_fill_(rows.label[:, None] == columns.label, -torch.inf)
    return scores


def reduce_tile(rows: Side, columns: Side, needs: tuple[str, ...], terms: Terms) -> list[Reduced]:
    """All statistics of the rows, then of the columns."""
    scores = negative_scores(rows, columns)
    reduced: list[Reduced] = [{}, {}]
    for of_side, negatives, side in zip(reduced, (scores, scores.mT), (rows, columns)):
        for name in needs:
            statistic = STATISTICS[name]
            values = statistic.term(negatives, side.level[:, None], terms)
            of_side[name] = values.max(dim=-1) if name in MAXIMA else (statistic.reduce(values, dim=-1), None)
    return reduced


def pull_tile(name: str, rows: Side, columns: Side, weights: Weights, terms: Terms) -> Pulls:
    """The gradient by every score of a tile, as precise as the embeddings; for rows, then columns, two sums.

    The weights are the gradients of the anchors' statistics. The first sum is over the gradient of an
    anchor's own statistic, the second over what rounding took from the gradients of both sides.
    """
    scores = negative_scores(rows, columns)
    derivative = STATISTICS[name].derivative
    assert derivative is not None
    of_rows = derivative(scores, rows.level[:, None], terms) * weights[0][:, None]
    of_columns = derivative(scores.mT, columns.level[:, None], terms).mT * weights[1]
    exact = of_rows + of_columns
    pulls = exact.to(rows.emb.dtype)
    lost = exact - pulls
    return pulls, torch.stack([of_rows.sum(1), lost.sum(1)]), torch.stack([of_columns.sum(0), lost.sum(0)])
