"""Vectors as an index keeps them: float32, float16, or int8 with one scale per row."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from selhn.base.types import StoredPrecision, to_int8
from selhn.data.features import BLOCK_BYTES, blocks

CONVERTED_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Vectors:
    """n vectors of width d, perhaps mapped from a file; `take` gives them back in float32."""

    rows: Shaped[Tensor, "n d"]
    scale: Float[Tensor, " n"] | None = None
    """For int8: `vector = code * scale`."""

    @classmethod
    def of(cls, vectors: Float[Tensor, "n d"], precision: StoredPrecision) -> "Vectors":
        vectors = vectors.detach().float().cpu().contiguous()
        return cls(*to_int8(vectors)) if precision == "int8" else cls(vectors.to(getattr(torch, precision)))

    @classmethod
    def joined(cls, parts: Sequence["Vectors"]) -> "Vectors":
        scales = [part.scale for part in parts if part.scale is not None]
        return cls(torch.cat([part.rows for part in parts]), torch.cat(scales) if scales else None)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def longest(self) -> float:
        """Length of the longest vector; infinite if a number is not finite. All are read once."""
        buffer, longest = self.buffer(), 0.0
        for block in self.blocks():
            length = float(self.take(block, buffer).norm(dim=1).max())
            longest = max(longest, length if math.isfinite(length) else math.inf)
        return longest

    def __getitem__(self, which: slice | Int[Tensor, " m"]) -> "Vectors":
        return Vectors(self.rows[which], None if self.scale is None else self.scale[which])

    def take(
        self, which: slice | Int[Tensor, " m"], buffer: Float[Tensor, "r d"] | None = None
    ) -> Float[Tensor, "m d"]:
        """Some vectors in float32; a slice of float32 vectors is not copied.

        Others are written into `buffer` if given: new memory for every block costs more than the conversion.
        """
        some = self[which]
        if buffer is None or some.rows.dtype == torch.float32 or len(some) > len(buffer):
            vectors = some.rows.float()
        else:
            vectors = buffer[: len(some)].copy_(some.rows)
        return vectors if some.scale is None else vectors.mul_(some.scale[:, None])

    def blocks(self) -> Iterator[slice]:
        """Slices over all rows: a few dozen megabytes, or what fits the cache if vectors are converted."""
        budget = BLOCK_BYTES if self.rows.dtype == torch.float32 else min(BLOCK_BYTES, CONVERTED_BYTES)
        return blocks(len(self), 4 * self.rows.shape[1], budget)

    def buffer(self) -> Float[Tensor, "r d"] | None:
        """Memory for a block, where blocks are converted."""
        if self.rows.dtype == torch.float32:
            return None
        width = self.rows.shape[1]
        return torch.empty(max(1, CONVERTED_BYTES // (4 * width)), width, device=self.rows.device)

    def to(self, device: torch.device | str) -> "Vectors":
        return Vectors(self.rows.to(device), None if self.scale is None else self.scale.to(device))
