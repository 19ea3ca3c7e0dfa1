"""The formats a data set may have on disk, and one door to all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import require_settings
from selhn.data.formats.inspection import Inspection, Opened
from selhn.data.formats.karpathy import read_karpathy
from selhn.data.formats.native import FeatureDtype, read_native, write_native
from selhn.data.formats.pocket import read_pocket
from selhn.data.formats.precomp import precomp_folder, read_precomp
from selhn.data.formats.tsv import read_tsv
from selhn.data.splits import Data

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Format:
    """A way to lay out a data set on disk."""

    looks_like: Callable[[Path], bool]
    read: Callable[..., Opened]
    files: str
    """What a person would look for."""


def has_file(path: Path, *patterns: str) -> bool:
    """Whether a folder has files for all patterns."""
    return path.is_dir() and all(any(path.glob(pattern)) for pattern in patterns)


# The first that fits is taken: a pocket folder has the files of a precomp folder too.
FORMATS: Mapping[str, Format] = {
    "native": Format(lambda path: has_file(path, "data.json"), read_native, "data.json (written by import_data)"),
    "pocket": Format(
        lambda path: has_file(path, "projection.npz"), read_pocket, "projection.npz beside train_ims.npy (int8)"
    ),
    "precomp": Format(
        lambda path: has_file(precomp_folder(path), "*_ims.npy") or has_file(precomp_folder(path), "*_caps.txt"),
        read_precomp,
        "train_ims.npy, train_caps.txt, train_ids.txt and so on (SCAN, VSE-infinity)",
    ),
    "tsv": Format(
        lambda path: ".tsv" in path.name or has_file(path, "*.tsv*"),
        read_tsv,
        "*.tsv beside a Karpathy .json (bottom-up attention; to import)",
    ),
    "karpathy": Format(
        lambda path: path.suffix == ".json" or has_file(path, "*.json", "*.npy"),
        read_karpathy,
        "dataset_*.json beside one .npy file of features",
    ),
}


def find_format(source: Path | str) -> tuple[Path, str]:
    """The path, and the name of the format that lies there."""
    path = Path(source)
    if not path.exists():
        raise NotFound(f"there is no file or folder {str(source)!r}: give a path, or 'world' for generated data")
    for name, known in FORMATS.items():
        if known.looks_like(path):
            return path, name
    wanted = "; ".join(f"{name}: {known.files}" for name, known in FORMATS.items())
    raise NotFound(
        f"{path} is not a data set in a known format. Looked for {wanted}. "
        f"For a folder of pictures: selhn data import {path} NEW_FOLDER"
    )


def load_data(source: Path | str, **options: Any) -> Data:
    """A data set: `"world"` is generated, a path is read in whichever format lies there.

    Options belong to the format: `images`, `seed` (world); `cut_dev`, `test` (precomp); `form`, `regions` (pocket);
    `features`, `max_captions`, `cut_dev` (karpathy).
    """
    if str(source) == "world":
        from selhn.data.world import make_world

        require_settings("the generated world", make_world, options)
        return make_world(**options)
    path, name = find_format(source)
    if name == "tsv":
        raise SelhnError(
            f"{path} is a TSV file, too slow to train from: convert it once with `selhn data import {path} NEW_FOLDER` "
            "and load that folder"
        )
    return read_data(path, name, options)


def import_data(
    source: Path | str, destination: Path | str, *, dtype: FeatureDtype = "float32", **options: Any
) -> Path:
    """Convert whatever `load_data` reads, and TSV files, into our own format; float16 halves the size."""
    if str(source) == "world":
        return write_native(load_data(source, **options), destination, dtype=dtype)
    path, name = find_format(source)
    return write_native(read_data(path, name, options), destination, dtype=dtype)


def read_data(path: Path, format_name: str, options: Mapping[str, Any]) -> Data:
    """A data set of a known format, complete or an error."""
    read = FORMATS[format_name].read
    require_settings(f"the {format_name} format", read, options, only_optional=True)
    opened = read(path, Inspection(strict=True), **options)
    missing = [name for name in SPLITS if name not in opened.splits]
    if missing:
        raise SelhnError(f"{path} has no {' and no '.join(missing)} split: a data set needs train, dev and test")
    train, dev, test = (opened.splits[name] for name in SPLITS)
    for split in (dev, test):
        if split.features.width != train.features.width:
            raise SelhnError(
                f"{path}: {split.name} features are {split.features.width} wide, those of train "
                f"{train.features.width}: take all splits from the same features"
            )
    return Data(opened.name, train, dev, test, opened.folds)
