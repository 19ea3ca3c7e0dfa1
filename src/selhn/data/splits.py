"""What a data set is once it is read: images with features, texts, and which text belongs to which image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError


@runtime_checkable
class Features(Protocol):
    """Region features of the images of a split, wherever they lie and however they are stored."""

    @property
    def num_images(self) -> int:
        """I."""
        ...

    @property
    def num_regions(self) -> int:
        """M, the most regions an image has; fewer are padded."""
        ...

    @property
    def width(self) -> int:
        """F."""
        ...

    def gather(
        self, rows: Int[Tensor, " B"], dtype: torch.dtype | None = torch.float32
    ) -> tuple[Float[Tensor, "B M F"], Bool[Tensor, "B M"]]:
        """Features and mask of some images, on the device where the store lies; None leaves them as they are kept."""
        ...

    def to(self, device: torch.device | str) -> "Features":
        """The whole store on a device, so that gathering needs no copy."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the store where it lies."""
        ...


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
    """x1, y1, x2, y2 of every region as a share of the image's width and height, where they are known."""

    def __post_init__(self) -> None:
        images, texts = self.features.num_images, len(self.captions)
        if len(self.image_of_text) != texts:
            raise SelhnError(
                f"{self.name}: {texts} captions but {len(self.image_of_text)} entries in image_of_text: give one each"
            )
        if len(self.image_names) != images:
            raise SelhnError(f"{self.name}: {images} images but {len(self.image_names)} names: give one each")
        if texts and not 0 <= int(self.image_of_text.min()) <= int(self.image_of_text.max()) < images:
            raise SelhnError(
                f"{self.name}: image_of_text goes from {int(self.image_of_text.min())} to "
                f"{int(self.image_of_text.max())} but the images are 0 to {images - 1}"
            )

    @property
    def num_images(self) -> int:
        """I."""
        return self.features.num_images

    @property
    def num_texts(self) -> int:
        """T."""
        return len(self.captions)


@dataclass(frozen=True)
class Data:
    """A data set: three splits."""

    name: str
    train: Split
    dev: Split
    test: Split
    folds: int = 1
    """Into how many folds the test split is cut for the field's usual table: 5 for COCO 1K, else 1."""

    @property
    def feature_dim(self) -> int:
        """F, what `create_model` calls feature_dim."""
        return self.train.features.width

    def __getitem__(self, name: str) -> Split:
        """A split by its name: data["test"]."""
        splits = {"train": self.train, "dev": self.dev, "test": self.test}
        if name not in splits:
            raise NotFound(f"there is no split {name!r}: take train, dev or test")
        return splits[name]
