"""Where rows of scores come from, and where their gradients go: a matrix, or two embeddings that are multiplied."""

from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.ops.gpu import add_wide_product, wide_product
from selhn.ops.sparse_product import Edges, sparse_product

SQUARE = 128
"""Positives are the diagonals of products of this size."""
Chosen: TypeAlias = slice | Int[Tensor, " r"]
"""Some of the rows: those of a block, or single ones by number."""


class MatrixBlocks:
    """Rows of a matrix of scores; what is added to its rows, pairs and diagonal is the gradient."""

    grad: Float[Tensor, "R C"]

    def __init__(self, scores: Float[Tensor, "R C"]):
        self.scores = scores
        self.shape, self.device = (scores.shape[0], scores.shape[1]), scores.device

    @property
    def T(self) -> "MatrixBlocks":  # noqa: N802
        """The transposed matrix, which adds to the same gradient."""
        turned = MatrixBlocks(self.scores.mT)
        turned.grad = self.grad.mT
        return turned

    def rows(self, part: Chosen) -> Float[Tensor, "r C"]:
        return self.scores[part].clone() if isinstance(part, slice) else self.scores[part]

    def diagonal(self, first: int) -> Float[Tensor, " R"]:
        """The scores of pairs, of which the first row has column `first`."""
        return self.scores.diagonal(first).clone()

    def start(self, *, whole: bool) -> None:
        """Before gradients are added; after `whole`, all rows are put first."""
        self.grad = (torch.empty_like if whole else torch.zeros_like)(self.scores)

    def put_rows(self, part: slice, grad: Float[Tensor, "r C"]) -> None:
        if len(grad) == len(self.grad):
            self.grad = grad
        else:
            self.grad[part] = grad

    def add_rows(self, part: Chosen, grad: Float[Tensor, "r C"]) -> None:
        self.grad[part] += grad

    def add_winners(self, side: int, winner: Int[Tensor, " A"], grad: Float[Tensor, " A"]) -> None:
        """Add gradients by the scores of the rows, or of the columns (side 1), with their winners."""
        self.grad.scatter_add_(1 - side, winner.unsqueeze(1 - side), grad.unsqueeze(1 - side))

    def add_diagonal(self, first: int, grad: Float[Tensor, " R"]) -> None:
        self.grad.diagonal(first).add_(grad)

    def gradients(self) -> tuple[Tensor, ...]:
        return (self.grad,)


class ProductBlocks:
    """Rows of `images @ texts.T`; half precision is multiplied exactly, and gradients are added in float32."""

    def __init__(
        self, images: Float[Tensor, "R d"], texts: Float[Tensor, "C d"], dtype: torch.dtype | None = None
    ):
        self.given = images.dtype
        self.wide = torch.promote_types(images.dtype, torch.float32)
        # Only a GPU multiplies half precision as it is.
        dtype = (dtype or self.given) if images.is_cuda else self.wide
        self.embs = images.to(dtype), texts.to(dtype)
        self.shape, self.device = (len(images), len(texts)), images.device
        self.totals: tuple[Tensor, ...] = ()
        self.edges: list[Edges] = []

    @property
    def T(self) -> "ProductBlocks":  # noqa: N802
        """The transposed matrix, which adds to the same gradients."""
        turned = ProductBlocks(self.embs[1], self.embs[0])
        turned.totals = self.totals[::-1]
        return turned

    def rows(self, part: Chosen) -> Float[Tensor, "r C"]:
        return product(self.embs[0][part], self.embs[1].mT)

    def diagonal(self, first: int) -> Float[Tensor, " R"]:
        """The scores of pairs, from products as those of the negatives are, so that ties stay exact."""
        pairs = zip(self.embs[0].split(SQUARE), self.embs[1][first : first + self.shape[0]].split(SQUARE))
        return torch.cat([product(image, text.mT).diagonal() for image, text in pairs])

    def start(self, *, whole: bool) -> None:
        """Before gradients are added."""
        self.totals = tuple(torch.zeros_like(emb, dtype=self.wide) for emb in self.embs)

    def put_rows(self, part: slice, grad: Float[Tensor, "r C"]) -> None:
        self.add_rows(part, grad)

    def add_rows(self, part: Chosen, grad: Float[Tensor, "r C"]) -> None:
        if isinstance(part, slice):
            add_wide_product(self.totals[0][part], grad, self.embs[1])
        else:
            own = torch.zeros_like(self.totals[0][part])
            add_wide_product(own, grad, self.embs[1])
            self.totals[0][part] += own
        add_wide_product(self.totals[1], grad.mT, self.embs[0][part])

    def add_winners(self, side: int, winner: Int[Tensor, " A"], grad: Float[Tensor, " A"]) -> None:
        """Add gradients by the scores of the rows, or of the columns (side 1), with their winners."""
        lines = torch.arange(len(winner), device=self.device)
        self.edges.append(Edges(winner, lines, grad) if side else Edges(lines, winner, grad))

    def add_diagonal(self, first: int, grad: Float[Tensor, " R"]) -> None:
        rows = torch.arange(len(grad), device=self.device)
        self.edges.append(Edges(rows, rows + first, grad))

    def gradients(self) -> tuple[Tensor, ...]:
        edges = Edges(*(torch.cat(field) for field in zip(*self.edges)))
        found = []
        for side, total in enumerate(self.totals):
            of_pairs = sparse_product(
                edges.mT if side else edges, self.embs[1 - side], len(total), None, self.wide
            )
            found.append(total.add_(of_pairs).to(self.given))
        return tuple(found)


Blocks: TypeAlias = MatrixBlocks | ProductBlocks


def product(left: Float[Tensor, "A d"], right: Float[Tensor, "d C"]) -> Float[Tensor, "A C"]:
    """A matrix product, never rounded to half precision: epsilon = 0.01 is under three steps of bfloat16."""
    return wide_product(left, right) if right.dtype in (torch.float16, torch.bfloat16) else left @ right
