"""Ground truth beyond "a text belongs to one image": CxC and ECCV Caption, for the test images of COCO.

FOLDER/{name}_image_to_caption.json   {"391895": [770337, ...], ...}   the captions that are true for an image
FOLDER/{name}_caption_to_image.json   {"770337": [391895, ...], ...}   the images that are true for a caption

Ids are those of COCO. The package eccv_caption has both files for the names original, cxc and eccv.

References: Parekh et al., Crisscrossed Captions, EACL 2021. Chun et al., ECCV Caption, ECCV 2022.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.untrusted import read_json
from selhn.data.formats.karpathy import CaptionedImage, read_captioned_images
from selhn.data.splits import Split


@dataclass(frozen=True)
class Truth:
    """Which pairs of a split are true. An image or text without any is no query."""

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
    shape = split.num_images, split.num_texts
    of_images = _pairs(Path(folder) / f"{name}_image_to_caption.json", images, texts)
    of_texts = _pairs(Path(folder) / f"{name}_caption_to_image.json", texts, images)
    found = [torch.zeros(shape, dtype=torch.bool) for _ in range(2)]
    for matrix, (rows, columns) in zip(found, (of_images, of_texts[::-1]), strict=True):
        matrix[torch.tensor(rows), torch.tensor(columns)] = True
    return Truth(*found)


def coco_ids(captions: Path | str, split: Split) -> tuple[dict[str, int], dict[str, int]]:
    """The rows of a split's images and texts by their ids in COCO."""
    known = {image.cocoid: image for image in read_captioned_images(Path(captions), max_captions=None)}
    chosen: list[CaptionedImage] = []
    for name in split.image_names:
        digits = re.search(r"(\d{1,18})(?:\.\w+)?$", name)
        image = known.get(str(int(digits[1]))) if digits else None
        if image is None:
            raise SelhnError(f"{captions} has no image of COCO for {name!r}: load the data with COCO's file names")
        chosen.append(image)
    texts: dict[str, int] = {}
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


def _pairs(path: Path, queries: Mapping[str, int], items: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Rows of queries, and of what is true for each."""
    pairs: tuple[list[int], list[int]] = ([], [])
    for query, found in read_json(path).items():
        if not isinstance(found, list) or not all(isinstance(item, int | str) for item in found):
            raise Damaged(f"{path}: {query[:20]!r} should have a list of ids")
        for known, wanted in ((queries, [query]), (items, map(str, found))):
            if missing := next((one for one in wanted if one not in known), None):
                raise SelhnError(
                    f"{path} has the id {missing[:20]!r}, which the split has not: take all test images of COCO"
                )
        pairs[0].extend([queries[query]] * len(found))
        pairs[1].extend(items[str(item)] for item in found)
    return pairs
