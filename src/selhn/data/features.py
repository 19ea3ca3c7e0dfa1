"""Region features where they lie: in a file that is mapped into memory, in memory, or on a device.

A store is a numpy array (usually mapped, so that only what is asked for is read) or a tensor. The classes here say how
images are laid out in it; all are `Features`, and none loops over images in Python.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from selhn.base.errors import SelhnError

Store: TypeAlias = Tensor | npt.NDArray[Any]

# Large enough that a disk delivers at its full speed, small beside any machine's memory.
BLOCK_BYTES = 32 * 2**20
# What torch and numpy both hold without loss; other floats (big-endian, long double) become float32.
KEPT_DTYPES = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32, np.dtype(np.int8): torch.int8}


def take(store: Store, rows: Int[Tensor, " *shape"]) -> Shaped[Tensor, "..."]:
    """Some rows of a store, on the device where it lies."""
    if isinstance(store, Tensor):
        return store[rows.to(store.device)]
    taken = store[rows.cpu().numpy()]
    if taken.dtype not in KEPT_DTYPES:
        taken = taken.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(taken))


def converted(features: Shaped[Tensor, "*S"], dtype: torch.dtype | None) -> Shaped[Tensor, "*S"]:
    """In the precision asked for, or as they are."""
    return features if dtype is None else features.to(dtype)


def bytes_of(store: Store) -> int:
    """Size of a store where it lies."""
    return store.numel() * store.element_size() if isinstance(store, Tensor) else store.nbytes


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
class DenseFeatures:
    """Images with the same number of regions, (rows, M, F), or one vector each, (rows, F), which is M = 1.

    Args:
        rows: which row of the store is image i, where that is not simply row i: the arrays of some data sets repeat
            each image for each of its captions, and one array may serve several splits.
        mask: which regions are there, (rows, M); all are if it is not given.
        path: the file, for messages.
    """

    store: Store
    rows: Int[Tensor, " I"] | None = None
    mask: Bool[Tensor, "rows M"] | None = None
    path: Path | None = None

    @property
    def num_images(self) -> int:
        """I."""
        return len(self.store) if self.rows is None else len(self.rows)

    @property
    def num_regions(self) -> int:
        """M."""
        return 1 if self.store.ndim == 2 else self.store.shape[1]

    @property
    def width(self) -> int:
        """F."""
        return self.store.shape[-1]

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features and mask of some images, on the device where the store lies; None leaves them as they are kept."""
        if self.rows is not None:
            rows = self.rows[rows.to(self.rows.device)]
        regions = converted(take(self.store, rows), dtype)
        if self.store.ndim == 2:
            regions = regions.unsqueeze(1)
        if self.mask is None:
            return regions, torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        return regions, take(self.mask, rows)

    def to(self, device: torch.device | str) -> "DenseFeatures":
        """The images of this split on a device; an array mapped from a file stays there if the device is the CPU."""
        device = torch.device(device)
        if not isinstance(self.store, Tensor) and device.type == "cpu":
            return self
        mask = None if self.mask is None else take_to(self.mask, self.rows, device)
        return DenseFeatures(take_to(self.store, self.rows, device), None, mask, self.path)

    @property
    def num_bytes(self) -> int:
        """Size of the images of this split where they lie."""
        return self.num_images * (bytes_of(self.store) // max(1, len(self.store)))

    def where(self, image: int) -> str:
        """The place of an image in its file."""
        row = image if self.rows is None else int(self.rows[image])
        return f"{self.path or 'features'}, row {row}"


@dataclass(frozen=True, eq=False)
class RaggedFeatures:
    """Images with different numbers of regions: image i has the rows offsets[i] to offsets[i + 1] of a flat store."""

    store: Store
    """(R, F): the regions of all images."""
    offsets: Int[Tensor, " I_plus_1"]
    num_regions: int
    """The most regions an image has."""
    path: Path | None = None

    @classmethod
    def of(cls, store: Store, offsets: Int[Tensor, " I_plus_1"], path: Path | None = None) -> "RaggedFeatures":
        """The store with these offsets, once they are known to fit it."""
        place = path or "the offsets"
        if len(offsets) == 0 or int(offsets[0]) != 0 or int(offsets[-1]) != len(store):
            raise SelhnError(f"{place}: offsets must begin with 0 and end with the {len(store)} rows of the features")
        counts = offsets.diff()
        if bool((counts < 1).any()):
            image = int((counts < 1).nonzero()[0])
            raise SelhnError(f"{place}: row {image + 1} says that image {image} has no region: leave such images out")
        return cls(store, offsets, int(counts.max()) if len(counts) else 1, path)

    @property
    def num_images(self) -> int:
        """I."""
        return len(self.offsets) - 1

    @property
    def width(self) -> int:
        """F."""
        return self.store.shape[-1]

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features (zero where an image has fewer regions) and mask of some images."""
        rows = rows.to(self.offsets.device)
        first, end = self.offsets[rows], self.offsets[rows + 1]
        position = first[:, None] + torch.arange(self.num_regions, device=rows.device)
        mask = position < end[:, None]
        if isinstance(self.store, Tensor):
            # A place that is masked reads the image's first region: no shape depends on the data, so nothing waits.
            regions = converted(take(self.store, torch.where(mask, position, first[:, None])), dtype)
            return regions * mask[..., None], mask
        present = converted(take(self.store, position[mask]), dtype)
        regions = present.new_zeros(*mask.shape, self.width)
        regions[mask] = present
        return regions, mask

    def to(self, device: torch.device | str) -> "RaggedFeatures":
        """The whole store on a device; an array mapped from a file stays there if the device is the CPU."""
        device = torch.device(device)
        if not isinstance(self.store, Tensor) and device.type == "cpu":
            return self
        return RaggedFeatures(take_to(self.store, None, device), self.offsets.to(device), self.num_regions, self.path)

    @property
    def num_bytes(self) -> int:
        """Size of the store where it lies."""
        return bytes_of(self.store)

    def where(self, image: int) -> str:
        """The place of an image in its file."""
        return f"{self.path or 'features'}, rows {int(self.offsets[image])} to {int(self.offsets[image + 1]) - 1}"


@dataclass(frozen=True, eq=False)
class Projection:
    """How int8 codes become features: `z = code * scale`, and in full `x = relu(mean + z @ components')`."""

    mean: Float[Tensor, " F"]
    components: Float[Tensor, "F P"]
    scale: Float[Tensor, " P"]

    def to(self, device: torch.device | str) -> "Projection":
        """The same on a device."""
        return Projection(self.mean.to(device), self.components.to(device), self.scale.to(device))


@dataclass(frozen=True, eq=False)
class PocketFeatures:
    """Regions as 256 int8 codes of a PCA, unpacked when they are gathered: a fifth of the bytes of float16 or less."""

    codes: DenseFeatures
    projection: Projection
    form: Literal["full", "pca"] = "full"

    @property
    def num_images(self) -> int:
        """I."""
        return self.codes.num_images

    @property
    def num_regions(self) -> int:
        """M."""
        return self.codes.num_regions

    @property
    def width(self) -> int:
        """F: 1280 in full, 256 in the PCA form."""
        return len(self.projection.mean if self.form == "full" else self.projection.scale)

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features and mask of some images, on the device where the store lies."""
        codes, mask = self.codes.gather(rows)
        coordinates = codes * self.projection.scale
        if self.form == "pca":
            return converted(coordinates, dtype), mask
        flat = torch.addmm(self.projection.mean, coordinates.flatten(0, 1), self.projection.components.T)
        return converted(flat.relu_().unflatten(0, mask.shape), dtype), mask

    def to(self, device: torch.device | str) -> "PocketFeatures":
        """The codes and the projection on a device: they are never unpacked as a whole."""
        return PocketFeatures(self.codes.to(device), self.projection.to(device), self.form)

    @property
    def num_bytes(self) -> int:
        """Size of the codes where they lie."""
        return self.codes.num_bytes

    def where(self, image: int) -> str:
        """The place of an image in its file."""
        return self.codes.where(image)
