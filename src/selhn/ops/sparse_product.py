"""S @ X and S' @ Y of a sparse matrix S that is a list of edges: pairs of an image and a text, with a weight.

    (S X)[i] = sum over the edges (i, j, w) of w X[j], in the order of the edges, so that it is the same in every run.

The gradient of the maxima and of the positives is such a product: every anchor has one winner.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from selhn.ops.gpu import fusable

PART = 64
"""How many columns of half-precision embeddings are widened at a time, to need no wide copy of all."""


class Edges(NamedTuple):
    """A sparse matrix, one entry after the other; an entry of weight 0 may be anywhere."""

    rows: Int[Tensor, " E"]
    columns: Int[Tensor, " E"]
    weights: Float[Tensor, " E"]

    @property
    def mT(self) -> "Edges":
        """The transposed matrix."""
        return Edges(self.columns, self.rows, self.weights)

    @classmethod
    def of_pairs(cls, weights: Float[Tensor, " R"], first: int) -> "Edges":
        """Entries of rows i and columns `first` + i."""
        rows = torch.arange(len(weights), device=weights.device)
        return cls(rows, rows + first, weights)

    def joined(self, others: Iterable["Edges"]) -> "Edges":
        """The entries of several."""
        return Edges(*(torch.cat(field) for field in zip(self, *others)))


class Base(NamedTuple):
    """A matrix that a product is added to: `unit * (total + lost mean')`."""

    total: Float[Tensor, "A d"]
    lost: Float[Tensor, " A"]
    mean: Float[Tensor, " d"]
    unit: Float[Tensor, ""]


def sparse_product(
    edges: Edges, emb: Float[Tensor, "C d"], size: int, base: Base | None, dtype: torch.dtype
) -> Float[Tensor, "A d"]:
    """`base + S @ emb` of an S of `size` rows, added up in float32 or wider and then rounded to `dtype`."""
    in_order, order = torch.where(edges.weights == 0, size, edges.rows).sort(stable=True)
    sources, weights = edges.columns[order], edges.weights[order]
    starts = torch.searchsorted(in_order, torch.arange(size + 1, device=emb.device))
    if fusable(emb) and emb.dtype != torch.float64:
        from selhn.kernels.sparse_product import add_rows

        return add_rows(in_order, starts, sources, weights, emb, base, dtype)
    wide = weights.dtype
    sources = sources.masked_fill(in_order == size, 0)  # the last bag has the entries of weight 0
    parts = [emb] if emb.dtype == wide else emb.split(PART, dim=1)
    result = torch.cat(
        [
            embedding_bag(sources, part.to(wide), starts, mode="sum", per_sample_weights=weights)[:size]
            for part in parts
        ],
        dim=1,
    )
    if base is not None:
        result += base.unit * base.total.addr(base.lost, base.mean)
    return result.to(dtype)
