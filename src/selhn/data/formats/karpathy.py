"""Karpathy's split files (`dataset_flickr30k.json`, `dataset_coco.json`) joined with features in their order.

Reference: Karpathy, Fei-Fei, "Deep Visual-Semantic Alignments for Generating Image Descriptions", CVPR 2015.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.untrusted import open_array, read_json, require_file
from selhn.data.features import DenseFeatures, Features
from selhn.data.formats.data_report import Found, Report, each
from selhn.data.formats.precomp import cut_images
from selhn.data.splits import COCO_FOLDS, SPLITS, Split

# restval is the part of COCO's validation images that everyone trains on.
SPLIT_NAMES = {"train": "train", "restval": "train", "val": "dev", "test": "test"}
# Official: images of COCO with six or seven captions count with their first five.
MAX_CAPTIONS = 5
COCO_TEST_IMAGES = 5000


@dataclass(frozen=True)
class CaptionedImage:
    """An entry of the file."""

    split: str
    filename: str
    imgid: str
    cocoid: str
    captions: tuple[str, ...]
    sentids: tuple[str, ...]
    """The ids of the captions, as far as the file has them."""


def read_karpathy(
    path: Path,
    report: Report,
    *,
    features: Path | str | None = None,
    max_captions: int | None = MAX_CAPTIONS,
    cut_dev: bool = True,
) -> Found:
    """The splits of a Karpathy file and a features array.

    Args:
        features: the .npy file with row i for image i of the file; by default the only one beside it.
        max_captions: how many captions of an image count; None keeps all.
        cut_dev: keep the first 1,000 images of dev only, as every public program does.
    """
    beside = path if path.is_dir() else path.parent
    json_path, array_path = each(
        lambda: only_file(path, "*.json", "captions", "name the file instead of the folder"),
        lambda: (
            Path(features)
            if features is not None
            else only_file(beside, "*.npy", "features", with_setting("features"))
        ),
    )
    images, array = each(
        lambda: read_captioned_images(json_path, max_captions), lambda: open_array(array_path)
    )
    if len(array) != len(images):
        raise SelhnError(
            f"{array_path} has {len(array)} rows and {json_path} {len(images)} images: "
            "features must have one row for each image of the file, in its order, whatever its split"
        )
    report.lines.append(f"{array_path.name}: {len(array):,} rows, {array.dtype}, ordered as {json_path.name}")

    def of_rows(_: str, numbers: list[int]) -> tuple[DenseFeatures, None]:
        return DenseFeatures(array, torch.tensor(numbers), path=array_path), None

    return split_images(images, json_path, report, cut_dev, of_rows)


def with_setting(name: str) -> str:
    """How to name a file that is not the only one in its folder."""
    return f"name it with {name}=FILE (`selhn train ... data.{name}=FILE`, `selhn data import SOURCE OUT {name}=FILE`)"


def only_file(path: Path, pattern: str, what: str, advice: str) -> Path:
    """The path itself if it is a file, else the only file of that pattern in the folder."""
    if not path.is_dir():
        require_file(path)
        return path
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise SelhnError(f"{path} should hold one {pattern} file with {what}, found {names}: {advice}")
    return found[0]


def read_captioned_images(path: Path, max_captions: int | None = MAX_CAPTIONS) -> list[CaptionedImage]:
    """The images of the file in its order, with their captions."""
    if max_captions is not None and max_captions < 1:
        raise SelhnError(f"max_captions is {max_captions}: keep at least one, or None for all")
    entries = read_json(path).get("images")
    if not isinstance(entries, list) or not entries:
        raise SelhnError(f"{path} has no list 'images': give a file such as dataset_flickr30k.json")
    return [_captioned_image(entry, f"{path}, image {n}", max_captions) for n, entry in enumerate(entries)]


def _captioned_image(entry: Any, place: str, max_captions: int | None) -> CaptionedImage:
    if not isinstance(entry, dict) or str(entry.get("split")) not in SPLIT_NAMES:
        raise SelhnError(f"{place}: needs a field 'split' that is one of {', '.join(SPLIT_NAMES)}")
    sentences = entry.get("sentences")
    if not isinstance(sentences, list) or not sentences:
        raise SelhnError(f"{place}: has no sentences: remove the image")
    raw = [str(sentence.get("raw", "")) if isinstance(sentence, dict) else "" for sentence in sentences]
    captions = tuple(" ".join(text.split()) for text in raw[:max_captions])
    if "" in captions:
        raise SelhnError(f"{place}, sentence {captions.index('')}: has no text in 'raw': write or remove it")
    filename, imgid, cocoid = (str(entry.get(key, "")) for key in ("filename", "imgid", "cocoid"))
    sentids = tuple(str(sentence.get("sentid", "")) for sentence in sentences[:max_captions])
    return CaptionedImage(SPLIT_NAMES[entry["split"]], filename, imgid, cocoid, captions, sentids)


def split_images(
    images: Sequence[CaptionedImage],
    json_path: Path,
    report: Report,
    cut_dev: bool,
    features_of: Callable[[str, list[int]], tuple[Features, Float[Tensor, "I M 4"] | None]],
) -> Found:
    """The images by split; `features_of` gives features and boxes for the name of a split and its numbers."""
    splits = {}
    for name in SPLITS:
        numbers = [number for number, image in enumerate(images) if image.split == name]
        if cut_dev and name == "dev":
            numbers = numbers[: cut_images(name, len(numbers), report)]
        if not numbers:
            continue
        chosen = [images[number] for number in numbers]
        in_folds = name == "test" and "coco" in json_path.stem and len(chosen) == COCO_TEST_IMAGES
        with report.collecting():
            features, boxes = features_of(name, numbers)
            splits[name] = Split(
                name,
                features,
                [caption for image in chosen for caption in image.captions],
                torch.tensor([row for row, image in enumerate(chosen) for _ in image.captions]),
                [image.filename or image.imgid or f"{name} image {n}" for n, image in enumerate(chosen)],
                boxes,
                COCO_FOLDS if in_folds else 1,
            )
    return json_path.stem.removeprefix("dataset_"), splits
