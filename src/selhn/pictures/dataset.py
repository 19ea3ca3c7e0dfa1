"""A folder of pictures as a data set: found, extracted, joined with their captions, written in our own format."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from selhn.base.errors import SelhnError
from selhn.data import Data, Split, write_native
from selhn.data.formats.captions import PictureTexts, match_texts, read_picture_texts
from selhn.data.formats.native import NativePrecision
from selhn.pictures.cache import CachedFeatures, Storage
from selhn.pictures.extraction import Extracted, PictureReport, extract_pictures
from selhn.pictures.extractor import Extractor
from selhn.pictures.files import find_pictures
from selhn.pictures.region_files import collect_region_files, find_region_files
from selhn.pictures.regions import grid_boxes

REPORT_FILE = "pictures.json"
SHOWN = 20


def picture_split(
    folder: Path | str,
    extractor: Extractor | None,
    captions: Path | str | None = None,
    *,
    cache: Path | None = None,
    storage: Storage = "float16",
    batch_size: int = 16,
    workers: int = 2,
    quiet: bool = False,
) -> tuple[Split, PictureReport]:
    """All pictures of a folder as one split, named by their paths in it, with their captions where there are some.

    Without an extractor the folder holds features, one `.npy` or `.npz` file a picture.
    """
    extracted, texts = _extracted_folder(Path(folder), extractor, captions, cache, storage, batch_size, workers, quiet)
    return _split("test", range(len(extracted.paths)), extracted, texts, Path(folder), extractor), extracted.report


def import_pictures(
    folder: Path | str,
    destination: Path | str,
    extractor: Extractor | None,
    captions: Path | str | None = None,
    *,
    dtype: NativePrecision = "float32",
    cache: Path | None = None,
    storage: Storage = "float16",
    batch_size: int = 16,
    workers: int = 2,
    quiet: bool = False,
) -> PictureReport:
    """Write a folder of pictures as a data set; `pictures.json` in it says what became of every file.

    Without an extractor the folder holds features, one `.npy` or `.npz` file a picture.
    Splits are those of the captions file, where it has some, and pictures it does not know are for training; else a
    tenth of the pictures each is kept for dev and test, chosen by their content and not by their names.
    """
    folder, destination = Path(folder), Path(destination)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise SelhnError(f"{destination} is there already: choose another name, or remove it first")
    extracted, texts = _extracted_folder(folder, extractor, captions, cache, storage, batch_size, workers, quiet)
    names = [path.relative_to(folder).as_posix() for path in extracted.paths]
    rows = _rows_of_splits(names, extracted.keys, texts)
    train, dev, test = (_split(name, found, extracted, texts, folder, extractor) for name, found in rows.items())
    write_native(Data(folder.resolve().name, train, dev, test), destination, precision=dtype)
    write_report(extracted.report, folder, destination)
    return extracted.report


def write_report(report: PictureReport, pictures: Path, folder: Path) -> None:
    """Keep in a folder where its pictures are and what became of every file."""
    about = {"folder": str(pictures.resolve()), "used": report.used, "notes": report.notes, "left out": report.refused}
    (folder / REPORT_FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe_report(report: PictureReport, where: Path | str = REPORT_FILE) -> str:
    """The report, of long lists only the beginning; `where` says what holds all."""
    more = max(0, len(report.notes) - SHOWN) + max(0, len(report.refused) - SHOWN)
    short = str(replace(report, notes=report.notes[:SHOWN], refused=report.refused[:SHOWN]))
    head, _, rest = short.partition("\n")
    counted = str(report).partition("\n")[0]
    lines = [counted, *([rest] if rest else []), *([f"  and {more} more in {where}"] if more else [])]
    return "\n".join(lines)


def _extracted_folder(
    folder: Path,
    extractor: Extractor | None,
    captions: Path | str | None,
    cache: Path | None,
    storage: Storage,
    batch_size: int,
    workers: int,
    quiet: bool,
) -> tuple[Extracted, dict[str, PictureTexts]]:
    """Features and texts of a folder; the report names everything that was passed over."""
    known = read_picture_texts(captions) if captions is not None else {}
    others: list[Path] = []
    closed: list[tuple[Path, str]] = []
    if extractor is None:
        extracted = collect_region_files(find_region_files(folder), cache=cache, storage=storage, root=folder)
    else:
        paths, others, closed = find_pictures(folder)
        if not paths:
            raise SelhnError(f"{folder} holds no pictures: give a folder with JPEG, PNG, WebP, GIF, BMP or TIFF files")
        extracted = extract_pictures(
            paths,
            extractor,
            cache=cache,
            storage=storage,
            batch_size=batch_size,
            workers=workers,
            quiet=quiet,
            root=folder,
        )
    if not extracted.paths:
        name, why = extracted.report.refused[0]
        raise SelhnError(f"no picture in {folder} can be read; of the first, {name}: {why}")
    names = [path.relative_to(folder).as_posix() for path in extracted.paths]
    texts, unmatched = match_texts(names, known)
    own = None if captions is None else Path(captions).resolve()
    strange = [
        (path.relative_to(folder).as_posix(), "its name is not that of a picture")
        for path in others
        if path.resolve() != own
    ]
    lost = [(name, f"has captions in {Path(str(captions)).name}, but no such picture is used") for name in unmatched]
    if captions is not None and not texts:
        raise SelhnError(
            f"no picture in {folder} is named in {captions}: it begins with {unmatched[0]!r}, "
            f"the folder with {names[0]!r}"
        )
    shut = [(path.relative_to(folder).as_posix(), why) for path, why in closed]
    report = replace(extracted.report, refused=(*extracted.report.refused, *shut, *strange, *lost))
    return replace(extracted, report=report), texts


def _rows_of_splits(
    names: Sequence[str], keys: Sequence[bytes], texts: dict[str, PictureTexts]
) -> dict[str, list[int]]:
    """Which pictures are in which split; pictures of the same content are never in two."""
    given = {texts[name].split for name in names if name in texts} - {None}
    if given:
        rows: dict[str, list[int]] = {"train": [], "dev": [], "test": []}
        for row, name in enumerate(names):
            rows[(texts[name].split if name in texts else None) or "train"].append(row)
    else:
        order = {key: place for place, key in enumerate(sorted(set(keys)))}
        held = max(1, len(order) // 10)
        places = ["dev" if order[key] < held else "test" if order[key] < 2 * held else "train" for key in keys]
        rows = {
            split: [row for row, place in enumerate(places) if place == split] for split in ("train", "dev", "test")
        }
    missing = [split for split, found in rows.items() if not found]
    if missing:
        raise SelhnError(
            f"there would be no picture in {' and '.join(missing)}: a data set to train on needs all three splits; "
            "give more pictures, or only search them: selhn index"
        )
    return rows


def _split(
    name: str,
    rows: Sequence[int],
    extracted: Extracted,
    texts: dict[str, PictureTexts],
    folder: Path,
    extractor: Extractor | None,
) -> Split:
    names = [extracted.paths[row].relative_to(folder).as_posix() for row in rows]
    captions = [texts[picture].texts if picture in texts else () for picture in names]
    features = CachedFeatures(
        extracted.features.cache, [extracted.keys[row] for row in rows], extracted.features.num_regions
    )
    boxes = None
    if extractor is not None and extractor.detector is None:
        boxes = grid_boxes(extractor.cells).expand(len(names), -1, -1)
    return Split(
        name,
        features,
        [text for found in captions for text in found],
        torch.arange(len(names)).repeat_interleave(torch.tensor([len(found) for found in captions])),
        names,
        boxes,
    )
