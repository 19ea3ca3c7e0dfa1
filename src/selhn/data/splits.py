"""What a data set is once it is read: images with features, texts, and which text belongs to which image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.data.features import Features, SomeImages

COCO_FOLDS = 5
"""COCO 1K is the mean over this many folds of the 5,000 test images."""


def require_folds(num_images: int, folds: int) -> None:
    """Refuse a number of folds that the images do not divide into."""
    if folds < 1 or num_images % folds:
        raise SelhnError(
            f"{num_images} images do not divide into {folds} equal folds: choose a divisor of {num_images}"
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Images and texts that are trained on or evaluated together; every image is there once."""

    name: str
    features: Features
    captions: Sequence[str]
    image_of_text: Int[Tensor, " T"]
    image_names: Sequence[str]
    """What a person calls image i: a file name or an id."""
    boxes: Float[Tensor, "I M 4"] | None = None
    """x1, y1, x2, y2 of every region as a share of the image's width and height, if they are known."""
    folds: int = 1
    """How many folds of images it is measured in: `COCO_FOLDS` for the test images of COCO, else 1."""

    def __post_init__(self) -> None:
        images, texts = self.features.num_images, len(self.captions)
        if len(self.image_of_text) != texts:
            raise SelhnError(
                f"{self.name}: {texts} captions but {len(self.image_of_text)} entries in image_of_text: one each"
            )
        require_folds(images, self.folds)
        if len(self.image_names) != images:
            raise SelhnError(f"{self.name}: {images} images but {len(self.image_names)} names: give one each")
        if texts and not 0 <= int(self.image_of_text.min()) <= int(self.image_of_text.max()) < images:
            raise SelhnError(
                f"{self.name}: image_of_text goes from {int(self.image_of_text.min())} to "
                f"{int(self.image_of_text.max())} but the images are 0 to {images - 1}"
            )

    @property
    def num_images(self) -> int:
        return self.features.num_images

    @property
    def num_texts(self) -> int:
        return len(self.captions)

    def first(self, most: int) -> "Split":
        rows = torch.arange(min(most, self.num_images))
        texts = (self.image_of_text < len(rows)).nonzero()[:, 0]
        return Split(
            self.name,
            SomeImages(self.features, rows),
            [self.captions[text] for text in texts.tolist()],
            self.image_of_text[texts],
            [self.image_names[row] for row in rows.tolist()],
            None if self.boxes is None else self.boxes[: len(rows)],
        )


@dataclass(frozen=True)
class Data:
    """A data set: three splits."""

    name: str
    train: Split
    dev: Split
    test: Split
    source: str | None = None
    """What `load_data` was given; None for data that was put together in Python."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that `load_data` was given."""

    @property
    def feature_dim(self) -> int:
        """F, what `create_model` calls feature_dim."""
        return self.train.features.width

    def __getitem__(self, name: str) -> Split:
        splits = {"train": self.train, "dev": self.dev, "test": self.test}
        if name not in splits:
            raise NotFound(f"there is no split {name!r}: take train, dev or test")
        return splits[name]
