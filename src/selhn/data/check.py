"""Check a data folder: what it contains and what is wrong with it."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import torch

from selhn.base.untrusted import some
from selhn.data.formats import find_format, read_splits
from selhn.data.formats.data_report import Report
from selhn.data.splits import MOST, Split
from selhn.text import split_words

# The usual vocabulary keeps words that occur at least this often.
USUAL_MIN_COUNT = 4


def check(path: Path | str, *, scan: bool = True) -> Report:
    """Describe a data set and everything that is wrong with it, whatever the files contain.

    Args:
        scan: read all features once to find numbers that are not finite, and images that are all zero.
    """
    report = Report()
    with report.collecting():
        path, name = find_format(path)
        report.lines.append(f"{path}: {name} format")
        # Scan codes in the form that is cheap to unpack.
        _, splits = read_splits(path, name, report, **({"form": "pca"} if name == "pocket" else {}))
        _check_splits(splits, report, scan)
    return report


def _check_splits(splits: Mapping[str, Split], report: Report, scan: bool) -> None:
    for split in splits.values():
        _describe(split, report)
        if scan:
            with report.collecting():
                _scan_features(split, report)
    for one, other in combinations(splits.values(), 2):
        names = set(other.image_names)
        shared = [name for name in one.image_names if name in names]
        if shared:
            report.problems.append(
                f"{len(shared)} images are in both {one.name} and {other.name}, the first {shared[0]!r}: "
                "remove them from one, or results mean nothing"
            )
    if "test" in splits:
        report.lines.append(f"protocol: {_protocol(splits['test'])}")
    if "train" in splits:
        counts = Counter(word for caption in splits["train"].captions for word in split_words(caption))
        frequent = sum(count >= USUAL_MIN_COUNT for count in counts.values())
        report.lines.append(
            f"vocabulary: {len(counts):,} different words in the train captions, {frequent:,} of them at "
            f"least {USUAL_MIN_COUNT} times (the usual vocabulary)"
        )


def _describe(split: Split, report: Report) -> None:
    counts = torch.bincount(split.image_of_text, minlength=split.num_images)
    least, most = int(counts.min()), int(counts.max())
    number = f"{least}" if least == most else f"{least} to {most}"
    features = split.features
    side = f", with {', '.join(split.side)}" if split.side else ""
    with report.collecting():
        dict(split.side)  # read and checked
    report.lines.append(
        f"{split.name}: {split.num_images:,} images, {split.num_texts:,} captions ({number} per image); "
        f"up to {features.num_regions} regions of {features.width} numbers{side}"
    )
    if least == 0:
        without = (counts == 0).nonzero().flatten().tolist()
        report.warnings.append(
            f"{split.name}: images {some(without)} have no caption: they are never queries, only candidates"
        )
    twice = [name for name, count in Counter(split.image_names).items() if count > 1]
    if twice:
        rows = [row for row, name in enumerate(split.image_names) if name == twice[0]]
        report.problems.append(
            f"{split.name}: {len(twice)} ids occur more than once, first {twice[0]!r} for images "
            f"{some(rows)}: give each image its own id, or remove the copies"
        )


def _scan_features(split: Split, report: Report) -> None:
    """Read all features once, to find values that are not finite or huge, and images that are all zero."""
    features = split.features
    infinite, zero = [], []
    for rows, (regions, mask) in features.in_blocks():
        # The largest magnitude shows both: NaN and infinity survive the maximum, and only zeros give zero.
        peak = regions.masked_fill(~mask[..., None], 0).abs().flatten(1).amax(1)
        infinite += rows[~(peak <= MOST)].tolist()
        zero += rows[peak == 0].tolist()
    report.problems += [
        f"{features.where(images[0])}: {what} (image {images[0]}, {split.image_names[images[0]]}; {len(images)} "
        f"such {'image' if len(images) == 1 else 'images'} in {split.name}): "
        "extract these features again, or remove the images and their captions"
        for images, what in ((infinite, f"NaN, or numbers above {MOST:g}"), (zero, "only zeros"))
        if images
    ]


def _protocol(test: Split) -> str:
    """Which table of the literature the test split belongs to."""
    images = test.num_images
    if test.folds > 1:
        return f"COCO: 1K, the mean over {test.folds} folds of {images // test.folds:,} images, and {images:,} at once"
    known = {1000: "1K test images at once, as for Flickr30K", 5000: "5K test images at once, as for COCO 5K"}
    own = f"your own test split of {images:,} images: its results compare only with others on the same split"
    return known.get(images, own)
