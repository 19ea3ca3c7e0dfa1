"""What an encoder gives that keeps its regions or words apart, and the scoring of such images and texts in blocks."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CPU_BYTE_BUDGET = 2**29
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
        whole = None if self.whole is None else self.whole[items]
        return Fragments(self.vectors[items], self.mask[items], whole)

    def split(self, size: int) -> list["Fragments"]:
        """Blocks of `size` items; the last may be smaller."""
        return [self[first : first + size] for first in range(0, len(self), size)]

    def to(self, device: torch.device | str) -> "Fragments":
        """The same on a device."""
        whole = None if self.whole is None else self.whole.to(device)
        return Fragments(self.vectors.to(device), self.mask.to(device), whole)


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
    keeping what is inside. The blocks depend on shapes alone. `all_images` cuts the texts only, for a model whose
    batch statistics run over the images.
    """
    pairs = max(1, (byte_budget or default_byte_budget(images.vectors.device)) // bytes_per_pair)
    if len(images) * len(texts) <= pairs:
        return score(images, texts)
    num_images = len(images) if all_images else min(len(images), max(math.isqrt(pairs), pairs // len(texts)))
    num_texts = max(1, pairs // num_images)

    def block(some_images: Fragments, some_texts: Fragments) -> Tensor:
        if not torch.is_grad_enabled():
            return score(some_images, some_texts)
        # No random number is drawn inside, and a CUDA graph cannot hold a look at the generator.
        return checkpoint(score, some_images, some_texts, use_reentrant=False, preserve_rng_state=False)

    rows = [[block(i, t) for t in texts.split(num_texts)] for i in images.split(num_images)]
    return torch.cat([torch.cat(row, 1) for row in rows])


@contextmanager
def within_bytes(budget: int | None) -> Iterator[None]:
    """Another default budget for all blocks that are scored inside; None leaves it."""
    before = _chosen_budget.set(budget)
    try:
        yield
    finally:
        _chosen_budget.reset(before)


def default_byte_budget(device: torch.device) -> int:
    """A quarter of a GPU's memory, half a gigabyte elsewhere, or what `within_bytes` says."""
    chosen = _chosen_budget.get()
    if chosen is not None:
        return chosen
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return CPU_BYTE_BUDGET


def _lengthened(rows: Tensor, length: int) -> Tensor:
    missing = rows.new_zeros(len(rows), length - rows.shape[1], *rows.shape[2:])
    return torch.cat([rows, missing], 1)
