"""Features that another program wrote, one `.npy` or `.npz` file per picture."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.types import StoredPrecision
from selhn.base.untrusted import open_array, read_archive
from selhn.pictures.cache import CachedFeatures, FeatureCache, content_key, default_cache
from selhn.pictures.extraction import Extracted, PictureReport
from selhn.pictures.picture_files import read_bytes

SUFFIXES = (".npy", ".npz")
ARRAYS = ("features", "x", "feat")
"""Names under which an archive may hold its features."""


def find_region_files(folder: Path) -> list[Path]:
    """The arrays below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise NotFound(f"{folder} holds no .npy or .npz files: give a folder with one per picture")
    return found


def read_regions(path: Path) -> Float[Tensor, "M F"]:
    """Regions of one picture; one vector is one region."""
    if path.suffix == ".npy":
        array = np.asarray(open_array(path, dims=(1, 2)), dtype=np.float32)
    else:
        array = _from_archive(path)
    if array.ndim not in (1, 2) or not np.isfinite(array).all():
        raise SelhnError(f"{path} has shape {array.shape} or numbers that are not finite")
    return torch.from_numpy(np.atleast_2d(array).copy())


def collect_region_files(
    paths: Sequence[Path], *, cache: Path | None = None, precision: StoredPrecision = "float16", root: Path
) -> Extracted:
    """All files as wide as the first that can be read; others are left out and named in the report."""
    store: FeatureCache | None = None
    used: list[tuple[Path, bytes, int]] = []
    report = PictureReport()
    for path in paths:
        try:
            key, regions = content_key(read_bytes(path)), read_regions(path)
            if store is None:
                width = regions.shape[1]
                store = FeatureCache(cache or default_cache(), f"files, {width}", width, precision)
            if regions.shape[1] != store.width:
                raise SelhnError(f"its features are {regions.shape[1]} wide, those before it {store.width}")
        except SelhnError as error:
            report.refused.append((path.relative_to(root).as_posix(), str(error)))
            continue
        if key not in store:
            store.put({key: regions})
        used.append((path, key, len(regions)))
    if store is None:
        name, why = report.refused[0]
        raise SelhnError(f"no array in {root} can be read; of the first, {name}: {why}")
    report.used = len(used)
    keys, most = [key for _, key, _ in used], max(number for _, _, number in used)
    return Extracted([path for path, _, _ in used], CachedFeatures(store, keys, most), report)


def _from_archive(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    for name in ARRAYS:
        with suppress(NotFound):
            return read_archive(path, (name,))[0]
    raise NotFound(f"{path} has none of {', '.join(ARRAYS)}: name its array of features so")
