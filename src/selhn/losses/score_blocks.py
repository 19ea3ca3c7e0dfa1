"""Where rows of scores come from, and where their gradients go: a matrix, or two embeddings that are multiplied."""

from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.ops.gpu import HALVES, add_wide_product, wide_product
from selhn.ops.sparse_product import Edges, sparse_product

SQUARE = 128
"""Positives are the diagonals of products of this size."""
Chosen: TypeAlias = slice | Int[Tensor, " r"]


class MatrixBlocks:
    """Rows of a matrix of scores."""

    total: Float[Tensor, "R C"]
    """The gradient so far, from `start` on."""
    whole: bool

    def __init__(self, scores: Float[Tensor, "R C"]):
        self.scores, self.shape, self.device = scores, scores.shape, scores.device

    @property
    def T(self) -> "MatrixBlocks":  # noqa: N802
        """The transposed matrix, which adds to the same gradient."""
        turned = MatrixBlocks(self.scores.mT)
        turned.total, turned.whole = self.total.mT, self.whole
        return turned

    def rows(self, part: Chosen) -> Float[Tensor, "r C"]:
        return self.scores[part].clone() if isinstance(part, slice) else self.scores[part]

    def diagonal(self, first: int) -> Float[Tensor, " R"]:
        """The scores of pairs, of which the first row has column `first`."""
        return self.scores.diagonal(first).clone()

    def start(self, *, whole: bool) -> None:
        """Before gradients are added; `whole` says that it will be those of all rows, once."""
        self.total, self.whole = (torch.empty_like if whole else torch.zeros_like)(self.scores), whole

    def add_rows(self, part: Chosen, grad: Float[Tensor, "r C"]) -> None:
        """Add a gradient by the scores of rows."""
        self.total[part] = grad if self.whole else self.total[part].add_(grad)

    def gradients(self, edges: Edges) -> tuple[Tensor, ...]:
        """All that was added, and the gradients by single scores."""
        return (self.total.index_put_((edges.rows, edges.columns), edges.weights, accumulate=True),)


class ProductBlocks:
    """Rows of `images @ texts.T`; half precision is multiplied exactly, and gradients are added in float32."""

    totals: tuple[Float[Tensor, "R d"], Float[Tensor, "C d"]]
    """The gradients so far, from `start` on."""

    def __init__(
        self, images: Float[Tensor, "R d"], texts: Float[Tensor, "C d"], dtype: torch.dtype | None = None
    ):
        self.given = images.dtype
        self.wide = torch.promote_types(images.dtype, torch.float32)
        # Only a GPU multiplies half precision as it is.
        dtype = (dtype or self.given) if images.is_cuda else self.wide
        self.embs = images.to(dtype), texts.to(dtype)
        self.shape, self.device = (len(images), len(texts)), images.device

    @property
    def T(self) -> "ProductBlocks":  # noqa: N802
        """The transposed matrix, which adds to the same gradients."""
        turned = ProductBlocks(self.embs[1], self.embs[0])
        turned.totals = self.totals[1], self.totals[0]
        return turned

    def rows(self, part: Chosen) -> Float[Tensor, "r C"]:
        return product(self.embs[0][part], self.embs[1].mT)

    def diagonal(self, first: int) -> Float[Tensor, " R"]:
        """The scores of pairs, from products as those of the negatives are, so that ties stay exact."""
        pairs = zip(self.embs[0].split(SQUARE), self.embs[1][first : first + self.shape[0]].split(SQUARE))
        return torch.cat([product(image, text.mT).diagonal() for image, text in pairs])

    def start(self, *, whole: bool) -> None:
        images, texts = self.embs
        self.totals = torch.zeros_like(images, dtype=self.wide), torch.zeros_like(texts, dtype=self.wide)

    def add_rows(self, part: Chosen, grad: Float[Tensor, "r C"]) -> None:
        """Add a gradient by the scores of rows."""
        own = self.totals[0][part]  # a copy, unless the part is a slice
        add_wide_product(own, grad, self.embs[1])
        self.totals[0][part] = own
        add_wide_product(self.totals[1], grad.mT, self.embs[0][part])

    def gradients(self, edges: Edges) -> tuple[Tensor, ...]:
        """All that was added, and the gradients by single scores."""
        of_images = sparse_product(edges, self.embs[1], len(self.totals[0]), None, self.wide)
        of_texts = sparse_product(edges.mT, self.embs[0], len(self.totals[1]), None, self.wide)
        return tuple(
            total.add_(of_pairs).to(self.given) for total, of_pairs in zip(self.totals, (of_images, of_texts))
        )


Blocks: TypeAlias = MatrixBlocks | ProductBlocks


def product(left: Float[Tensor, "A d"], right: Float[Tensor, "d C"]) -> Float[Tensor, "A C"]:
    """A matrix product, never rounded to half precision: epsilon = 0.01 is under three steps of bfloat16."""
    return wide_product(left, right) if right.dtype in HALVES else left @ right
