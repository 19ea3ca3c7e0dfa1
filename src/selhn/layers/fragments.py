"""What an encoder gives that keeps its regions or words apart, and the scoring of such images and texts in blocks."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from selhn.layers.ragged import is_ragged

CPU_BYTE_BUDGET = 2**30
# Texts that a CPU scores at a time: of a batch sorted by length so many are nearly of one length, and vectors are full.
CPU_TEXTS = 32
_chosen_budget: ContextVar[int | None] = ContextVar("byte budget", default=None)


@dataclass(frozen=True)
class Fragments:
    """n images or texts as K vectors each; cut and joined by items, as a tensor is by rows.

    Vectors of padding are zero: `Fragments.of` sees to it, and attention counts on it.
    """

    vectors: Float[Tensor, "n K d"]
    mask: Bool[Tensor, "n K"]
    whole: Float[Tensor, "n d"] | None = None
    """One vector for the whole item, where a model has one."""
    gram: Float[Tensor, "n K K"] | None = None
    """The products of an item's vectors with each other, where they were made beforehand."""

    @classmethod
    def of(
        cls, vectors: Float[Tensor, "n K d"], mask: Bool[Tensor, "n K"], whole: Float[Tensor, "n d"] | None = None
    ) -> "Fragments":
        """Fragments with zeros for padding."""
        return cls(vectors.masked_fill(~mask[:, :, None], 0), mask, whole)

    @classmethod
    def joined(cls, parts: Iterable["Fragments"], num_items: int, longest: int) -> "Fragments":
        """Items of several encodings in one, each copied as it comes, so that all of them are never there twice.

        `longest` is how many fragments an item is expected to have at the most; more are made room for.
        """
        vectors, mask, whole, first = torch.empty(0, 0, 0), torch.empty(0, 0), None, 0
        for part in parts:
            items, length = slice(first, first + len(part)), part.mask.shape[1]
            if first == 0:
                vectors = part.vectors.new_zeros(num_items, max(length, longest), part.vectors.shape[2])
                mask = part.mask.new_zeros(vectors.shape[:2])
                whole = None if part.whole is None else part.whole.new_empty(num_items, part.whole.shape[1])
            if length > mask.shape[1]:
                vectors, mask = _lengthened(vectors, length), _lengthened(mask, length)
            vectors[items, :length], mask[items, :length] = part.vectors, part.mask
            if whole is not None and part.whole is not None:
                whole[items] = part.whole
            first = items.stop
        return cls(vectors, mask, whole)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, items: slice | Int[Tensor, " m"]) -> "Fragments":
        if isinstance(items, slice):
            return self._each(lambda rows: rows[items])
        return self._each(lambda rows: _selected(rows, items))

    def split(self, size: int) -> list["Fragments"]:
        """Blocks of `size` items; the last may be smaller."""
        return [self[first : first + size] for first in range(0, len(self), size)]

    def trimmed(self) -> "Fragments":
        """The same without the places at the end that are padding in all items; waits for the device."""
        present = self.mask.any(0).nonzero()
        longest = int(present[-1]) + 1 if len(present) else 1
        return Fragments(self.vectors[:, :longest], self.mask[:, :longest], self.whole)

    def to(self, device: torch.device | str) -> "Fragments":
        """The same on a device."""
        return self._each(lambda rows: rows.to(device))

    def with_gram(self) -> "Fragments":
        """The same with `gram`, never in half precision, for whoever looks at these items more than once."""
        if self.gram is not None:
            return self
        with torch.autocast(self.vectors.device.type, enabled=False):
            return replace(self, gram=self.vectors @ self.vectors.transpose(1, 2))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Fragments":
        whole, gram = (None if part is None else change(part) for part in (self.whole, self.gram))
        return Fragments(change(self.vectors), change(self.mask), whole, gram)


def score_in_blocks(
    score: Callable[[Fragments, Fragments], Tensor],
    images: Fragments,
    texts: Fragments,
    bytes_per_pair: int,
    all_images: bool = False,
    byte_budget: int | None = None,
) -> Float[Tensor, "rows T"]:
    """`score(images, texts)`, one row an image, for as many images and texts at a time as fit the budget.

    Where one block is not enough and gradients are wanted, the backward pass computes each block again instead of
    keeping what is inside. The blocks depend on shapes alone, but on a CPU, where texts of like length are scored
    together without the padding that all of them have. `all_images` cuts the texts only, for a model whose batch
    statistics run over the images.
    """
    device = images.vectors.device
    pairs = max(1, (byte_budget or default_byte_budget(device)) // bytes_per_pair)
    num_images, num_texts = len(images), len(texts)
    fits = num_images * num_texts <= pairs
    if not fits:
        num_images = num_images if all_images else min(num_images, max(math.isqrt(pairs), pairs // num_texts))
        num_texts = max(1, pairs // num_images)
    ranks = None
    if is_ragged(images.vectors) and len(texts) > CPU_TEXTS:
        order = texts.mask.sum(1).argsort(stable=True)
        texts, ranks, num_texts = texts[order], order.argsort(), min(num_texts, CPU_TEXTS)
        images = images.with_gram()
    elif fits:
        return score(images, texts)

    def block(some_images: Fragments, some_texts: Fragments) -> Tensor:
        if fits or not torch.is_grad_enabled():
            return score(some_images, some_texts)
        # No random number is drawn inside, and a CUDA graph cannot hold a look at the generator.
        return checkpoint(score, some_images, some_texts, use_reentrant=False, preserve_rng_state=False)

    blocks = [part if ranks is None else part.trimmed() for part in texts.split(num_texts)]
    scores = torch.cat([torch.cat([block(i, t) for t in blocks], 1) for i in images.split(num_images)])
    return scores if ranks is None else scores.index_select(1, ranks)


@contextmanager
def within_bytes(budget: int | None) -> Iterator[None]:
    """Another default budget for all blocks that are scored inside; None leaves it."""
    before = _chosen_budget.set(budget)
    try:
        yield
    finally:
        _chosen_budget.reset(before)


def default_byte_budget(device: torch.device) -> int:
    """A quarter of a GPU's memory, a gigabyte elsewhere, or what `within_bytes` says."""
    chosen = _chosen_budget.get()
    if chosen is not None:
        return chosen
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return CPU_BYTE_BUDGET


def _selected(rows: Tensor, items: Int[Tensor, " m"]) -> Tensor:
    """The rows of some items, with a gradient that is added up row by row."""
    if rows.device.type != "cpu" or not rows.is_floating_point():
        return rows.index_select(0, items)
    # On a CPU the gradient of a selection is added up number by number, several times slower.
    return embedding(items, rows.flatten(1)).unflatten(1, rows.shape[1:])


def _lengthened(rows: Tensor, length: int) -> Tensor:
    missing = rows.new_zeros(len(rows), length - rows.shape[1], *rows.shape[2:])
    return torch.cat([rows, missing], 1)
