"""Ground truth beyond "a text belongs to one image": CxC and ECCV Caption, for the test images of COCO.

FOLDER/{name}_image_to_caption.json   {"391895": [770337, ...], ...}   the captions that are true for an image
FOLDER/{name}_caption_to_image.json   {"770337": [391895, ...], ...}   the images that are true for a caption

Ids are those of COCO. The package eccv_caption has both files for the names original, cxc and eccv.

References: Parekh et al., Crisscrossed Captions, EACL 2021. Chun et al., ECCV Caption, ECCV 2022.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.untrusted import read_json
from selhn.data.formats.karpathy import CaptionedImage, read_captioned_images
from selhn.data.splits import Split

Rows = dict[str, int | None]
"""Rows by the ids of COCO."""


@dataclass(frozen=True)
class Truth:
    """Which pairs of a split are true. An image or text without any is not a query."""

    of_images: Bool[Tensor, "I T"]
    """What images should find; the two need not agree."""
    of_texts: Bool[Tensor, "I T"]


def read_truth(folder: Path | str, split: Split, captions: Path | str, name: str = "eccv") -> Truth:
    """The true pairs of COCO's test images that a folder has under a name, such as eccv or cxc.

    Args:
        split: its images are found by their names, which end in the ids of COCO, and its texts by their order.
        captions: Karpathy's dataset_coco.json, which has the ids of the captions.
    """
    images, texts = coco_ids(captions, split)
    of_images = torch.zeros(split.num_images, split.num_texts, dtype=torch.bool)
    of_texts = torch.zeros_like(of_images)
    for matrix, file, known in (
        (of_images, "image_to_caption", (images, texts)),
        (of_texts.T, "caption_to_image", (texts, images)),
    ):
        matrix[_pairs(Path(folder) / f"{name}_{file}.json", *known).unbind(1)] = True
    return Truth(of_images, of_texts)


def coco_ids(captions: Path | str, split: Split) -> tuple[Rows, Rows]:
    """The rows of a split's images and texts by their ids in COCO; None for further captions of these images."""
    known = {image.cocoid: image for image in read_captioned_images(Path(captions), max_captions=None)}
    chosen: list[CaptionedImage] = []
    for name in split.image_names:
        digits = re.search(r"(\d{1,18})(?:\.\w+)?$", name)
        image = known.get(str(int(digits[1]))) if digits else None
        if image is None:
            raise SelhnError(
                f"{captions} has no image of COCO for {name!r}: load the data with COCO's file names"
            )
        chosen.append(image)
    texts: Rows = {one: None for image in chosen for one in image.sentids}
    place = [0] * len(chosen)
    for row, (text, owner) in enumerate(zip(split.captions, split.image_of_text.tolist(), strict=True)):
        image, number = chosen[owner], place[owner]
        if number >= len(image.captions) or _letters(image.captions[number]) != _letters(text):
            raise SelhnError(
                f"caption {number} of {split.image_names[owner]} is {text[:60]!r}, in {captions} it is another: "
                "take the captions that the data was made from"
            )
        texts[image.sentids[number]] = row
        place[owner] += 1
    return {image.cocoid: row for row, image in enumerate(chosen)}, texts


def _letters(text: str) -> str:
    return re.sub(r"\W+", "", text.lower())


def _pairs(path: Path, queries: Rows, items: Rows) -> Int[Tensor, "n 2"]:
    """Rows of queries, and of what is true for each; a caption that the split left out is neither."""
    pairs: list[tuple[int | None, int | None]] = []
    for query, found in read_json(path).items():
        if not isinstance(found, list) or not all(isinstance(item, int | str) for item in found):
            raise Damaged(f"{path}: {query[:20]!r} should have a list of ids")
        for known, wanted in ((queries, [query]), (items, map(str, found))):
            if missing := [one for one in wanted if one not in known]:
                raise SelhnError(
                    f"{path} has the id {missing[0][:20]!r}, which the split does not have: use all test images of COCO"
                )
        pairs += [(queries[query], items[str(item)]) for item in found]
    return torch.tensor([pair for pair in pairs if None not in pair], dtype=torch.int64).reshape(-1, 2)
