"""Our own folder, which any program can write.

data.json                what is there: version, name, folds, and for each split the names of its files
{split}_features.npy     (images, regions, F), or (regions of all images, F) together with
{split}_offsets.npy      (images + 1): image i has the rows offsets[i] to offsets[i + 1]
{split}_texts.jsonl      {"image": 0, "text": "a dog jumps"}   one per line, any number per image
{split}_images.jsonl     {"name": "dog.jpg"}                   one per line
{split}_boxes.npy        (images, regions, 4): x1, y1, x2, y2 as shares of width and height; may be missing
{split}_adjacency.npy    and other side inputs (`SIDE_INPUTS`), a row per image or per text; may be missing
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.base.folders import new_folder
from selhn.base.names import require_kind
from selhn.base.types import SIDE_INPUTS
from selhn.base.untrusted import open_array, read_json, read_json_lines, some
from selhn.data.features import DenseFeatures, Features, RaggedFeatures
from selhn.data.formats.data_report import Found, Report, each
from selhn.data.formats.side_files import read_side_input
from selhn.data.splits import Data, Split, refuse_not_finite

FORMAT, VERSION = "selhn-data", 1
HEADER_BYTES = 128

NativePrecision = Literal["float32", "float16"]


def write_native(data: Data, out: Path | str, *, precision: NativePrecision = "float32") -> Path:
    """Write a data set; the folder appears only when it is complete."""
    require_kind("precision", precision, NativePrecision)
    out = Path(out)
    with new_folder(out, replace_empty=True) as folder:
        splits = {split.name: _write_split(folder, split, precision) for split in data.splits}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "name": data.name,
            "folds": data.test.folds,
            "feature_dtype": precision,
            "splits": splits,
        }
        (folder / "data.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return out


def _write_split(folder: Path, split: Split, precision: NativePrecision) -> dict[str, Any]:
    """Write the files of one split; returns its entry in data.json."""
    mask = _write_features(folder / f"{split.name}_features.npy", split, precision)
    counts = mask.sum(1)
    entry: dict[str, Any] = {
        "num_images": split.num_images,
        "num_texts": split.num_texts,
        "features": f"{split.name}_features.npy",
        "texts": f"{split.name}_texts.jsonl",
        "images": f"{split.name}_images.jsonl",
    }
    if counts.min() != counts.max():
        entry["offsets"] = f"{split.name}_offsets.npy"
        np.save(folder / entry["offsets"], np.append(0, counts.cumsum()))
    # Like the features: without padding in the middle, and without places that are padding in all images.
    real_first = torch.from_numpy(mask).int().argsort(dim=1, descending=True, stable=True)
    images, places = torch.arange(split.num_images)[:, None], real_first[:, : counts.max()]
    if split.boxes is not None:
        entry["boxes"] = f"{split.name}_boxes.npy"
        np.save(folder / entry["boxes"], split.boxes.cpu()[images, places].numpy().astype(np.float32))
    for name in split.given_side:
        entry[name] = f"{split.name}_{name}.npy"
        value = split.side[name].cpu()
        for axis, of in enumerate(SIDE_INPUTS[name].axes.split(), 1):
            if of == "M":
                value = value.movedim(axis, 1)[images, places].movedim(1, axis)
        np.save(folder / entry[name], value.numpy())
    texts = zip(split.image_of_text.tolist(), split.captions)
    _write_json_lines(folder / entry["texts"], ({"image": image, "text": text} for image, text in texts))
    _write_json_lines(folder / entry["images"], ({"name": name} for name in split.image_names))
    return entry


def _write_json_lines(path: Path, objects: Iterable[dict[str, Any]]) -> None:
    # JSON files may contain half a character (a lone surrogate); it is written as the escape it came from.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in objects)


def _write_features(path: Path, split: Split, precision: NativePrecision) -> npt.NDArray[np.bool_]:
    """Write features block by block, images without padding; returns the mask (I, M) of what was written."""
    features, largest = split.features, float(np.finfo(precision).max)
    masks = []
    with path.open("wb") as file:
        file.write(b"\0" * HEADER_BYTES)
        for images, (regions, mask) in features.in_blocks():
            refuse_not_finite(split, images, regions.masked_fill(~mask[..., None], 0), largest)
            file.write(regions[mask].cpu().numpy().astype(precision).tobytes())
            masks.append(mask.cpu().numpy())
        number = np.concatenate(masks).sum(1)
        dense = number.min() == number.max()
        rows = (len(number), int(number[0])) if dense else (int(number.sum()),)
        # Only now is it known which shape the file has.
        file.seek(0)
        header = {"descr": np.dtype(precision).newbyteorder("<").str, "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header | {"shape": (*rows, features.width)})
        assert file.tell() == HEADER_BYTES  # numpy leaves space for the longest first axis
    return np.concatenate(masks)


def read_native(path: Path, report: Report) -> Found:
    """The splits of our own folder."""
    file = path / "data.json"
    content = read_json(file)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise SelhnError(
            f"{file}: format {content.get('format')!r}, version {content.get('version')!r} are not "
            f"{FORMAT!r}, {VERSION}: import the data again with this selhn"
        )
    folds = content.get("folds", 1)
    if not isinstance(content.get("splits"), dict) or not isinstance(folds, int) or folds < 1:
        raise SelhnError(
            f"{file}: needs 'splits', which maps train, dev and test to the names of their files, and 'folds', "
            "a whole number from 1 up: docs/data.md has an example"
        )
    splits = {}
    for name, entry in content["splits"].items():
        with report.collecting():
            split = _open_native_split(path, name, entry, report)
            splits[name] = replace(split, folds=folds) if name == "test" else split
    return str(content.get("name", path.name)), splits


def _open_native_split(folder: Path, name: str, entry: Any, report: Report) -> Split:
    paths = {}
    for kind in ("features", "texts", "images", "offsets", *SIDE_INPUTS):
        file = entry.get(kind) if isinstance(entry, dict) else None
        if file is None and kind not in ("features", "texts", "images"):
            continue
        # A name that leads out of the folder would read a file nobody meant.
        if not isinstance(file, str) or Path(file).name != file:
            raise Damaged(f"{folder / 'data.json'}: split {name!r} needs {kind!r}, a plain file name")
        paths[kind] = folder / file
    features, texts, images = each(
        lambda: _open_features(paths),
        lambda: read_json_lines(paths["texts"], image=int, text=str),
        lambda: read_json_lines(paths["images"], name=str),
    )
    owners, boxes = [text["image"] for text in texts], None
    with report.collecting():
        empty = [number for number, text in enumerate(texts, 1) if not text["text"].strip()]
        if empty:
            raise SelhnError(f"{paths['texts']}: empty texts in line {some(empty)}: remove the lines")
    outside = [n for n, image in enumerate(owners, 1) if not 0 <= image < features.num_images]
    if outside:
        raise SelhnError(
            f"{paths['texts']}, line {outside[0]}: there is no image {owners[outside[0] - 1]}: "
            f"the {features.num_images} images are numbered 0 to {features.num_images - 1}"
        )
    if len(images) != features.num_images:
        raise SelhnError(
            f"{paths['images']} has {len(images)} lines for {features.num_images} images: write one per image"
        )
    with report.collecting():
        boxes = _open_boxes(paths["boxes"], features) if "boxes" in paths else None
    captions, names = [text["text"] for text in texts], [image["name"] for image in images]
    side = {kind: partial(read_side_input, paths[kind], kind) for kind in SIDE_INPUTS if kind in paths}
    side.pop("boxes", None)
    return Split(
        name, features, captions, torch.tensor(owners, dtype=torch.int64), names, boxes, given_side=side
    )


def _open_features(paths: dict[str, Path]) -> DenseFeatures | RaggedFeatures:
    """Features, with offsets if their numbers of regions differ."""
    if "offsets" not in paths:
        return DenseFeatures(open_array(paths["features"]), path=paths["features"])
    offsets = torch.from_numpy(open_array(paths["offsets"], "iu", (1,)).astype(np.int64))
    return RaggedFeatures.of(open_array(paths["features"], dims=(2,)), offsets, paths["features"])


def _open_boxes(path: Path, features: Features) -> torch.Tensor:
    boxes = torch.from_numpy(open_array(path, "f", (3,)).astype(np.float32))
    if boxes.shape != (features.num_images, features.num_regions, 4):
        raise SelhnError(
            f"{path} has shape {tuple(boxes.shape)} for {features.num_images} images of "
            f"{features.num_regions} regions: give four numbers for each region, "
            "or remove the file and its name in data.json"
        )
    return boxes
