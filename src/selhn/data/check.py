"""What lies in a data folder, and what is wrong with it, in plain words."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import torch

from selhn.data.features import blocks
from selhn.data.formats import FORMATS, SPLITS, find_format
from selhn.data.formats.inspection import Inspection, Opened, Report
from selhn.data.formats.reading import some
from selhn.data.splits import Split
from selhn.text import split_words

# The usual vocabulary keeps words that occur at least this often.
USUAL_MIN_COUNT = 4
F30K_IMAGES, COCO_IMAGES = 1000, 5000


def check(folder: Path | str, *, scan: bool = True) -> Report:
    """Look at a data set and say what is there; whatever the files contain, this answers.

    Args:
        scan: read all features once to find numbers that are not finite, and images that are all zero.
    """
    inspection = Inspection(strict=False)
    found = inspection.attempt(find_format, folder)
    if found is None:
        return inspection.report()
    path, name = found
    inspection.say(f"{path}: {name} format")
    # Codes are scanned in the form that is cheap to unpack.
    options = {"form": "pca"} if name == "pocket" else {}
    opened = inspection.attempt(FORMATS[name].read, path, inspection, **options)
    if opened is not None:
        inspection.attempt(check_opened, opened, inspection, scan)
    return inspection.report()


def check_opened(opened: Opened, inspection: Inspection, scan: bool) -> None:
    """Everything that can be asked of splits once they are read."""
    for name in SPLITS:
        if name not in opened.splits:
            # Where its files were tried and failed, that is the problem to mend.
            if not inspection.problems:
                inspection.refuse(f"there is no {name} split: a data set needs train, dev and test")
            continue
        split = opened.splits[name]
        inspection.attempt(describe, split, inspection)
        inspection.attempt(check_names, split, inspection)
        if scan:
            inspection.attempt(scan_features, split, inspection)
    inspection.attempt(compare_splits, opened, inspection)
    if "test" in opened.splits:
        inspection.say(f"protocol: {protocol(opened)}")
    if "train" in opened.splits:
        inspection.attempt(describe_words, opened.splits["train"], inspection)


def describe(split: Split, inspection: Inspection) -> None:
    """Counts and shapes of a split."""
    counts = torch.bincount(split.image_of_text, minlength=split.num_images)
    least, most = int(counts.min()), int(counts.max())
    each = f"{least}" if least == most else f"{least} to {most}"
    features = split.features
    boxes = ", with boxes" if split.boxes is not None else ""
    inspection.say(
        f"{split.name}: {split.num_images:,} images, {split.num_texts:,} captions ({each} an image); "
        f"up to {features.num_regions} regions of {features.width} numbers{boxes}"
    )
    if least == 0:
        without = (counts == 0).nonzero().flatten().tolist()
        inspection.warn(f"{split.name}: images {some(without)} have no caption: they are never asked for, only found")


def check_names(split: Split, inspection: Inspection) -> None:
    """Refuse names that occur twice."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(split.image_names):
        rows.setdefault(name, []).append(row)
    twice = {name: found for name, found in rows.items() if len(found) > 1}
    if twice:
        name, found = next(iter(twice.items()))
        inspection.refuse(
            f"{split.name}: {len(twice)} ids are there more than once, the first is {name!r} for images {some(found)}: "
            "give each image an id of its own, or remove the copies"
        )


def scan_features(split: Split, inspection: Inspection) -> None:
    """Read all features once: refuse what is not finite, and images that are all zero."""
    features, where = split.features, inspection.where[split.name]
    infinite, zero = [], []
    for block in blocks(features.num_images, 4 * features.num_regions * features.width):
        regions, mask = features.gather(torch.arange(block.start, block.stop))
        # The largest magnitude tells both: NaN and infinity survive the maximum, and only zeros give zero.
        peak = regions.masked_fill(~mask[..., None], 0).abs().flatten(1).amax(1)
        infinite += (block.start + (~peak.isfinite()).nonzero().flatten()).tolist()
        zero += (block.start + (peak == 0).nonzero().flatten()).tolist()
    for images, what in ((infinite, "NaN or infinite numbers"), (zero, "nothing but zeros")):
        if images:
            inspection.refuse(
                f"{where(images[0])}: {what} (image {images[0]}, {split.image_names[images[0]]}; {len(images)} such "
                f"images in {split.name}): extract these features again, or remove the images and their captions"
            )


def compare_splits(opened: Opened, inspection: Inspection) -> None:
    """Refuse splits of different width, and images that are in two splits."""
    for one, other in combinations(opened.splits.values(), 2):
        if one.features.width != other.features.width:
            inspection.refuse(
                f"{one.name} features are {one.features.width} wide and {other.name} features {other.features.width}: "
                "take all splits from the same features"
            )
        names = set(other.image_names)
        shared = [name for name in one.image_names if name in names]
        if shared:
            inspection.refuse(
                f"{len(shared)} images are in both {one.name} and {other.name}, the first {shared[0]!r}: "
                "remove them from one, or results mean nothing"
            )


def protocol(opened: Opened) -> str:
    """Which table of the literature the test split belongs to."""
    images = opened.splits["test"].num_images
    if opened.folds > 1:
        return (
            f"COCO: 1K, the mean over {opened.folds} folds of {images // opened.folds:,} images, and {images:,} at once"
        )
    if images == F30K_IMAGES:
        return "1K test images at once, as for Flickr30K"
    if images == COCO_IMAGES:
        return "5K test images at once, as for COCO 5K"
    return f"your own test split of {images:,} images: compare it with nothing but itself"


def describe_words(split: Split, inspection: Inspection) -> None:
    """How large a vocabulary of these captions would be."""
    counts = Counter(word for caption in split.captions for word in split_words(caption))
    frequent = sum(count >= USUAL_MIN_COUNT for count in counts.values())
    inspection.say(
        f"vocabulary: {len(counts):,} different words in the train captions, {frequent:,} of them at least "
        f"{USUAL_MIN_COUNT} times (the usual vocabulary)"
    )
