"""Bottom-up-attention TSV files: one image per line with its boxes and features in base64.

Such a file cannot be mapped into memory, so it is a source for `import_data` and not to train from. It has
neither captions nor splits: a Karpathy file gives both.

Reference: Anderson et al., "Bottom-Up and Top-Down Attention for Image Captioning and VQA", CVPR 2018.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from selhn.base.errors import SelhnError
from selhn.base.untrusted import require_file
from selhn.data.features import ImageByImage
from selhn.data.formats import karpathy
from selhn.data.formats.data_report import Found, Report, each

FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
# 100 boxes of 2048 floats take 1.1 MB in base64.
MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TsvRow:
    """Where the line of an image is, and what was small enough to keep."""

    path: Path
    line: int
    position: int
    boxes: npt.NDArray[np.float32]
    """Shares of width and height, (boxes, 4)."""


@dataclass(frozen=True)
class TsvFeatures(ImageByImage):
    """Features decoded from their lines one image at a time: for conversion only."""

    rows: Sequence[TsvRow]
    first_width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.rows), max(len(row.boxes) for row in self.rows), self.first_width

    def images(self, rows: Sequence[int]) -> list[Float[Tensor, "_ F"]]:
        found = [torch.from_numpy(_read_features(self.rows[row])) for row in rows]
        for row, regions in zip(rows, found):
            if regions.shape[1] != self.first_width:
                raise SelhnError(
                    f"{self.where(row)}: features are {regions.shape[1]} wide, those of the first image "
                    f"{self.first_width}"
                )
        return found

    def where(self, image: int) -> str:
        return f"{self.rows[image].path}, line {self.rows[image].line}"


def read_tsv(
    path: Path,
    report: Report,
    *,
    captions: Path | str | None = None,
    max_captions: int | None = karpathy.MAX_CAPTIONS,
    cut_dev: bool = True,
) -> Found:
    """The splits of one or more TSV files and a Karpathy file.

    Args:
        captions: the Karpathy file; by default the only .json file beside them.
        max_captions: how many captions of an image count; None keeps all.
        cut_dev: keep the first 1,000 images of dev only, as every public program does.
    """
    folder = path if path.is_dir() else path.parent
    json_path = karpathy.only_file(
        Path(captions) if captions else folder, "*.json", "captions", karpathy.with_setting("captions")
    )
    images, lines = each(
        lambda: karpathy.read_captioned_images(json_path, max_captions),
        lambda: _index_lines(sorted(path.glob("*.tsv*")) if path.is_dir() else [path]),
    )
    most = max(len(row.boxes) for row in lines.values())
    report.lines.append(f"{path.name}: {len(lines):,} images with 1 to {most} boxes")

    def of_lines(split: str, numbers: list[int]) -> tuple[TsvFeatures, Float[Tensor, "I M 4"]]:
        rows = _rows_of_images([images[number] for number in numbers], lines, path, split)
        boxes = pad_sequence([torch.from_numpy(row.boxes) for row in rows], batch_first=True)
        return TsvFeatures(rows, _read_features(rows[0]).shape[1]), boxes

    return karpathy.split_images(images, json_path, report, cut_dev, of_lines)


def _index_lines(paths: Sequence[Path]) -> dict[str, TsvRow]:
    """The line of every image; if an image occurs twice, the first."""
    lines: dict[str, TsvRow] = {}
    for path in paths:
        require_file(path)
        with path.open("rb") as file:
            # Split at tabs by hand: the csv module stops at fields of 128 KiB, which these exceed.
            for number, content in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                fields = _split_line(content, path, number)
                if fields[0] != b"image_id":
                    name, boxes = _parse_boxes(fields, f"{path}, line {number}")
                    lines.setdefault(name, TsvRow(path, number, file.tell() - len(content), boxes))
    if not lines:
        raise SelhnError(
            f"no image in {', '.join(map(str, paths)) or 'any TSV file'}: give a file with one image per line"
        )
    return lines


def _split_line(content: bytes, path: Path, number: int) -> list[bytes]:
    if len(content) > MAX_LINE_BYTES:
        raise SelhnError(
            f"{path}, line {number}: is longer than {MAX_LINE_BYTES:,} bytes: not such a TSV file"
        )
    fields = content.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(FIELDS):
        raise SelhnError(
            f"{path}, line {number}: has {len(fields)} fields between tabs instead of {len(FIELDS)} "
            f"({', '.join(FIELDS)}): the file may be cut off; copy it again"
        )
    return fields


def _decode_floats(field: bytes, place: str) -> npt.NDArray[np.float32]:
    """Base64 to float32, also if a Python 3 script wrote `b'...'`."""
    if field.startswith(b"b'"):
        field = field[2:-1]
    try:
        return np.frombuffer(base64.b64decode(field, validate=True), "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as wrong:
        raise SelhnError(f"{place} is not base64 of float32 ({wrong}): write the line again") from None


def _parse_boxes(fields: Sequence[bytes], place: str) -> tuple[str, npt.NDArray[np.float32]]:
    """The name of an image, and its boxes as shares of its size."""
    try:
        name = fields[0].decode()
        width, height, count = float(fields[1]), float(fields[2]), int(fields[3])
    except ValueError as wrong:
        raise SelhnError(f"{place}: width, height or number of boxes is not a number ({wrong})") from None
    boxes = _decode_floats(fields[4], f"{place}: boxes")
    if count < 1 or boxes.size != 4 * count or not (width > 0 and height > 0):
        raise SelhnError(
            f"{place}: {boxes.size} box numbers for {count} boxes of a {width:g} x {height:g} image: "
            "give at least one box, four numbers each, and a size"
        )
    size = np.array([width, height, width, height]).astype(np.float32)
    return name, np.divide(boxes.reshape(count, 4), size, dtype=np.float32)


def _read_features(row: TsvRow) -> npt.NDArray[np.float32]:
    with row.path.open("rb") as file:
        file.seek(row.position)
        fields = _split_line(file.readline(MAX_LINE_BYTES + 1), row.path, row.line)
    place = f"{row.path}, line {row.line}: features"
    numbers = _decode_floats(fields[5], place)
    if numbers.size == 0 or numbers.size % len(row.boxes):
        raise SelhnError(
            f"{place} are {numbers.size} numbers for {len(row.boxes)} boxes: the line is cut off"
        )
    return numbers.reshape(len(row.boxes), -1)


def _rows_of_images(
    images: Sequence[karpathy.CaptionedImage], lines: dict[str, TsvRow], path: Path, split: str
) -> list[TsvRow]:
    """The line of each image, by whichever of its names the file uses."""
    # Most telling first: of names that fit equally many lines, the first kind is taken.
    kinds = zip(*((one.cocoid, one.filename, PurePath(one.filename).stem, one.imgid) for one in images))
    best = max(kinds, key=lambda names: sum(name in lines for name in names))
    missing = [n for n, name in enumerate(best) if name not in lines]
    if missing:
        raise SelhnError(
            f"{path} lacks features for {len(missing):,} of the {len(images):,} {split} images, the first "
            f"{images[missing[0]].filename!r}: add the files of the other parts to the folder"
        )
    return [lines[name] for name in best]
