"""Features that were computed once, by the content of the picture: one SQLite file for each extractor.

A picture that is moved or renamed keeps its features; a changed one gets new ones. What is written is whole or not
there, also after a crash, so that extraction takes up where it stopped.
"""

import hashlib
import math
import os
import re
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.int8_rows import to_int8
from selhn.data import ImageByImage

Storage = Literal["float32", "float16", "int8"]
FORMAT = 2
"""Every value begins with the checksum of the rest."""


def default_cache() -> Path:
    """Where features lie if nothing else is said."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selhn" / "features"


def content_key(content: bytes) -> bytes:
    """What a picture is known by."""
    return hashlib.sha256(content).digest()


class FeatureCache:
    """Features of an extractor by content key.

    Args:
        folder: made if it is not there.
        identity: `Extractor.identity`.
        width: F.
        storage: float32; float16, half the bytes; or int8 with one scale a region, off by at most 1/254 of its largest.
    """

    def __init__(self, folder: Path | str, identity: str, width: int, storage: Storage = "float16"):
        if storage not in get_args(Storage):
            raise SelhnError(f"storage is {storage!r}: choose {', '.join(get_args(Storage))}")
        self.storage, self.width, self._lock = storage, width, Lock()
        digest = hashlib.sha256(f"{identity}, format {FORMAT}".encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9]+", "_", identity.split(",")[0]).strip("_")
        self.path = Path(folder) / f"{name}-{digest}-{storage}.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Batches are gathered ahead by another thread; the lock keeps two from asking at once.
            self._base = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            with self._base:
                self._base.execute(
                    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
                )
            self._known = {key for (key,) in self._base.execute("SELECT key FROM features")}
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def holds(self, key: bytes) -> bool:
        """Whether the features of a picture are there and are what was written; those that are not can be put anew."""
        if key not in self._known:
            return False
        try:
            self.get([key])
        except ValueError:
            return False
        return True

    def put(self, features: Mapping[bytes, Float[Tensor, "M F"]]) -> None:
        """Keep the features of some pictures, all or none."""
        packed = {key: self._packed(value) for key, value in features.items()}
        rows = [(key, zlib.crc32(value).to_bytes(4, "big") + value) for key, value in packed.items()]
        try:
            with self._lock, self._base:
                self._base.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise self._broken(error) from None
        self._known.update(features)

    def get(self, keys: Sequence[bytes]) -> list[Float[Tensor, "M F"]]:
        """The features of some pictures in this order."""
        try:
            return [self._unpacked(self._value(key)) for key in keys]
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()

    def _value(self, key: bytes) -> bytes:
        with self._lock:
            row = self._base.execute("SELECT value FROM features WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise SelhnError(f"{self.path} has no features of a picture that was there before: extract them again")
        value = row[0]
        if not isinstance(value, bytes) or zlib.crc32(value[4:]).to_bytes(4, "big") != value[:4]:
            raise SelhnError(f"{self.path} is damaged: remove it, and the features are computed again")
        return value[4:]

    def _packed(self, features: Float[Tensor, "M F"]) -> bytes:
        values = features.cpu().numpy().astype(np.float32)
        if not np.isfinite(values).all() or values.shape[1] != self.width:
            raise SelhnError(f"features of shape {values.shape} are not finite or not {self.width} wide: not kept")
        if self.storage != "int8":
            limit = float(np.finfo(self.storage).max)
            return values.clip(-limit, limit).astype(self.storage).tobytes()
        codes, scale = to_int8(features.cpu())
        return scale.numpy().tobytes() + codes.numpy().tobytes()

    def _unpacked(self, value: bytes) -> Float[Tensor, "M F"]:
        size = self.width * np.dtype(self.storage).itemsize + (4 if self.storage == "int8" else 0)
        if not value or len(value) % size:
            raise SelhnError(f"{self.path} is damaged: remove it, and the features are computed again")
        regions = len(value) // size
        scale: npt.NDArray[np.float32] | float = 1.0
        if self.storage == "int8":
            scale = np.frombuffer(value, np.float32, regions)[:, None]
            value = value[4 * regions :]
        stored = np.frombuffer(value, self.storage).reshape(regions, self.width)
        return torch.from_numpy((stored * scale).astype(np.float32))

    def _broken(self, error: sqlite3.Error) -> SelhnError:
        return SelhnError(
            f"{self.path} cannot be used ({error}): make room on the disk, or remove the file and extract again"
        )


@dataclass(frozen=True, eq=False)
class CachedFeatures(ImageByImage):
    """`Features` of some pictures, read from a cache on demand, so that memory stays small."""

    cache: FeatureCache
    keys: Sequence[bytes]
    most_regions: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(I, M, F)."""
        return len(self.keys), self.most_regions, self.cache.width

    def images(self, rows: Sequence[int]) -> list[Float[Tensor, "_ F"]]:
        """The regions of some pictures."""
        return self.cache.get([self.keys[row] for row in rows])

    @property
    def num_bytes(self) -> int:
        """Size of the features of these images in the file."""
        return math.prod(self.shape) * np.dtype(self.cache.storage).itemsize
