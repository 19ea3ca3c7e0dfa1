"""Pocket folders: the files of a precomp folder with features as int8 codes, and `projection.npz` to unpack them.

Eight thousand photographs with 20 regions each take 41 MB this way; `README.md` beside the data says how it was made.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data.features import DenseFeatures, PocketFeatures, Projection
from selhn.data.formats.inspection import Inspection, Opened
from selhn.data.formats.precomp import SplitFiles, open_split
from selhn.data.formats.reading import read_archive


def read_pocket(
    folder: Path,
    inspection: Inspection,
    *,
    form: Literal["full", "pca"] = "full",
    regions: int | None = None,
) -> Opened:
    """The splits of a pocket folder.

    Args:
        form: "full" (1280 numbers, none negative, as a backbone gives them) or "pca" (256, centred).
        regions: keep the first regions only; the first 10 need no detector.
    """
    if regions is not None and regions < 1:
        raise SelhnError(f"regions is {regions}: keep at least one, or None for all")
    projection = inspection.attempt(read_projection, folder / "projection.npz")
    if projection is not None:
        full, reduced = projection.components.shape
        inspection.say(f"projection.npz: {reduced} codes a region become {reduced} (pca) or {full} (full) numbers")

    def unpacked(array: npt.NDArray[Any], rows: Int[Tensor, " I"], path: Path) -> PocketFeatures:
        if projection is None:
            raise SelhnError(
                f"{path} cannot be unpacked without its projection: mend {folder / 'projection.npz'} first"
            )
        if array.dtype != np.int8 or array.ndim != 3 or array.shape[2] != len(projection.scale):
            raise SelhnError(
                f"{path} is {array.dtype} {array.shape}, but projection.npz unpacks int8 codes of shape "
                f"(images, regions, {len(projection.scale)}): take both files from the same folder"
            )
        return PocketFeatures(DenseFeatures(array[:, :regions], rows, path=path), projection, form)

    splits = {}
    for name in ("train", "dev", "test"):
        split = open_split(SplitFiles(folder, name), name, inspection, unpacked, kinds="i")
        if split is not None:
            splits[name] = split
    return Opened(folder.name, splits)


def read_projection(path: Path) -> Projection:
    """Mean, components and scale, of sizes that fit each other and all finite."""
    mean, components, scale = (torch.from_numpy(array) for array in read_archive(path, ("mean", "components", "scale")))
    if mean.ndim != 1 or scale.ndim != 1 or components.shape != (len(mean), len(scale)):
        raise SelhnError(
            f"{path}: mean {tuple(mean.shape)}, components {tuple(components.shape)} and scale {tuple(scale.shape)} do "
            "not fit: they must be (F), (F, P) and (P)"
        )
    for name, values in (("mean", mean), ("components", components), ("scale", scale)):
        if not bool(values.isfinite().all()):
            raise SelhnError(f"{path}: {name} holds NaN or infinite numbers: make the projection again")
    return Projection(mean, components, scale)
