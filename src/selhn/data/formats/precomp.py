"""The `*_precomp` folders of SCAN and VSE-infinity: `{split}_ims.npy`, `{split}_caps.txt`, `{split}_ids.txt`.

What differs between the public folders is detected: whether an image has one row or a row for each of its
captions, how many captions it has, and whether ids are given by image or by caption. Nothing is copied:
features stay in their file and each image is read once.
"""

from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.untrusted import open_array, read_integers, read_json, read_lines, some
from selhn.data.features import DenseFeatures
from selhn.data.formats.data_report import Found, Report, each
from selhn.data.formats.side_files import side_files
from selhn.data.splits import COCO_FOLDS, Split

# Official: every public program validates on the first 5,000 captions of dev, that is 1,000 images.
DEV_IMAGES = 1000
# Rows that are compared to find how often an image is repeated, and groups that are compared to confirm it.
COMPARED_ROWS = 60
COMPARED_GROUPS = 40


@dataclass(frozen=True)
class RowLayout:
    """Which row of the features is image i, and which image text j belongs to."""

    rows: Int[Tensor, " I"]
    image_of_text: Int[Tensor, " T"]
    words: str


def read_precomp(path: Path, report: Report, *, cut_dev: bool = True, test: str | None = None) -> Found:
    """The splits of a precomp folder.

    Args:
        cut_dev: keep the first 1,000 images of dev only, as every public program does.
        test: files of the test split; by default `testall` (COCO, in five folds) if it exists, else `test`.
    """
    folder = precomp_folder(path)
    stem = test or ("testall" if any(folder.glob("testall_*")) else "test")
    splits = {}
    for name, files in (("train", "train"), ("dev", "dev"), ("test", stem)):
        with report.collecting():
            splits[name] = open_split(folder / files, name, report)
    if cut_dev and "dev" in splits:
        splits["dev"] = splits["dev"].first(cut_images("dev", splits["dev"].num_images, report))
    if stem == "testall" and (folder / "test_ims.npy").exists():
        report.lines.append("test_*: not used, because it is the first fifth of testall_*")
    if stem == "testall" and "test" in splits and splits["test"].num_images % COCO_FOLDS == 0:
        splits["test"] = replace(splits["test"], folds=COCO_FOLDS)
    return folder.name if folder.name != "precomp" else folder.parent.name, splits


def precomp_folder(folder: Path) -> Path:
    """The folder itself or, as VSE-infinity has it, the folder `precomp` in it."""
    inner = folder / "precomp"
    return inner if inner.is_dir() and not any(folder.glob("*_ims.npy")) else folder


def open_split(files: Path, name: str, report: Report, kinds: str = "f", regions: int | None = None) -> Split:
    """The split whose files begin with this path; `kinds` of numbers are those of `open_array`.

    With `regions`, the first of an image are kept.
    """
    path = Path(f"{files}_ims.npy")
    array, captions, ids = each(
        lambda: open_array(path, kinds),
        lambda: _read_captions(Path(f"{files}_caps.txt")),
        lambda: _read_ids(files, report),
    )
    report.lines.append(f"{path.name}: {len(array):,} rows, {array.dtype}, shape {array.shape[1:]} each")
    array = array[:, :regions]
    layout = _find_layout(files, array, len(captions), ids)
    report.lines.append(f"{path.name}: {layout.words}")
    names, boxes = [f"{files.name} row {row}" for row in layout.rows.tolist()], None
    with report.collecting():
        names = _names_of_images(files, layout, ids, len(array)) or names
    features = DenseFeatures(array, layout.rows, path=path)
    with report.collecting():
        boxes = _read_boxes(files, layout, features.num_regions, len(array), report)
    side = side_files(files, layout.rows, len(array), features.num_regions)
    return Split(name, features, captions, layout.image_of_text, names, boxes, given_side=side)


def cut_images(name: str, number: int, report: Report) -> int:
    """How many images of a split are kept if it is cut as dev is."""
    if number > DEV_IMAGES:
        report.lines.append(
            f"{name}: the first {DEV_IMAGES:,} of {number:,} images are used, as in every public program "
            "(cut_dev=False keeps all)"
        )
    return min(number, DEV_IMAGES)


def _read_captions(path: Path) -> list[str]:
    """One caption per line, none of them empty."""
    lines = read_lines(path)
    if not lines:
        raise SelhnError(f"{path} is empty: it should have one caption per line")
    empty = [number for number, line in enumerate(lines, 1) if not line]
    if empty:
        raise SelhnError(
            f"{path}: empty captions in line {some(empty)}: write a caption there, "
            "or remove the image (deleting only the line would shift all captions after it)"
        )
    return lines


def _read_ids(files: Path, report: Report) -> list[str]:
    """The ids, unchanged; none, with a warning, if the file does not exist."""
    path = Path(f"{files}_ids.txt")
    if path.exists():
        return read_lines(path)
    report.warnings.append(f"{path} is missing: images are named by row, and overlap of splits is not seen")
    return []


def _find_layout(files: Path, array: npt.NDArray[Any], num_captions: int, ids: list[str]) -> RowLayout:
    rows, given = len(array), Path(f"{files}_image_of_text.txt")
    if given.exists():
        owners = read_integers(given)
        if len(owners) != num_captions or max(owners) >= rows:
            raise SelhnError(
                f"{given} has {len(owners)} lines up to image {max(owners, default=0)}, for {num_captions} "
                f"captions and {rows} rows of features: give for each caption its row, counted from 0"
            )
        words = f"one row per image; captions follow {given.name}"
        return RowLayout(torch.arange(rows), torch.tensor(owners), words)
    if rows == num_captions:
        return _layout_of_repeated_rows(files, array, ids)
    if num_captions % rows == 0:
        number = num_captions // rows
        owner = torch.arange(num_captions) // number
        return RowLayout(torch.arange(rows), owner, f"one row per image, {number} consecutive captions each")
    raise SelhnError(
        f"{files}_ims.npy has {rows} rows and {files}_caps.txt {num_captions} captions: neither one row per "
        f"caption nor equally many captions per row: complete the shorter file, or write {given.name} with "
        "the row of each caption, counted from 0"
    )


def _layout_of_repeated_rows(files: Path, array: npt.NDArray[Any], ids: list[str]) -> RowLayout:
    """As many rows as captions: each image is repeated for each of its captions, or has one caption only."""
    total = len(array)
    head = np.asarray(array[:COMPARED_ROWS])
    changes = [row for row in range(1, len(head)) if not np.array_equal(head[row], head[row - 1])]
    # Neighbouring images may be copies; the changes still fall on multiples of the number of captions.
    each = gcd(*changes, total) if changes else total
    starts = np.arange(0, total, each)
    if len(ids) == total:
        by_id = np.flatnonzero([True, *(ids[row] != ids[row - 1] for row in range(1, total))])
        starts = by_id if len(by_id) < total else starts
    if len(starts) == total and len(changes) < len(head) - 1:
        alike = next(row for row in range(1, len(head)) if row not in changes)
        raise SelhnError(
            f"{files}_ims.npy, row {alike}: repeats row {alike - 1}, but not every image is repeated equally "
            f"often, and the ids do not separate them: write {files.name}_image_of_text.txt with the row of "
            "each caption, counted from 0"
        )
    counts = np.diff(np.append(starts, total))
    sample = np.unique(np.linspace(0, len(starts) - 1, COMPARED_GROUPS).astype(int))
    for first, count in zip(starts[sample], counts[sample]):
        group = np.asarray(array[first : first + min(count, COMPARED_ROWS)])
        different = [row for row in range(1, len(group)) if not np.array_equal(group[row], group[0])]
        if different:
            raise SelhnError(
                f"{files}_ims.npy, row {first + different[0]}: differs from row {first}, but the ids or the "
                "first rows say that both are one image: repeat each image for each caption, or keep one "
                f"row per image and write {files.name}_image_of_text.txt"
            )
    owner = torch.from_numpy(np.repeat(np.arange(len(starts)), counts))
    times = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    words = f"one row per caption: each image is there {times} times and is read once"
    if len(starts) == total:
        words = "one row and one caption per image"
    return RowLayout(torch.from_numpy(starts), owner, words)


def _names_of_images(files: Path, layout: RowLayout, ids: list[str], num_rows: int) -> list[str]:
    """The id of each image, as a file name if `id_mapping.json` knows it."""
    if not ids:
        return []
    images, texts = len(layout.rows), len(layout.image_of_text)
    if len(ids) == num_rows:
        ids = [ids[row] for row in layout.rows.tolist()]
    elif len(ids) == texts:
        id_of = dict(zip(reversed(layout.image_of_text.tolist()), reversed(ids)))  # that of its first caption
        ids = [id_of.get(row, f"row {row}") for row in range(images)]
    elif len(ids) != images:
        raise SelhnError(
            f"{files}_ids.txt has {len(ids)} lines for {images} images and {texts} captions: "
            "give one id per image, or one per caption"
        )
    for folder in (files.parent, files.parent.parent):
        if (folder / "id_mapping.json").is_file():
            known = read_json(folder / "id_mapping.json")
            return [str(known.get(name, name)) for name in ids]
    return ids


def _read_boxes(
    files: Path, layout: RowLayout, num_regions: int, num_rows: int, report: Report
) -> Float[Tensor, "I M 4"] | None:
    """The boxes as shares of width and height; None if they, or the sizes of the images, are missing."""
    path = Path(f"{files}_boxes.npy")
    if not path.exists():
        return None
    array = open_array(path, "fiu", (3,))
    if len(array) not in (num_rows, len(layout.rows)) or array.shape[1] < num_regions or array.shape[2] < 4:
        raise SelhnError(
            f"{path} has shape {array.shape} beside features of {num_rows} rows and {num_regions} regions: "
            "give (rows, regions, 4 or more), x1 y1 x2 y2 first, or remove the file"
        )
    rows = layout.rows.numpy() if len(array) == num_rows else np.arange(len(layout.rows))
    boxes = array[rows, :num_regions, :4].astype(np.float32)
    if array.dtype == np.uint8:
        return torch.from_numpy(boxes / 255)
    if boxes.max() <= 1:
        return torch.from_numpy(boxes)
    sizes_path = Path(f"{files}_img_sizes.npy")
    if not sizes_path.exists():
        report.warnings.append(
            f"{path} is in pixels and {sizes_path.name} is missing: the boxes are left out"
        )
        return None
    sizes = open_array(sizes_path, "fiu", (2,))
    if len(sizes) != len(array) or sizes.shape[1] < 2:
        raise SelhnError(
            f"{sizes_path} has shape {sizes.shape}: give width and height per row of {path.name}"
        )
    width_height = sizes[rows, :2].astype(np.float32)
    return torch.from_numpy(boxes / np.maximum(1, np.tile(width_height, 2))[:, None, :])
