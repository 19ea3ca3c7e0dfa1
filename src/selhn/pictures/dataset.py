"""A folder of pictures, or of their features, as a data set: joined with captions, in our own format."""

import hashlib
import importlib
import io
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.sealed import digest_file
from selhn.base.types import StoredPrecision
from selhn.base.untrusted import open_array, read_archive
from selhn.data import Data, Split, write_native
from selhn.data.formats.captions import PictureTexts, match_texts, read_picture_texts
from selhn.data.formats.native import NativePrecision
from selhn.data.splits import SPLITS
from selhn.pictures.cache import CachedFeatures, FeatureCache, content_key, default_cache
from selhn.pictures.extraction import Extracted, extract_pictures
from selhn.pictures.extractor import Extractor, grid_boxes
from selhn.pictures.named_folders import name_for
from selhn.pictures.picture_files import (
    Found,
    find_pictures,
    missing_packages,
    read_bytes,
    why_other,
    writable,
)
from selhn.pictures.picture_report import PictureReport

PNG = b"\x89PNG"
ARRAYS = ("features", "x", "feat")
"""Names under which a `.npz` file may hold its features."""


def picture_split(
    folder: Path | str | Found,
    extractor: Extractor | None,
    captions: Path | str | None = None,
    *,
    cache: Path | None = None,
    precision: StoredPrecision = "float16",
    batch_size: int = 16,
    workers: int | None = None,
    quiet: bool = False,
) -> tuple[Split, PictureReport]:
    """All pictures of a folder as one split, named by their paths in it, with captions if there are some.

    Without an extractor the folder holds features, one `.npy` or `.npz` file per picture. All other arguments
    are those of `extract_pictures`.
    """
    how = {"precision": precision, "batch_size": batch_size, "workers": workers, "quiet": quiet}
    _, extracted, split, _ = _read_folder(folder, extractor, captions, cache, how)
    return split, extracted.report


def import_pictures(
    folder: Path | str | Found,
    out: Path | str,
    extractor: Extractor | None,
    captions: Path | str | None = None,
    *,
    precision: NativePrecision = "float32",
    cache: Path | None = None,
    cache_precision: StoredPrecision = "float16",
    batch_size: int = 16,
    workers: int | None = None,
    quiet: bool = False,
) -> PictureReport:
    """Write a folder of pictures as a data set; `pictures.json` in it says what happened to each file.

    Without an extractor the folder holds features, one `.npy` or `.npz` file per picture.
    Splits are those of the captions file, if it has some; pictures that it does not name are for training.
    Otherwise dev and test get a tenth of the pictures each, chosen by their content.

    Args:
        precision: of the features in the data set.
        cache: folder of computed features; by default one in the user's cache folder.
        cache_precision: of the features there.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SelhnError(f"{out} already exists: choose another name, or remove it first")
    how = {"precision": cache_precision, "batch_size": batch_size, "workers": workers, "quiet": quiet}
    root, extracted, whole, texts = _read_folder(folder, extractor, captions, cache, how)
    rows = _rows_of_splits(whole.image_names, extracted.features.keys, texts)
    train, dev, test = (replace(whole.some(torch.tensor(own)), name=name) for name, own in rows.items())
    write_native(Data(root.resolve().name, train, dev, test), out, precision=precision)
    told = extracted.report.write(root, out, None if extractor is None else extractor.name)
    if told is not None:
        name_for(out, digest_file(told), [root])  # so that a report may show these pictures
    return extracted.report


def import_rows(
    rows: Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Mapping[str, Any]]],
    out: Path | str,
    extractor: Extractor,
    *,
    image: str = "image",
    text: str = "caption",
    **how: Any,
) -> PictureReport:
    """Write rows of pictures and captions as a data set, such as a `Dataset` of Hugging Face, or a dict of its splits.

    Args:
        image: the column of the picture: {"bytes": ...}, a path, or a picture of Pillow.
        text: the column of its caption, or list of captions. Rows with the same picture are one image.
        how: all other arguments of `import_pictures`.
    """
    splits = rows if isinstance(rows, Mapping) else {"": rows}
    Path(out).absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=Path(out).absolute().parent) as beside:
        folder = Path(beside) / Path(out).name  # its name becomes that of the data set
        folder.mkdir()
        with open(folder / "captions.jsonl", "w", encoding="utf-8") as lines:
            for split, own in splits.items():
                for number, row in enumerate(_undecoded(own, image)):
                    if image not in row or text not in row:
                        raise NotFound(
                            f"row {number} has no {image!r} and {text!r}: it has {', '.join(map(str, row))}"
                        )
                    content = _content(row[image], f"{split} row {number}".strip())
                    name = f"{hashlib.sha256(content).hexdigest()[:32]}{'.png' if content[:4] == PNG else '.jpg'}"
                    (folder / name).write_bytes(content)
                    lines.write(
                        json.dumps({"image": name, "captions": row[text], "split": split or None}) + "\n"
                    )
        return import_pictures(folder, out, extractor, folder / "captions.jsonl", **how)


def _undecoded(rows: Iterable[Mapping[str, Any]], image: str) -> Iterable[Mapping[str, Any]]:
    """The rows with pictures as bytes, if the library can skip decoding: selhn has a process for that."""
    if not hasattr(rows, "cast_column"):
        return rows
    return rows.cast_column(image, importlib.import_module("datasets").Image(decode=False))


def _content(picture: Any, place: str) -> bytes:
    if isinstance(picture, Image.Image):
        written = io.BytesIO()
        picture.convert("RGB").save(written, "PNG")
        return written.getvalue()
    known = picture if isinstance(picture, Mapping) else {"path": picture}
    if isinstance(known.get("bytes"), bytes):
        return known["bytes"]
    if isinstance(known.get("path"), str | Path):
        return read_bytes(Path(known["path"]))
    raise SelhnError(
        f"{place} has a {type(picture).__name__} for a picture: give bytes, a path or a picture of Pillow"
    )


def _read_folder(
    folder: Path | str | Found,
    extractor: Extractor | None,
    captions: Path | str | None,
    cache: Path | None,
    how: Mapping[str, Any],
) -> tuple[Path, Extracted, Split, Mapping[str, PictureTexts]]:
    """The folder, its features and report on all files, both as one split, and texts by picture."""
    known = {} if captions is None else read_picture_texts(captions)
    if extractor is None:
        root = folder.folder if isinstance(folder, Found) else Path(folder)
        found = Found(root, [], [], [])
        extracted = collect_region_files(root, cache=cache, precision=how["precision"])
    else:
        found = (folder if isinstance(folder, Found) else find_pictures(folder)).without_videos()
        if not found.pictures:
            raise NotFound(f"{found.folder} holds no pictures: give a folder with JPEG, PNG or HEIC files")
        extracted = extract_pictures(found.pictures, extractor, cache=cache, root=found.folder, **how)
    if not extracted.paths:
        name, why = extracted.report.refused[0]
        raise SelhnError(f"no picture in {found.folder} can be read; of the first, {name}: {why}")
    names = [path.relative_to(found.folder).as_posix() for path in extracted.paths]
    texts, unmatched = match_texts(names, known)
    if captions is not None and not texts:
        raise SelhnError(
            f"no picture in {found.folder} is named in {captions}: it begins with {unmatched[0]!r}, "
            f"the folder with {names[0]!r}"
        )
    file = None if captions is None else Path(captions).resolve()
    refused = extracted.report.refused
    missing = missing_packages()
    unused = found.closed + [
        (path, why_other(path, missing)) for path in found.others if path.resolve() != file
    ]
    refused += [(writable(path, found.folder), why) for path, why in unused]
    refused += [(name, f"is named in {Path(str(captions)).name}, but not used") for name in unmatched]
    own_texts = [texts[name].texts if name in texts else () for name in names]
    image_of_text = torch.arange(len(names)).repeat_interleave(torch.tensor([len(own) for own in own_texts]))
    boxes = None
    if extractor is not None and extractor.detector is None:
        boxes = grid_boxes(extractor.cells).expand(len(names), -1, -1)
    every = [text for own in own_texts for text in own]
    split = Split("test", extracted.features, every, image_of_text, names, boxes)
    return found.folder, extracted, split, texts


def collect_region_files(
    folder: Path, *, cache: Path | None = None, precision: StoredPrecision = "float16"
) -> Extracted:
    """Features that another program wrote, one `.npy` or `.npz` file per picture.

    Files that cannot be read, or are not as wide as the first, are left out and named in the report.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".npy", ".npz") and path.is_file())
    if not paths:
        raise NotFound(f"{folder} holds no .npy or .npz files: give a folder with one per picture")
    store: FeatureCache | None = None
    used: dict[Path, bytes] = {}
    most, report = 0, PictureReport()
    for path in paths:
        try:
            key, regions = content_key(read_bytes(path)), read_regions(path)
            width = regions.shape[1]
            if store is None:
                store = FeatureCache(cache or default_cache(), f"files, {width}", width, precision)
            if width != store.width:
                raise SelhnError(f"its features are {width} wide, those before it {store.width}")
        except SelhnError as error:
            report.refused.append((path.relative_to(folder).as_posix(), str(error)))
            continue
        if key not in store:
            store.put({key: regions})
        used[path], most = key, max(most, len(regions))
    if store is None:
        name, why = report.refused[0]
        raise SelhnError(f"no array in {folder} can be read; of the first, {name}: {why}")
    report.used = len(used)
    return Extracted(list(used), CachedFeatures(store, list(used.values()), most), report)


def read_regions(path: Path) -> Float[Tensor, "M F"]:
    """Regions of one picture; a single vector is one region."""
    if path.suffix == ".npy":
        array = np.asarray(open_array(path, dims=(1, 2)), dtype=np.float32)
    else:
        for name in ARRAYS:
            with suppress(NotFound):
                array = read_archive(path, (name,))[0]
                break
        else:
            raise NotFound(
                f"{path} has no array called {' or '.join(ARRAYS)}: give its array of features one of these names"
            )
    if array.ndim not in (1, 2) or not np.isfinite(array).all():
        raise SelhnError(f"{path} has shape {array.shape} or numbers that are not finite")
    return torch.from_numpy(np.atleast_2d(array).copy())


def _rows_of_splits(
    names: Sequence[str], keys: Sequence[bytes], texts: Mapping[str, PictureTexts]
) -> dict[str, list[int]]:
    """Which pictures are in which split; pictures with the same content are always in the same split."""
    if any(texts[name].split for name in names if name in texts):
        split_of = [(texts[name].split if name in texts else None) or "train" for name in names]
    else:
        order = {key: number for number, key in enumerate(sorted(set(keys)))}
        held = max(1, len(order) // 10)
        split_of = [("dev", "test", "train")[min(2, order[key] // held)] for key in keys]
    if missing := [split for split in SPLITS if split not in split_of]:
        raise SelhnError(
            f"there would be no picture in {' and '.join(missing)}: a data set to train on needs all three "
            "splits; give more pictures, or only search them: selhn index"
        )
    return {split: [row for row, own in enumerate(split_of) if own == split] for split in SPLITS}
