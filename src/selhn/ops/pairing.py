"""Which contexts and queries meet: all with all, or each context with its own query alone.

Tensors of pairs have the axes (C, q, ...), or (C, K, L, q) if they count fragments: see `selhn.ops.attention`.
What was summed up for each query, such as scores, has the axes (c, Q, ...). If they are aligned, C = Q, and q and c
are 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from selhn.base.ranks import Processes
from selhn.ops.cross_scores import rounded
from selhn.ops.fragments import (
    Fragments,
    ScoresT,
    again,
    chunks,
    default_byte_budget,
    is_ragged,
    joined,
    plan_blocks,
)
from selhn.ops.gpu import wide_product

Direction = Literal["t2i", "i2t"]
"""Which side attends to the other: words to regions, or regions to words."""
# Texts that a CPU scores at a time: few enough of a sorted batch to have similar lengths.
CPU_TEXTS = 32


@dataclass(frozen=True, eq=False)
class Pairing:
    """Contexts, and queries that attend to all of them, or if `aligned`, query q to context q alone.

    A model gets its images as contexts and its texts as queries; `turned` exchanges them.
    """

    contexts: Fragments
    queries: Fragments
    aligned: bool = False
    dots: Float[Tensor, "C K L q"] | None = None
    """The `products`, if they were made beforehand."""

    def products(self) -> Float[Tensor, "C K L q"]:
        """`dots`, computed if missing, never in half precision: every context fragment with every query fragment.

        If no gradient is needed, a GPU takes each number as the sum of two in half precision, which its tensor
        cores multiply.
        """
        if self.dots is not None:
            return self.dots
        contexts, queries = self.contexts.vectors, self.queries.vectors
        with torch.autocast(contexts.device.type, enabled=False):
            if self.aligned:
                return (contexts @ queries.mT).unsqueeze(3)
            by_fragment = queries.transpose(0, 1)
            in_halves = contexts.is_cuda and contexts.dtype == queries.dtype == torch.float32
            if in_halves and not torch.is_grad_enabled():
                rows, columns = rounded(contexts, by_fragment, exact=True)
                matrix = wide_product(rows, columns.T)
            else:
                matrix = contexts.flatten(0, 1) @ by_fragment.flatten(0, 1).T
        return matrix.view(*contexts.shape[:2], *by_fragment.shape[:2])

    def with_products(self) -> "Pairing":
        return self if self.dots is not None else replace(self, dots=self.products())

    def turned(self) -> "Pairing":
        """Queries and contexts exchanged, for attention in the other direction."""
        dots = self.dots
        if dots is not None:
            dots = dots.transpose(1, 2) if self.aligned else _Turned.apply(dots)
        return Pairing(self.queries, self.contexts, self.aligned, dots)

    def of_queries(self, items: Shaped[Tensor, "Q *K"]) -> Shaped[Tensor, "_ _ *K"]:
        """What belongs to queries, with axes that meet (C, q)."""
        return items[:, None] if self.aligned else items[None]

    def of_contexts(self, items: Shaped[Tensor, "C *K"]) -> Shaped[Tensor, "_ _ *K"]:
        """What belongs to contexts, with axes that meet (c, Q)."""
        return items[None] if self.aligned else items[:, None]

    def by_query(self, pairs: Shaped[Tensor, "C q *K"]) -> Shaped[Tensor, "c Q *K"]:
        return pairs.transpose(0, 1) if self.aligned else pairs

    def exchanged(self, pairs: Shaped[Tensor, "c Q *K"]) -> Shaped[Tensor, "q C *K"]:
        """From the axes of this pairing to those of the `turned` one."""
        return pairs if self.aligned else pairs.transpose(0, 1)

    def sides(self, directions: Sequence[Direction]) -> list[tuple[Direction, "Pairing"]]:
        """Images that words attend to (t2i), texts that regions attend to (i2t); the products of both are the same."""
        both = self.with_products() if len(directions) == 2 else self
        # Turned at once, while a CPU still has the products in its cache.
        return [(way, both if way == "t2i" else both.turned()) for way in directions]

    def summed(
        self, directions: Sequence[Direction], score: Callable[[Direction, "Pairing"], Float[Tensor, "c Q"]]
    ) -> Float[Tensor, "i T"]:
        """The sum of the scores of the `sides`."""
        scores = [(way, score(way, side)) for way, side in self.sides(directions)]
        return reduce(add, [own if way == "t2i" else self.exchanged(own) for way, own in scores])

    def shown(
        self, directions: Sequence[Direction], weights: Callable[[Direction, "Pairing"], Tensor]
    ) -> dict[str, Float[Tensor, "N M"]]:
        """The tensors of an `Attention` of one pair, by name, from `weights` (C, K, L, q) of each side."""
        found = {way: weights(way, side)[0, :, :, 0] for way, side in self.sides(directions)}
        names = {"t2i": "of_words", "i2t": "of_regions"}
        return {names[way]: own.T if way == "t2i" else own for way, own in found.items()}

    def parts(self, bytes_each: int, chunk_bytes: int) -> list["Pairing"]:
        """A few contexts at a time, so that `bytes_each` of them stay in a CPU's cache."""
        return [self[some] for some in chunks(len(self.contexts), bytes_each, chunk_bytes, self.device)]

    def __getitem__(self, some: slice) -> "Pairing":
        """Some contexts, with all queries or if they are aligned with their own."""
        queries = self.queries[some] if self.aligned else self.queries
        dots = None if self.dots is None else self.dots[some]
        return Pairing(self.contexts[some], queries, self.aligned, dots)

    @property
    def device(self) -> torch.device:
        return self.contexts.vectors.device

    def scored(
        self,
        score: Callable[["Pairing"], ScoresT],
        products: int,
        regions: int = 0,
        words: int = 0,
        pairs: int = 0,
        all_images: bool = False,
        ranks: Processes | None = None,
    ) -> ScoresT:
        """`score`, (i, T), of as many images and texts at a time as fit `contexts.byte_budget`; (P,) if aligned.

        A pair takes `products` numbers for each product of a region and a word, others for each region, for each
        word, and `pairs` besides. Each of several results has images along the first axis and texts along the
        second. If one block is not enough and gradients are wanted, the backward pass computes each block again
        instead of storing what is inside. The blocks depend on shapes alone, except on a CPU: there texts of similar
        length are scored together, without the padding that all of them have. `all_images` splits the texts only, for
        batch statistics that run over the images; if these are spread over `ranks`, all make the same blocks.
        """
        if self.aligned:
            found = score(self)
            assert isinstance(found, Tensor)
            return found[0]
        images, texts = self.contexts, self.queries
        num_regions, num_words = images.mask.shape[1], texts.mask.shape[1]
        numbers = products * num_regions * num_words + regions * num_regions + words * num_words + pairs
        budget = images.byte_budget or default_byte_budget(self.device)
        sizes = plan_blocks(len(images), len(texts), max(1, budget // (4 * numbers)), all_images)
        if ranks is not None:
            sizes = sizes[0], ranks.least(sizes[1], self.device)
        fits = sizes == (len(images), len(texts))
        by_length = is_ragged(images.vectors) and len(texts) > CPU_TEXTS
        if fits and not by_length:
            return score(self)
        if not fits and torch.is_grad_enabled():
            score = again(score)
        order, blocks = None, texts.split(sizes[1])
        if by_length:
            # The longest first, which the thresholds of NAAF depend on.
            order, images = texts.mask.sum(1).argsort(descending=True, stable=True), images.with_gram()
            blocks = [some.trimmed() for some in texts[order].split(min(sizes[1], CPU_TEXTS))]
        parts = [joined([score(Pairing(own, some)) for some in blocks], 1) for own in images.split(sizes[0])]
        scores = joined(parts, 0)
        if order is None:
            return scores
        back = order.argsort()
        if isinstance(scores, Tensor):
            return scores.index_select(1, back)
        return tuple(rows.index_select(1, back) for rows in scores)


class _Turned(torch.autograd.Function):
    """Reverse all four axes through a transposed matrix: three times faster on a CPU than in one step."""

    @staticmethod
    def forward(ctx: Any, dots: Tensor) -> Tensor:
        contexts, fragments, *query_axes = dots.shape
        matrix = dots.reshape(contexts * fragments, -1).T.contiguous()
        return matrix.view(*query_axes, contexts, fragments).permute(1, 0, 3, 2).contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Turned.forward(ctx, grad)
