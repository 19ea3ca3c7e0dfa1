"""Region features: one interface for features in a file, in memory or on a device.

A store is a numpy array (usually mapped from a file, so that only the requested rows are read) or a tensor.
Nothing here loops over images in Python, except for features that can only be read one image at a time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from selhn.base.errors import SelhnError

Store: TypeAlias = Tensor | npt.NDArray[Any]
Regions: TypeAlias = tuple[Shaped[Tensor, "B M F"], Bool[Tensor, "B M"]]
"""Features of B images, and which of their M regions are real."""

# Large enough that a disk delivers at its full speed, small beside any machine's memory.
BLOCK_BYTES = 32 * 2**20
# Types that both torch and numpy have; other floats (big-endian, long double) become float32.
KEPT_DTYPES = tuple(np.dtype(name) for name in ("float16", "float32", "int8"))


class Features(ABC):
    """Region features of images, wherever they are stored: F numbers for each of up to M regions."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(I, M, F); M is the largest number of regions per image; images with fewer are padded."""

    @abstractmethod
    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        """Features and mask of some images in the precision of the store, on its device."""

    def gather(self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32) -> Regions:
        """Features and mask of some images, on the device of the store; None keeps its precision."""
        regions, mask = self.read(rows)
        return (regions if dtype is None else regions.to(dtype)), mask

    def in_blocks(self) -> Iterator[tuple[Int[Tensor, " B"], Regions]]:
        """All images in their order, as many at a time as need `BLOCK_BYTES`: their rows, features and mask."""
        for block in blocks(self.num_images, 4 * self.num_regions * self.width):
            rows = torch.arange(block.start, block.stop)
            yield rows, self.gather(rows)

    def to(self, device: torch.device | str) -> "Features":
        """The features on a device, to gather there; features that are read on demand stay where they are."""
        return self

    def where(self, image: int) -> str:
        """The location of an image's features, for messages: file and row."""
        return f"image {image}"

    @property
    def num_images(self) -> int:
        return self.shape[0]

    @property
    def num_regions(self) -> int:
        return self.shape[1]

    @property
    def width(self) -> int:
        return self.shape[2]

    @property
    def num_bytes(self) -> int:
        return 4 * math.prod(self.shape)


def take(store: Store, rows: Int[Tensor, " *shape"]) -> Shaped[Tensor, "..."]:
    """Some rows of a store, on its device."""
    if isinstance(store, Tensor):
        return store[rows.to(store.device)]
    taken = store[rows.cpu().numpy()]
    if taken.dtype not in KEPT_DTYPES:
        taken = taken.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(taken))


def blocks(num_rows: int, row_bytes: int, budget: int = BLOCK_BYTES) -> Iterator[slice]:
    """Consecutive slices over `num_rows` rows, each within the budget (but at least one row)."""
    size = max(1, budget // max(1, row_bytes))
    return (slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size))


def take_to(store: Store, rows: Int[Tensor, " R"] | None, device: torch.device) -> Shaped[Tensor, "..."]:
    """Some (or all) rows of a store as a tensor on a device, copied in blocks: host memory stays bounded."""
    if isinstance(store, Tensor):
        return (store if rows is None else take(store, rows)).to(device)
    wanted = torch.arange(len(store)) if rows is None else rows.cpu()
    moved = torch.empty((len(wanted), *store.shape[1:]), dtype=take(store, wanted[:0]).dtype, device=device)
    for block in blocks(len(wanted), math.prod(store.shape[1:]) * store.itemsize):
        moved[block] = take(store, wanted[block]).to(device)
    return moved


@dataclass(frozen=True, eq=False)
class DenseFeatures(Features):
    """Images with the same number of regions, (rows, M, F), or one vector each, (rows, F), which is M = 1.

    Args:
        rows: which row of the store is image i, if that is not row i: some arrays repeat an image for each of
            its captions, or serve several splits.
        mask: which regions are real, (rows, M); all are if it is not given.
        path: the file, for messages.
        scale: for int8 codes, one number per region: `x = code * scale`.
    """

    store: Store
    rows: Int[Tensor, " I"] | None = None
    mask: Bool[Tensor, "rows M"] | None = None
    path: Path | None = None
    scale: Float[Tensor, "rows M"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.store, Tensor | np.ndarray) or self.store.ndim not in (2, 3):
            got = tuple(getattr(self.store, "shape", ())) or type(self.store).__name__
            raise SelhnError(
                f"features must be a tensor or a NumPy array, (I, M, F) or (I, F), got {got}: "
                "give F numbers for each region of each image"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        images = len(self.store if self.rows is None else self.rows)
        return images, 1 if self.store.ndim == 2 else self.store.shape[1], self.store.shape[-1]

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        if self.rows is not None:
            rows = self.rows[rows.to(self.rows.device)]
        regions = take(self.store, rows)
        if self.store.ndim == 2:
            regions = regions.unsqueeze(1)
        if self.scale is not None:
            regions = regions * take(self.scale, rows)[..., None]
        if self.mask is None:
            return regions, torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        return regions, take(self.mask, rows)

    def to(self, device: torch.device | str) -> "DenseFeatures":
        """These images on a device; an array mapped from a file stays mapped if the device is the CPU."""
        device = torch.device(device)
        if not isinstance(self.store, Tensor) and device.type == "cpu":
            return self
        optional = (self.mask, self.scale)
        mask, scale = (None if part is None else take_to(part, self.rows, device) for part in optional)
        return DenseFeatures(take_to(self.store, self.rows, device), None, mask, self.path, scale)

    @property
    def num_bytes(self) -> int:
        return self.num_images * (self.store.nbytes // max(1, len(self.store)))

    def where(self, image: int) -> str:
        row = image if self.rows is None else int(self.rows[image])
        return f"{self.path or 'features'}, row {row}"


@dataclass(frozen=True, eq=False)
class RaggedFeatures(Features):
    """Images with different numbers of regions: image i has rows offsets[i] to offsets[i + 1]."""

    store: Store
    """(R, F): the regions of all images."""
    offsets: Int[Tensor, " I_plus_1"]
    most_regions: int
    path: Path | None = None

    @classmethod
    def of(
        cls, store: Store, offsets: Int[Tensor, " I_plus_1"], path: Path | None = None
    ) -> "RaggedFeatures":
        """The store with these offsets; refuses offsets that do not fit."""
        where = path or "the offsets"
        if len(offsets) == 0 or int(offsets[0]) != 0 or int(offsets[-1]) != len(store):
            raise SelhnError(f"{where}: offsets must begin with 0 and end with the {len(store)} rows")
        counts = offsets.diff()
        if bool((counts < 1).any()):
            image = int((counts < 1).nonzero()[0])
            raise SelhnError(
                f"{where}: row {image + 1} says that image {image} has no region: leave the image out"
            )
        return cls(store, offsets, int(counts.max()) if len(counts) else 1, path)

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.offsets) - 1, self.most_regions, self.store.shape[-1]

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        rows = rows.to(self.offsets.device)
        first, end = self.offsets[rows], self.offsets[rows + 1]
        position = first[:, None] + torch.arange(self.most_regions, device=rows.device)
        mask = position < end[:, None]
        if isinstance(self.store, Tensor):
            # A masked position reads the first region: no shape depends on the data, so nothing waits.
            return take(self.store, torch.where(mask, position, first[:, None])) * mask[..., None], mask
        present = take(self.store, position[mask])
        regions = present.new_zeros(*mask.shape, self.width)
        regions[mask] = present
        return regions, mask

    def to(self, device: torch.device | str) -> "RaggedFeatures":
        """The whole store on a device; an array mapped from a file stays mapped if the device is the CPU."""
        device = torch.device(device)
        if not isinstance(self.store, Tensor) and device.type == "cpu":
            return self
        return replace(self, store=take_to(self.store, None, device), offsets=self.offsets.to(device))

    @property
    def num_bytes(self) -> int:
        return self.store.nbytes

    def where(self, image: int) -> str:
        first, end = self.offsets[image : image + 2].tolist()
        return f"{self.path or 'features'}, rows {first} to {end - 1}"


class ImageByImage(Features):
    """Features that are read from a file one image at a time."""

    @abstractmethod
    def images(self, rows: Sequence[int]) -> Sequence[Float[Tensor, "_ F"]]:
        """The regions of some images, without padding."""

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        found = self.images(rows.tolist())
        regions = torch.zeros(len(found), *self.shape[1:])
        mask = torch.zeros(regions.shape[:2], dtype=torch.bool)
        for row, image in enumerate(found):
            regions[row, : len(image)] = image
            mask[row, : len(image)] = True
        return regions, mask


@dataclass(frozen=True, eq=False)
class SomeImages(Features):
    """Some images of other features."""

    features: Features
    rows: Int[Tensor, " I"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.rows), *self.features.shape[1:]

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        return self.features.read(self.rows[rows.to(self.rows.device)])

    def to(self, device: torch.device | str) -> "SomeImages":
        return SomeImages(self.features.to(device), self.rows.to(device))

    @property
    def num_bytes(self) -> int:
        return self.features.num_bytes

    def where(self, image: int) -> str:
        return self.features.where(int(self.rows[image]))
