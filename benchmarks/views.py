"""Further views of the training photographs, as features in the form of a pocket folder.

    python benchmarks/views.py --photos f8k_photos/train --ids f8k_pocket/train_ids.txt --out views --split train

Writes `OUT/SPLIT_VIEW.npy`, int8 codes (images, 10, 256) in the order of the ids, for every view: the picture
unchanged, mirrored, reduced, and cut out at random, as people's own pictures are. A view that is there is not
made again.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from selhn.pictures import load_extractor
from selhn.pictures.extractor import Extractor

BATCH = 16
View = Callable[[Image.Image, random.Random], Image.Image]


def cut_out(image: Image.Image, draw: random.Random, least: float = 0.6) -> Image.Image:
    """A part of the picture: each side between `least` and 1 of its length, anywhere, mirrored half the time."""
    width, height = (round(side * draw.uniform(least, 1)) for side in image.size)
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    part = image.crop((left, top, left + width, top + height))
    return ImageOps.mirror(part) if draw.random() < 0.5 else part


def reduced(image: Image.Image, draw: random.Random, least: float = 0.4) -> Image.Image:
    """The picture at a lower resolution, and worse in colour and light."""
    share = draw.uniform(least, 0.8)
    small = image.resize(
        (max(1, round(image.width * share)), max(1, round(image.height * share))), Image.BICUBIC
    )
    lit = ImageEnhance.Brightness(small).enhance(draw.uniform(0.7, 1.3))
    return ImageEnhance.Color(lit).enhance(draw.uniform(0.5, 1.2))


VIEWS: dict[str, View] = {
    "plain": lambda image, draw: image,
    "mirror": lambda image, draw: ImageOps.mirror(image),
    "small": reduced,
    "cut1": cut_out,
    "cut2": cut_out,
    "cut3": cut_out,
}


def codes(extractor: Extractor, images: list[Image.Image]) -> np.ndarray:
    """Features of some pictures as the codes of a pocket folder, z = code * scale."""
    projection = extractor.projection
    assert projection is not None
    coordinates = extractor(images)
    return (coordinates / projection.scale).round().clamp(-127, 127).to(torch.int8).numpy()


def main() -> None:
    """Extract every view of every picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--split", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.ids.read_text(encoding="utf-8").split()
    ready = load_extractor()
    extractor = Extractor(ready.backbone, ready.cells, "pca", ready.projection)
    for view in arguments.views:
        path = arguments.out / f"{arguments.split}_{view}.npy"
        if path.exists():
            continue
        parts = []
        for start in range(0, len(names), BATCH):
            images = []
            for name in names[start : start + BATCH]:
                with Image.open(arguments.photos / name) as file:
                    images.append(VIEWS[view](file.convert("RGB"), random.Random(f"{view} {name}")))
            parts.append(codes(extractor, images))
        np.save(path.with_suffix(".part.npy"), np.concatenate(parts))
        path.with_suffix(".part.npy").rename(path)
        print(path, flush=True)


if __name__ == "__main__":
    main()
