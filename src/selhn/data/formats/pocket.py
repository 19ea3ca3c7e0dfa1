"""Pocket folders: a precomp folder with features as int8 codes, and `projection.npz` to unpack them.

Eight thousand photographs with 20 regions each take 41 MB; `README.md` beside the data says how it was made.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.untrusted import read_archive
from selhn.data.features import DenseFeatures, Features, Regions
from selhn.data.formats import register_format
from selhn.data.formats.data_report import Found, Report
from selhn.data.formats.precomp import open_split
from selhn.data.splits import SPLITS


@dataclass(frozen=True, eq=False)
class Projection:
    """How int8 codes become features: `z = code * scale`, and in full `x = relu(mean + z @ components')`."""

    mean: Float[Tensor, " F"]
    components: Float[Tensor, "F P"]
    scale: Float[Tensor, " P"]

    def to(self, device: torch.device | str) -> "Projection":
        return Projection(self.mean.to(device), self.components.to(device), self.scale.to(device))


@dataclass(frozen=True, eq=False)
class PocketFeatures(Features):
    """Regions as 256 int8 codes of a PCA, unpacked when they are gathered: at most a fifth of float16."""

    codes: DenseFeatures
    projection: Projection
    form: Literal["full", "pca"] = "full"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(I, M, F): F is 1280 in full, 256 in the PCA form."""
        width = len(self.projection.mean if self.form == "full" else self.projection.scale)
        return *self.codes.shape[:2], width

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        codes, mask = self.codes.gather(rows)
        coordinates = codes * self.projection.scale
        if self.form == "pca":
            return coordinates, mask
        flat = torch.addmm(self.projection.mean, coordinates.flatten(0, 1), self.projection.components.T)
        return flat.relu_().unflatten(0, mask.shape), mask

    def to(self, device: torch.device | str) -> "PocketFeatures":
        """The codes and the projection on a device: they are never unpacked as a whole."""
        return PocketFeatures(self.codes.to(device), self.projection.to(device), self.form)

    @property
    def num_bytes(self) -> int:
        return self.codes.num_bytes

    def where(self, image: int) -> str:
        return self.codes.where(image)


def read_pocket(
    path: Path, report: Report, *, form: Literal["full", "pca"] = "full", regions: int | None = None
) -> Found:
    """The splits of a pocket folder.

    Args:
        form: "full" (1280 numbers, none negative, as a backbone gives them) or "pca" (256, centred).
        regions: keep the first regions only; the first 10 need no detector.
    """
    if regions is not None and regions < 1:
        raise SelhnError(f"regions is {regions}: keep at least one, or None for all")
    projection = read_projection(path / "projection.npz")
    full, reduced = projection.components.shape
    report.lines.append(f"projection.npz: {reduced} codes become {reduced} (pca) or {full} (full) numbers")
    splits = {}
    for name in SPLITS:
        with report.collecting():
            split = open_split(path / name, name, report, "i", regions)
            codes = cast(DenseFeatures, split.features)
            if codes.store.dtype != np.int8 or codes.store.ndim != 3 or codes.width != reduced:
                raise SelhnError(
                    f"{codes.path} is {codes.store.dtype} {codes.store.shape}, but projection.npz unpacks "
                    f"int8 codes of shape (images, regions, {reduced}): take both files from the same folder"
                )
            splits[name] = replace(split, features=PocketFeatures(codes, projection, form))
    return path.name, splits


def read_projection(path: Path) -> Projection:
    """Mean, components and scale, of sizes that fit each other and all finite."""
    names = ("mean", "components", "scale")
    mean, components, scale = found = [torch.from_numpy(array) for array in read_archive(path, names)]
    if mean.ndim != 1 or scale.ndim != 1 or components.shape != (len(mean), len(scale)):
        raise SelhnError(
            f"{path}: the shapes of {', '.join(names)}, {[tuple(array.shape) for array in found]}, do not "
            "fit: they must be (F), (F, P) and (P)"
        )
    for name, values in zip(names, found):
        if not bool(values.isfinite().all()):
            raise SelhnError(f"{path}: {name} holds NaN or infinite numbers: make the projection again")
    return Projection(mean, components, scale)


# Tried before precomp, whose files are there too.
register_format(
    "pocket",
    read_pocket,
    looks_like=lambda path: (path / "projection.npz").is_file(),
    files="projection.npz and train_ims.npy in int8",
)
