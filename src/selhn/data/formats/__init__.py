"""The formats a data set may have on disk, and one door to all of them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import require_settings
from selhn.data.formats.data_report import Found, Report
from selhn.data.formats.karpathy import read_karpathy
from selhn.data.formats.native import NativePrecision, read_native, write_native
from selhn.data.formats.precomp import precomp_folder, read_precomp
from selhn.data.formats.tsv import read_tsv
from selhn.data.splits import SPLITS, Data
from selhn.data.world import make_world

DATASETS: Mapping[str, tuple[str, ...]] = {
    "world": (),
    "f8k": ("f8k_pocket", "f8k"),
    "f30k": ("f30k_precomp", "f30k", "f30k/precomp"),
    "coco": ("coco_precomp", "coco", "coco/precomp"),
}
"""Data sets with a name, and the folders they are looked for in: below $SELHN_DATA, then below ./data."""


@dataclass(frozen=True)
class Format:
    """A way to lay out a data set."""

    looks_like: Callable[[Path], bool]
    read: Callable[..., Found]
    files: str
    """What a person would look for."""


def _has_file(path: Path, *patterns: str) -> bool:
    return path.is_dir() and all(any(path.glob(pattern)) for pattern in patterns)


@wraps(make_world)  # whose parameters are the settings
def _read_world(path: Path, report: Report, **settings: Any) -> Found:
    data = make_world(**settings)
    return data.name, {name: data[name] for name in SPLITS}


FORMATS: dict[str, Format] = {
    "world": Format(lambda path: path == Path("world"), _read_world, "the word world: generated data"),
    "native": Format(lambda path: _has_file(path, "data.json"), read_native, "data.json"),
    "precomp": Format(
        lambda path: any(_has_file(precomp_folder(path), files) for files in ("*_ims.npy", "*_caps.txt")),
        read_precomp,
        "train_ims.npy, train_caps.txt and so on, as in SCAN and VSE-infinity",
    ),
    "tsv": Format(
        lambda path: ".tsv" in path.name or _has_file(path, "*.tsv*"),
        read_tsv,
        "*.tsv of bottom-up attention beside a Karpathy .json; import it first",
    ),
    "karpathy": Format(
        lambda path: path.suffix == ".json" or _has_file(path, "*.json", "*.npy"),
        read_karpathy,
        "dataset_*.json beside one .npy file of features",
    ),
}


def register_format(
    name: str, read: Callable[..., Found], looks_like: Callable[[Path], bool], files: str = ""
) -> None:
    """Add a format of your own: `load_data` and the command line then read it.

    The first format that fits is taken. Yours is tried before all that are there, so `looks_like` should be strict.

    Args:
        read: `read(path, report, **settings)` gives the name of the data and its splits by name. It raises what is
            wrong, and adds to `report.lines` what a person should know.
        looks_like: whether a file or folder is in this format, without reading much of it.
        files: what a person would look for.
    """
    if not isinstance(name, str) or not callable(read) or not callable(looks_like):
        raise SelhnError(
            f"register_format takes a name and two functions, got {name!r}, {read!r} and {looks_like!r}: "
            'register_format("mine", read_mine, looks_like=lambda path: (path / "mine.json").is_file())'
        )
    if name in FORMATS:
        raise SelhnError(f"there is already a format called {name!r}: register yours under another name")
    others = dict(FORMATS)
    FORMATS.clear()
    FORMATS.update({name: Format(looks_like, read, files), **others})


def find_format(source: Path | str) -> tuple[Path, str]:
    """The path of a file, a folder or a named data set (`DATASETS`), and the name of its format."""
    roots = Path(os.environ.get("SELHN_DATA", "data")), Path("data")
    places = [root / folder for root in roots for folder in DATASETS.get(str(source), ())]
    path = next((place for place in places if place.is_dir()), Path(source))
    for name, known in FORMATS.items():
        if known.looks_like(path) and (path.exists() or name == "world"):
            return path, name
    if not path.exists() and places:
        raise NotFound(
            f"the data set {source!r} was not found (looked for {', '.join(map(str, dict.fromkeys(places)))}): give "
            "its folder with data=DIR, or the folder above it in SELHN_DATA"
        )
    if not path.exists():
        raise NotFound(f"no file or folder {str(source)!r}: give a path, or 'world' for generated data")
    wanted = "; ".join(f"{name} ({known.files})" for name, known in FORMATS.items() if name != "world")
    raise NotFound(
        f"{path} is not a data set in a known format. If it holds pictures, make a data set of them: "
        f"selhn data import {path} NEW_FOLDER. Known formats: {wanted}"
    )


def load_data(source: Path | str, **settings: Any) -> Data:
    """A data set: `"world"` is generated, a path or a name in `DATASETS` is read in whichever format it has.

    Settings belong to the format: `images`, `seed` (world); `cut_dev`, `test` (precomp); `form`, `regions`
    (pocket); `features`, `max_captions`, `cut_dev` (karpathy).
    """
    path, name = find_format(source)
    if name == "tsv":
        raise SelhnError(
            f"{path} is a TSV file, too slow to train from: convert it once with `selhn data import {path} "
            "NEW_FOLDER` and load that folder"
        )
    return replace(_read_data(path, name, settings), source=str(path), settings=settings)


def import_data(
    source: Path | str, out: Path | str, *, precision: NativePrecision = "float32", **settings: Any
) -> Path:
    """Convert whatever `load_data` reads, and TSV files, into our own format; float16 halves the size."""
    return write_native(_read_data(*find_format(source), settings), out, precision=precision)


def _read_data(path: Path, format_name: str, settings: Mapping[str, Any]) -> Data:
    report = Report()
    settings = require_settings(
        f"the {format_name} format", FORMATS[format_name].read, settings, only_optional=True
    )
    name, splits = read_splits(path, format_name, report, **settings)
    report.raise_problems()
    return Data(name, splits["train"], splits["dev"], splits["test"])


def read_splits(path: Path, format_name: str, report: Report, **settings: Any) -> Found:
    """The splits that could be read; the report has their problems and those between them."""
    name, splits = FORMATS[format_name].read(path, report, **settings)
    missing = [split for split in SPLITS if split not in splits]
    if missing and not report.problems:  # if its files were tried and failed, that is the problem to fix
        report.problems.append(
            f"{path} has no {' and no '.join(missing)} split: data needs train, dev and test"
        )
    first = next(iter(splits.values()), None)
    report.problems += [
        f"{path}: {other.name} features are {other.features.width} wide, those of {first.name} "
        f"{first.features.width}: take all splits from the same features"
        for other in splits.values()
        if first is not None and other.features.width != first.features.width
    ]
    return name, splits
