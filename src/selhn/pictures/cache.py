"""Caches computed features by the content of the picture: one SQLite file per extractor.

A picture that is moved or renamed keeps its features; a changed one gets new ones. Each write is complete or
has no effect, also after a crash, so extraction continues where it stopped.
"""

import hashlib
import math
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import cache_folder, private_folder, refuse_links
from selhn.base.types import StoredPrecision, to_int8
from selhn.data import ImageByImage

FORMAT = 2
"""Every value begins with the checksum of the rest."""
_OF_SQLITE = ("", "-journal", "-wal", "-shm")
"""How the files end that SQLite opens for a database."""


def default_cache() -> Path:
    """The default folder of features."""
    return cache_folder() / "features"


def content_key(content: bytes) -> bytes:
    """Identifies a picture by its bytes."""
    return hashlib.sha256(content).digest()


def cache_file(folder: Path, identity: str, precision: StoredPrecision) -> Path:
    """Where the features of an extractor are kept."""
    digest = hashlib.sha256(f"{identity}, format {FORMAT}".encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9]+", "_", identity.split(",")[0]).strip("_")[:100]
    return folder / f"{name}-{digest}-{precision}.sqlite"


class FeatureCache:
    """Features of an extractor by content key. Keys are looked up in the file, so opening it takes no time.

    Args:
        folder: created if it does not exist.
        identity: `cached_as` of an extractor or of `TowerVectors`.
        width: F.
        precision: float32; float16, half the bytes; or int8 with one scale per region, off by at most 1/254
            of its largest entry.
    """

    def __init__(self, folder: Path | str, identity: str, width: int, precision: StoredPrecision = "float16"):
        if precision not in get_args(StoredPrecision):
            raise SelhnError(f"precision is {precision!r}: choose {', '.join(get_args(StoredPrecision))}")
        self.precision, self.width, self._lock = precision, width, Lock()
        self.path = cache_file(Path(folder), identity, precision)
        refuse_links(private_folder(self.path.parent), [f"{self.path.name}{end}" for end in _OF_SQLITE])
        with self._errors():
            # Batches are gathered ahead by another thread; the lock keeps two from asking at once.
            self._base = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            with self._base:
                self._base.execute(
                    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
                )

    def __contains__(self, key: bytes) -> bool:
        return self._row("SELECT 1 FROM features WHERE key = ?", key) is not None

    def __len__(self) -> int:
        return int(self._row("SELECT COUNT(*) FROM features")[0])

    def find(self, key: bytes) -> Float[Tensor, "M F"] | None:
        """The features of a picture; None if they are missing or damaged, and should be put again."""
        try:
            return self.get([key])[0]
        except SelhnError:
            return None

    def put(self, features: Mapping[bytes, Float[Tensor, "M F"]]) -> dict[bytes, Float[Tensor, "M F"]]:
        """Store the features of some pictures, all or none; returns them as `get` will return them."""
        packed = {key: self._packed(value) for key, value in features.items()}
        rows = [(key, zlib.crc32(value).to_bytes(4, "big") + value) for key, value in packed.items()]
        self._store(rows)
        return {key: self._unpacked((value,)) for key, value in rows}

    def _store(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        with self._errors(), self._lock, self._base:
            self._base.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

    def get(self, keys: Sequence[bytes]) -> list[Float[Tensor, "M F"]]:
        rows = (self._row("SELECT value FROM features WHERE key = ?", key) for key in keys)
        return [self._unpacked(row) for row in rows]

    def close(self) -> None:
        with self._lock:  # SQLite crashes if a connection is closed while another thread uses it
            self._base.close()

    def _row(self, statement: str, *values: bytes) -> Any:
        with self._errors(), self._lock:
            return self._base.execute(statement, values).fetchone()

    def _packed(self, features: Float[Tensor, "M F"]) -> bytes:
        values = features.cpu().numpy().astype(np.float32)
        if not np.isfinite(values).all() or values.shape[1] != self.width:
            raise SelhnError(f"features of shape {values.shape} are not finite or not {self.width} wide")
        if self.precision != "int8":
            limit = float(np.finfo(self.precision).max)
            return values.clip(-limit, limit).astype(self.precision).tobytes()
        codes, scale = to_int8(features.cpu())
        return scale.numpy().tobytes() + codes.numpy().tobytes()

    def _unpacked(self, row: tuple[Any] | None) -> Float[Tensor, "M F"]:
        if row is None:
            raise NotFound(f"{self.path} has no features of this picture: extract them again")
        value = row[0][4:] if isinstance(row[0], bytes) else b""
        size = self.width * np.dtype(self.precision).itemsize + (4 if self.precision == "int8" else 0)
        if not value or len(value) % size or zlib.crc32(value).to_bytes(4, "big") != row[0][:4]:
            raise Damaged(f"{self.path} is damaged: remove it, and its features are computed again")
        regions = len(value) // size
        scales = 4 * regions if self.precision == "int8" else 0
        stored = (
            np.frombuffer(value, self.precision, offset=scales)
            .reshape(regions, self.width)
            .astype(np.float32)
        )
        if scales:
            stored *= np.frombuffer(value, np.float32, regions)[:, None]
        return torch.from_numpy(stored)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names in a damaged file are not UTF-8
            raise SelhnError(
                f"{self.path} cannot be used ({error}): free some disk space, or remove the file"
            ) from None


class Uncached(FeatureCache):
    """Keeps nothing."""

    def __init__(self, width: int):
        self.precision, self.width, self.path = "float32", width, Path()

    def find(self, key: bytes) -> Float[Tensor, "M F"] | None:
        return None

    def _store(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        pass


@dataclass(frozen=True, eq=False)
class CachedFeatures(ImageByImage):
    """`Features` of some pictures, read from a cache on demand, so that memory stays small."""

    cache: FeatureCache
    keys: Sequence[bytes]
    most_regions: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.keys), self.most_regions, self.cache.width

    def images(self, rows: Sequence[int]) -> list[Float[Tensor, "_ F"]]:
        return self.cache.get([self.keys[row] for row in rows])

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.cache.precision).itemsize
