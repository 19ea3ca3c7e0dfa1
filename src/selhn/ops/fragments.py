"""Regions of images or words of texts as vectors, and how many to process at a time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from selhn.base.types import at_least_float32

RAGGED_DEVICES: tuple[str, ...] = ("cpu",)
CPU_BYTE_BUDGET = 2**30
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ScoresT = TypeVar("ScoresT", Tensor, tuple[Tensor, ...])


def unit(vectors: Float[Tensor, "*K d"], epsilon: float = 1e-8, axis: int = -1) -> Float[Tensor, "*K d"]:
    """`x / (|x| + epsilon)`, in float32 or wider; a zero vector stays zero, with finite gradients."""
    vectors = at_least_float32(vectors)
    return vectors / (torch.linalg.vector_norm(vectors, dim=axis, keepdim=True) + epsilon)


def mean_of(vectors: Float[Tensor, "n K d"], mask: Bool[Tensor, "n K"]) -> Float[Tensor, "n d"]:
    """The mean of an item's vectors without padding, in float32 or wider; zeros if there are none."""
    total = vectors.masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    return at_least_float32(total)


def real_or_all(mask: Bool[Tensor, "*n K"]) -> Bool[Tensor, "*n K"]:
    """The mask, or all of it where nothing is real: a softmax over nothing is NaN."""
    return mask | ~mask.any(-1, keepdim=True)


def is_ragged(tensor: Tensor) -> bool:
    """Whether padding is left out: on a CPU, in full precision, and not during an export.

    A GPU would wait for the host, and a step with changing shapes cannot be recorded or exported.
    Half precision on a CPU is for checking what a GPU does.
    """
    kind = tensor.device.type
    return (
        kind in RAGGED_DEVICES and not torch.is_autocast_enabled(kind) and not torch.compiler.is_exporting()
    )


@dataclass(frozen=True)
class Fragments:
    """n images or texts as K vectors each; sliced and joined by items, like a tensor by rows.

    Vectors of padding are zero: `Fragments.of` ensures it, and attention relies on it.
    """

    vectors: Float[Tensor, "n K d"]
    mask: Bool[Tensor, "n K"]
    whole: Float[Tensor, "n e"] | None = None
    """One vector for the whole item, of any width, if a model has one."""
    gram: Float[Tensor, "n K K"] | None = None
    """The products of an item's vectors with each other, if they were made beforehand."""
    edges: Float[Tensor, "n K K h"] | None = None
    """Edge weights from fragment j to fragment i, if an item is a graph; 0 for padding."""
    byte_budget: int | None = None
    """Memory for scoring these images: see `Pairing.scored`."""

    @classmethod
    def of(cls, vectors: Float[Tensor, "n K d"], mask: Bool[Tensor, "n K"]) -> "Fragments":
        return cls(vectors.masked_fill(~mask[:, :, None], 0), mask)

    @classmethod
    def joined(cls, parts: Iterable["Fragments"], num_items: int, longest: int) -> "Fragments":
        """Join the items of several encodings, copied part by part, so that they are never in memory twice.

        `longest` is how many fragments an item is expected to have at most; more also fit.
        """
        vectors, mask, first = torch.empty(0, 0, 0), torch.empty(0, 0), 0
        wholes: list[Tensor] = []
        edges: Tensor | None = None
        for part in parts:
            items, length = slice(first, first + len(part)), part.mask.shape[1]
            if first == 0:
                vectors = part.vectors.new_zeros(num_items, max(length, longest), part.vectors.shape[2])
                mask = part.mask.new_zeros(vectors.shape[:2])
                if part.edges is not None:
                    edges = part.edges.new_zeros(num_items, *[mask.shape[1]] * 2, part.edges.shape[3])
            if length > mask.shape[1]:
                missing = length - mask.shape[1]
                vectors, mask = pad(vectors, (0, 0, 0, missing)), pad(mask, (0, missing))
                edges = None if edges is None else pad(edges, (0, 0, 0, missing, 0, missing))
            vectors[items, :length], mask[items, :length] = part.vectors, part.mask
            if part.whole is not None:
                wholes.append(part.whole)
            if edges is not None and part.edges is not None:
                edges[items, :length, :length] = part.edges
            first = items.stop
        return cls(vectors, mask, torch.cat(wholes) if wholes else None, edges=edges)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, items: slice | Int[Tensor, " m"]) -> "Fragments":
        return self.each(
            lambda rows: rows[items] if isinstance(items, slice) else rows.index_select(0, items)
        )

    def split(self, size: int) -> list["Fragments"]:
        return [self[first : first + size] for first in range(0, len(self), size)]

    def beside(self, other: "Fragments") -> "Fragments":
        """Vectors of the same items next to each other, as one set of wider ones; `chunk` is the inverse."""
        whole = edges = None
        if self.whole is not None and other.whole is not None:
            whole = torch.cat([self.whole, other.whole], -1)
        if self.edges is not None and other.edges is not None:
            edges = torch.cat([self.edges, other.edges], -1)
        return Fragments(torch.cat([self.vectors, other.vectors], -1), self.mask, whole, edges=edges)

    def chunk(self, number: int, axis: Literal[-1] = -1) -> list["Fragments"]:
        """The parts of every vector, like those of a tensor."""
        wholes, edges = (
            [None] * number if part is None else part.chunk(number, axis) for part in (self.whole, self.edges)
        )
        parts = zip(self.vectors.chunk(number, axis), wholes, edges)
        return [
            replace(self, vectors=own, whole=whole, gram=None, edges=graph) for own, whole, graph in parts
        ]

    def trimmed(self) -> "Fragments":
        """A copy without trailing positions that are padding in all items; waits for the device."""
        present = self.mask.any(0).nonzero()
        longest = int(present[-1]) + 1 if len(present) else 1
        edges = None if self.edges is None else self.edges[:, :longest, :longest]
        return replace(
            self, vectors=self.vectors[:, :longest], mask=self.mask[:, :longest], gram=None, edges=edges
        )

    def to(self, device: torch.device | str) -> "Fragments":
        return self.each(lambda rows: rows.to(device))

    def products(self) -> Float[Tensor, "n K K"]:
        """`gram`, computed if missing, never in half precision."""
        if self.gram is not None:
            return self.gram
        with torch.autocast(self.vectors.device.type, enabled=False):
            return self.vectors @ self.vectors.transpose(1, 2)

    def with_gram(self) -> "Fragments":
        """The same with `gram`, for items that are attended to more than once."""
        return self if self.gram is not None else replace(self, gram=self.products())

    def each(self, change: Callable[[Tensor], Tensor]) -> "Fragments":
        """The items with every tensor changed."""
        whole, gram, edges = (
            None if part is None else change(part) for part in (self.whole, self.gram, self.edges)
        )
        return Fragments(change(self.vectors), change(self.mask), whole, gram, edges, self.byte_budget)


def plan_blocks(num_images: int, num_texts: int, pairs: int, all_images: bool = False) -> tuple[int, int]:
    """Numbers of images and texts in a block of at most `pairs`: all, or about a square; at least 1 each."""
    if num_images * num_texts <= pairs:
        return num_images, num_texts
    if not all_images:
        num_images = min(num_images, max(math.isqrt(pairs), pairs // num_texts))
    return num_images, max(1, pairs // num_images)


def joined(parts: list[ScoresT], axis: int) -> ScoresT:
    """Concatenate tensors, or tuples of tensors element by element, along an axis."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, axis)
    return tuple(torch.cat(own, axis) for own in zip(*parts, strict=True))


def default_byte_budget(device: torch.device) -> int:
    """A quarter of a GPU's memory, or a gigabyte elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return CPU_BYTE_BUDGET


def chunks(number: int, bytes_each: int, chunk_bytes: int, device: torch.device) -> list[slice]:
    """Items in chunks of about `chunk_bytes` that stay in a CPU's cache; on other devices all at once."""
    step = max(1, chunk_bytes // max(1, bytes_each)) if device.type == "cpu" else max(1, number)
    return [slice(first, first + step) for first in range(0, number, step)]


def chunks_with_queries(
    weights: Float[Tensor, "C W K"], queries: Float[Tensor, "c W d"], chunk_bytes: int
) -> list[tuple[slice, slice]]:
    """Some contexts with about `chunk_bytes` of what their queries attend to, and these queries.

    c is C, or 1 if all contexts meet the same queries.
    """
    step = max(1, chunk_bytes // max(1, queries.element_size() * queries[:1].numel()))
    some = [slice(first, first + step) for first in range(0, len(weights), step)]
    return [(contexts, contexts if len(queries) == len(weights) else slice(None)) for contexts in some]


def again(compute: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """A function that the backward pass calls again, instead of storing what is inside.

    It draws no random numbers: a CUDA graph cannot read the state of a generator.
    """
    return partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
