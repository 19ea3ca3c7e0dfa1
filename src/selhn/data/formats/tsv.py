"""Bottom-up-attention TSV files: one image a line with its boxes and features in base64.

Such a file cannot be mapped into memory, so it is a source for `import_data` and nothing to train from. It has neither
captions nor splits: a Karpathy file gives both.

Reference: Anderson et al., "Bottom-Up and Top-Down Attention for Image Captioning and VQA", CVPR 2018.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.data.features import converted
from selhn.data.formats.inspection import Inspection, Opened
from selhn.data.formats.karpathy import (
    MAX_CAPTIONS,
    CaptionedImage,
    make_split,
    numbers_of_splits,
    only_file,
    read_captioned_images,
    usual_folds,
)
from selhn.data.formats.reading import require_file

FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
# 100 boxes of 2048 floats take 1.1 MB in base64.
MAX_LINE_BYTES = 64 * 2**20
# How a file may name an image of the Karpathy file, most telling first.
NAMES_OF_IMAGE: tuple[Callable[[CaptionedImage], str], ...] = (
    lambda image: image.cocoid,
    lambda image: image.filename,
    lambda image: PurePath(image.filename).stem,
    lambda image: image.imgid,
)


@dataclass(frozen=True)
class TsvRow:
    """Where the line of an image is, and what was small enough to keep."""

    path: Path
    line: int
    position: int
    boxes: npt.NDArray[np.float32]
    """Shares of width and height, (boxes, 4)."""


@dataclass(frozen=True)
class TsvFeatures:
    """Features decoded from their lines one image at a time: for conversion only."""

    rows: Sequence[TsvRow]
    num_regions: int
    width: int

    @property
    def num_images(self) -> int:
        """I."""
        return len(self.rows)

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features (zero where an image has fewer regions) and mask of some images."""
        regions = torch.zeros(len(rows), self.num_regions, self.width)
        mask = torch.zeros(regions.shape[:2], dtype=torch.bool)
        for n, row in enumerate(rows.tolist()):
            found = read_features(self.rows[row])
            if found.shape[1] != self.width:
                raise SelhnError(
                    f"{self.where(row)}: features are {found.shape[1]} wide, those of the first image {self.width}"
                )
            regions[n, : len(found)] = torch.from_numpy(found)
            mask[n, : len(found)] = True
        return converted(regions, dtype), mask

    def to(self, device: torch.device | str) -> "TsvFeatures":
        """Refused: such a file is converted first."""
        raise SelhnError("a TSV file is no store to train from: convert it with selhn.data.import_data")

    @property
    def num_bytes(self) -> int:
        """Size once decoded."""
        return 4 * self.width * sum(len(row.boxes) for row in self.rows)

    def where(self, image: int) -> str:
        """The place of an image in its file."""
        return f"{self.rows[image].path}, line {self.rows[image].line}"


def read_tsv(
    path: Path,
    inspection: Inspection,
    *,
    captions: Path | str | None = None,
    max_captions: int | None = MAX_CAPTIONS,
    cut_dev: bool = True,
) -> Opened:
    """The splits of one or more TSV files and a Karpathy file.

    Args:
        captions: the Karpathy file; by default the only .json file beside them.
        max_captions: how many captions of an image count; None keeps all.
        cut_dev: keep the first 1,000 images of dev only, as every public program does.
    """
    folder = path if path.is_dir() else path.parent
    json_path = inspection.attempt(only_file, Path(captions) if captions else folder, "*.json", "captions")
    images = inspection.attempt(read_captioned_images, json_path, max_captions) if json_path else None
    lines = inspection.attempt(index_lines, sorted(path.glob("*.tsv*")) if path.is_dir() else [path])
    if images is None or lines is None or json_path is None:
        return Opened(path.stem, {})
    inspection.say(f"{path.name}: {len(lines):,} images with 1 to {max(len(r.boxes) for r in lines.values())} boxes")
    splits = {}
    for name, numbers in numbers_of_splits(images, inspection, cut_dev).items():
        chosen = [images[number] for number in numbers]
        rows = inspection.attempt(rows_of_images, chosen, lines, path, name)
        features = inspection.attempt(make_features, rows) if rows else None
        if rows and features is not None:
            inspection.where[name] = features.where
            splits[name] = make_split(name, features, chosen, padded_boxes(rows, features.num_regions))
    return Opened(json_path.stem.removeprefix("dataset_"), splits, usual_folds(json_path, splits))


def index_lines(paths: Sequence[Path]) -> dict[str, TsvRow]:
    """The line of every image; where an image occurs twice, the first."""
    lines: dict[str, TsvRow] = {}
    for path in paths:
        require_file(path)
        with path.open("rb") as file:
            number, position = 0, 0
            # Split at tabs by hand: the csv module stops at fields of 128 KiB, which every one of these exceeds.
            while content := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                fields = split_line(content, path, number)
                if fields[0] != b"image_id":
                    name, boxes = parse_boxes(fields, f"{path}, line {number}")
                    lines.setdefault(name, TsvRow(path, number, position, boxes))
                position += len(content)
    if not lines:
        raise SelhnError(
            f"no image in {', '.join(map(str, paths)) or 'any TSV file'}: give a file with one image a line"
        )
    return lines


def split_line(content: bytes, path: Path, number: int) -> list[bytes]:
    """The six fields of a line."""
    if len(content) > MAX_LINE_BYTES:
        raise SelhnError(f"{path}, line {number}: is longer than {MAX_LINE_BYTES:,} bytes: this is no such TSV file")
    fields = content.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(FIELDS):
        raise SelhnError(
            f"{path}, line {number}: has {len(fields)} fields between tabs instead of {len(FIELDS)} "
            f"({', '.join(FIELDS)}): the file may be cut off; copy it again"
        )
    return fields


def decode_floats(field: bytes, place: str) -> npt.NDArray[np.float32]:
    """Base64 to float32, also where a Python 3 script wrote `b'...'`."""
    if field.startswith(b"b'"):
        field = field[2:-1]
    try:
        return np.frombuffer(base64.b64decode(field, validate=True), "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as wrong:
        raise SelhnError(f"{place} is no base64 of float32 numbers ({wrong}): write the line again") from None


def parse_boxes(fields: Sequence[bytes], place: str) -> tuple[str, npt.NDArray[np.float32]]:
    """The name of an image, and its boxes as shares of its size."""
    try:
        name = fields[0].decode()
        width, height, count = float(fields[1]), float(fields[2]), int(fields[3])
    except ValueError as wrong:
        raise SelhnError(f"{place}: width, height or number of boxes is no number ({wrong})") from None
    boxes = decode_floats(fields[4], f"{place}: boxes")
    if count < 1 or boxes.size != 4 * count or not (width > 0 and height > 0):
        raise SelhnError(
            f"{place}: {boxes.size} box numbers for {count} boxes of a {width:g} x {height:g} image: "
            "give at least one box, four numbers each, and a size"
        )
    size = np.array([width, height, width, height]).astype(np.float32)
    return name, np.divide(boxes.reshape(count, 4), size, dtype=np.float32)


def read_features(row: TsvRow) -> npt.NDArray[np.float32]:
    """The features of an image, (boxes, F)."""
    with row.path.open("rb") as file:
        file.seek(row.position)
        fields = split_line(file.readline(MAX_LINE_BYTES + 1), row.path, row.line)
    place = f"{row.path}, line {row.line}: features"
    numbers = decode_floats(fields[5], place)
    if numbers.size == 0 or numbers.size % len(row.boxes):
        raise SelhnError(f"{place} are {numbers.size} numbers for {len(row.boxes)} boxes: the line may be cut off")
    return numbers.reshape(len(row.boxes), -1)


def rows_of_images(images: Sequence[CaptionedImage], lines: dict[str, TsvRow], path: Path, split: str) -> list[TsvRow]:
    """The line of each image, by whichever of its names the file uses."""
    names: list[list[str]] = [[name_of(image) for image in images] for name_of in NAMES_OF_IMAGE]
    best = max(names, key=lambda kind: sum(name in lines for name in kind))
    missing = [n for n, name in enumerate(best) if name not in lines]
    if missing:
        raise SelhnError(
            f"{path} lacks features for {len(missing):,} of the {len(images):,} {split} images, the first "
            f"{images[missing[0]].filename!r}: add the files of the other parts to the folder"
        )
    return [lines[name] for name in best]


def make_features(rows: Sequence[TsvRow]) -> TsvFeatures:
    """The features of these lines."""
    return TsvFeatures(rows, max(len(row.boxes) for row in rows), read_features(rows[0]).shape[1])


def padded_boxes(rows: Sequence[TsvRow], num_regions: int) -> Float[Tensor, "I M 4"]:
    """Boxes of all images, zero where an image has fewer."""
    boxes: npt.NDArray[Any] = np.zeros((len(rows), num_regions, 4), np.float32)
    for n, row in enumerate(rows):
        boxes[n, : len(row.boxes)] = row.boxes
    return torch.from_numpy(boxes)
