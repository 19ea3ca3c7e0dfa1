"""What is in a data folder, and what is wrong with it, in plain words."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import torch

from selhn.base.errors import SelhnError
from selhn.base.untrusted import some
from selhn.data.features import blocks
from selhn.data.formats import FORMATS, SPLITS, find_format
from selhn.data.formats.data_report import Problems, Report
from selhn.data.splits import Split
from selhn.text import split_words

# The usual vocabulary keeps words that occur at least this often.
USUAL_MIN_COUNT = 4
F30K_IMAGES, COCO_IMAGES = 1000, 5000


def check(path: Path | str, *, scan: bool = True) -> Report:
    """Look at a data set and say what is there and all that is wrong with it, whatever the files contain.

    Args:
        scan: read all features once to find numbers that are not finite, and images that are all zero.
    """
    report = Report()
    with report.collecting():
        path, name = find_format(path)
        report.lines.append(f"{path}: {name} format")
        # Codes are scanned in the form that is cheap to unpack.
        _, splits = FORMATS[name].read(path, report, **({"form": "pca"} if name == "pocket" else {}))
        _check_splits(splits, report, scan)
    return report


def _check_splits(splits: Mapping[str, Split], report: Report, scan: bool) -> None:
    for name in SPLITS:
        if name in splits:
            split = splits[name]
            _describe(split, report)
            with report.collecting():
                _check_names(split)
            if scan:
                with report.collecting():
                    _scan_features(split)
        elif not report.problems:  # if its files were tried and failed, that is the problem to fix
            report.problems.append(f"there is no {name} split: a data set needs train, dev and test")
    for one, other in combinations(splits.values(), 2):
        for compare in (_compare_widths, _compare_images):
            with report.collecting():
                compare(one, other)
    if "test" in splits:
        report.lines.append(f"protocol: {_protocol(splits['test'])}")
    if "train" in splits:
        report.lines.append(_describe_words(splits["train"]))


def _describe(split: Split, report: Report) -> None:
    counts = torch.bincount(split.image_of_text, minlength=split.num_images)
    least, most = int(counts.min()), int(counts.max())
    number = f"{least}" if least == most else f"{least} to {most}"
    features = split.features
    boxes = ", with boxes" if split.boxes is not None else ""
    report.lines.append(
        f"{split.name}: {split.num_images:,} images, {split.num_texts:,} captions ({number} per image); "
        f"up to {features.num_regions} regions of {features.width} numbers{boxes}"
    )
    if least == 0:
        without = (counts == 0).nonzero().flatten().tolist()
        report.warnings.append(
            f"{split.name}: images {some(without)} have no caption: they are never a query, only an answer"
        )


def _check_names(split: Split) -> None:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(split.image_names):
        rows.setdefault(name, []).append(row)
    twice = {name: found for name, found in rows.items() if len(found) > 1}
    if twice:
        name, found = next(iter(twice.items()))
        raise SelhnError(
            f"{split.name}: {len(twice)} ids occur more than once, first {name!r} for images {some(found)}: "
            "give each image an id of its own, or remove the copies"
        )


def _scan_features(split: Split) -> None:
    """Read all features once: refuse what is not finite, and images that are all zero."""
    features = split.features
    infinite, zero = [], []
    for block in blocks(features.num_images, 4 * features.num_regions * features.width):
        regions, mask = features.gather(torch.arange(block.start, block.stop))
        # The largest magnitude tells both: NaN and infinity survive the maximum, and only zeros give zero.
        peak = regions.masked_fill(~mask[..., None], 0).abs().flatten(1).amax(1)
        infinite += (block.start + (~peak.isfinite()).nonzero().flatten()).tolist()
        zero += (block.start + (peak == 0).nonzero().flatten()).tolist()
    problems = [
        f"{features.where(images[0])}: {what} (image {images[0]}, {split.image_names[images[0]]}; {len(images)} such "
        f"images in {split.name}): extract these features again, or remove the images and their captions"
        for images, what in ((infinite, "NaN or infinite numbers"), (zero, "only zeros"))
        if images
    ]
    if problems:
        raise Problems(problems)


def _compare_widths(one: Split, other: Split) -> None:
    if one.features.width != other.features.width:
        raise SelhnError(
            f"{one.name} features are {one.features.width} wide and {other.name} features {other.features.width}: "
            "take all splits from the same features"
        )


def _compare_images(one: Split, other: Split) -> None:
    names = set(other.image_names)
    shared = [name for name in one.image_names if name in names]
    if shared:
        raise SelhnError(
            f"{len(shared)} images are in both {one.name} and {other.name}, the first {shared[0]!r}: "
            "remove them from one, or results mean nothing"
        )


def _protocol(test: Split) -> str:
    """Which table of the literature the test split belongs to."""
    images = test.num_images
    if test.folds > 1:
        return f"COCO: 1K, the mean over {test.folds} folds of {images // test.folds:,} images, and {images:,} at once"
    if images == F30K_IMAGES:
        return "1K test images at once, as for Flickr30K"
    if images == COCO_IMAGES:
        return "5K test images at once, as for COCO 5K"
    return f"your own test split of {images:,} images: its results compare only with others on the same split"


def _describe_words(split: Split) -> str:
    counts = Counter(word for caption in split.captions for word in split_words(caption))
    frequent = sum(count >= USUAL_MIN_COUNT for count in counts.values())
    return (
        f"vocabulary: {len(counts):,} different words in the train captions, {frequent:,} of them at least "
        f"{USUAL_MIN_COUNT} times (the usual vocabulary)"
    )
