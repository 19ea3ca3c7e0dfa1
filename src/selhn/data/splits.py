"""A data set in memory: images with features, texts, and which text belongs to which image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import require_type
from selhn.base.types import FeaturePrecision, to_int8
from selhn.data.features import DenseFeatures, Features, SomeImages
from selhn.data.side_inputs import Given, SideInputs
from selhn.data.steps import seed_for

SPLITS = ("train", "dev", "test")
COCO_FOLDS = 5
"""COCO 1K is the mean over this many folds of the 5,000 test images."""
NOISE = 2  # keeps this random stream independent of order and augmentation


def require_folds(num_images: int, folds: int) -> None:
    """Refuse a number of folds that does not divide the images."""
    if not isinstance(folds, Integral) or isinstance(folds, bool):
        raise SelhnError(f"folds is {folds!r}: give a whole number, such as 5")
    if folds < 1 or num_images % folds:
        raise SelhnError(
            f"{num_images} images do not divide into {folds} equal folds: choose a divisor of {num_images}"
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Images and texts that are trained on or evaluated together; every image occurs once."""

    name: str
    features: Features
    captions: Sequence[str]
    image_of_text: Int[Tensor, " T"]
    image_names: Sequence[str]
    """The name of image i: a file name or an id."""
    boxes: Float[Tensor, "I M 4"] | None = None
    """x1, y1, x2, y2 of every region as a share of the image's width and height, if they are known."""
    folds: int = 1
    """Number of folds it is evaluated in: `COCO_FOLDS` for the test images of COCO, otherwise 1."""
    given_side: Mapping[str, Given] = field(default_factory=dict)
    """Further side inputs, or functions that read them; `side` has all."""

    def __post_init__(self) -> None:
        require_type("features", self.features, Features, "wrap a tensor (I, M, F) as DenseFeatures(tensor)")
        require_type("image_of_text", self.image_of_text, Tensor, "use torch.tensor(image_of_text)")
        images, texts = self.features.num_images, len(self.captions)
        if texts and not isinstance(self.captions[0], str):
            raise SelhnError(
                f"{self.name}: caption 0 is {self.captions[0]!r}, not a text: "
                "give one list of texts, and the image of each in image_of_text"
            )
        if self.image_of_text.is_floating_point() or self.image_of_text.dtype == torch.bool:
            raise SelhnError(
                f"{self.name}: image_of_text holds {self.image_of_text.dtype}, not whole numbers: "
                "give the image of each caption, counted from 0"
            )
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
        self.side  # noqa: B018  refuses names that are not known

    def __repr__(self) -> str:
        return f"Split({self.name!r}: {self.num_images:,} images, {self.num_texts:,} texts)"

    @cached_property
    def side(self) -> SideInputs:
        """All side inputs by name: boxes, what follows from them, and what is given."""
        return SideInputs(self.given_side, self.boxes, self.num_images, self.num_texts, self.name)

    @property
    def num_images(self) -> int:
        return self.features.num_images

    @property
    def num_texts(self) -> int:
        return len(self.captions)

    def first(self, most: int) -> "Split":
        return self.some(torch.arange(min(most, self.num_images)))

    def some(self, rows: Int[Tensor, " R"] | Int[np.ndarray, " R"] | Sequence[int]) -> "Split":
        """Some images, in the order of `rows`, and their texts, in the order of this split."""
        rows = self._checked_rows(rows)
        place = torch.full((self.num_images,), -1, dtype=torch.long, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)  # of each image among the chosen, or -1
        places = place[self.image_of_text]
        texts = (places >= 0).nonzero()[:, 0]
        return Split(
            self.name,
            SomeImages(self.features, rows),
            [self.captions[text] for text in texts.tolist()],
            places[texts],
            [self.image_names[row] for row in rows.tolist()],
            None if self.boxes is None else self.boxes[rows],
            given_side=self.side.some(rows, texts),
        )

    def _checked_rows(self, rows: Any) -> Int[Tensor, " R"]:
        """The numbers of different images, where the texts' images are stored."""
        try:
            chosen = rows if isinstance(rows, Tensor) else torch.tensor(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SelhnError(
                f"{self.name}.some: rows are not image numbers ({error}): give [0, 3, 1]"
            ) from None
        if chosen.numel() == 0:
            chosen = chosen.flatten().long()
        if chosen.ndim != 1 or chosen.is_floating_point() or chosen.dtype == torch.bool:
            raise SelhnError(
                f"{self.name}.some: rows have shape {tuple(chosen.shape)} and type {chosen.dtype}: "
                "give one list of image numbers, such as torch.randperm(n)[:k] or mask.nonzero()[:, 0]"
            )
        chosen = chosen.to(self.image_of_text.device, torch.long)
        outside = chosen[(chosen < 0) | (chosen >= self.num_images)]
        if len(outside):
            raise SelhnError(
                f"{self.name}.some: there is no image {int(outside[0])}: the images are 0 to {self.num_images - 1}"
            )
        numbers, times = chosen.unique(return_counts=True)
        if len(numbers) < len(chosen):
            raise SelhnError(
                f"{self.name}.some: image {int(numbers[times.argmax()])} is given {int(times.max())} times: "
                "every image occurs once in a split, so draw without replacement"
            )
        return chosen


def split_ids(split: Split) -> list[str]:
    """What the images of a split are called in an index."""
    seen: set[str] = set()
    ids = []
    for row, name in enumerate(split.image_names):
        name = name if name and name not in seen else f"{name}#{row}"
        seen.add(name)
        ids.append(name)
    return ids


@dataclass(frozen=True)
class Data:
    """A data set: three splits."""

    name: str
    train: Split
    dev: Split
    test: Split
    source: str | None = None
    """The source that `load_data` was given; None for data built in Python."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that `load_data` was given."""

    def __repr__(self) -> str:
        counts = (f"{one.name} {one.num_images:,} images, {one.num_texts:,} texts" for one in self.splits)
        return f"Data({self.name!r}: {'; '.join(counts)}; features {self.feature_dim} wide)"

    @property
    def splits(self) -> tuple[Split, Split, Split]:
        """Train, dev and test."""
        return self.train, self.dev, self.test

    @property
    def feature_dim(self) -> int:
        """F, what `create_model` calls feature_dim."""
        return self.train.features.width

    def __getitem__(self, name: str) -> Split:
        if not isinstance(name, str):  # what iterates over it comes here with 0
            raise SelhnError("a whole data set is not a list of images: give a part of it, such as data.test")
        if name not in SPLITS:
            raise NotFound(f"there is no split {name!r}: take train, dev or test")
        return getattr(self, name)


def require_split(split: object) -> None:
    """Refuse anything but a split, such as a whole data set."""
    require_type("split", split, Split, "give a part of a data set, such as data.test")


def with_noise(data: Data, rate: float, seed: int) -> Data:
    """Noisy correspondence (Huang et al., NCR, NeurIPS 2021): some training texts swap their images.

    None of them keeps its image, every image keeps its number of texts, and dev and test do not change.
    """
    # Official: images are shuffled among the chosen texts: some keep theirs, so the rate is a little lower.
    if not 0 <= rate < 1:
        raise SelhnError(
            f"noise is {rate}: give the share of training texts with a wrong image, 0 <= noise < 1"
        )
    if rate == 0:
        return data
    split = data.train
    generator = torch.Generator().manual_seed(seed_for(seed, NOISE))
    chosen = torch.randperm(split.num_texts, generator=generator)[: round(rate * split.num_texts)]
    own = split.image_of_text[chosen]
    if not len(chosen) or 2 * int(own.unique(return_counts=True)[1].max()) > len(chosen):
        raise SelhnError(
            f"noise={rate} of the {split.num_texts} texts of {split.name} are {len(chosen)}: too few to "
            "swap their images: raise noise"
        )
    images = own[torch.randperm(len(own), generator=generator)]
    while len(kept := (images == own).nonzero().flatten()):
        for place in kept.tolist():
            other = int(torch.randint(len(own), (), generator=generator))
            images[[place, other]] = images[[other, place]]
    image_of_text = split.image_of_text.clone()
    image_of_text[chosen] = images
    return replace(data, train=replace(split, image_of_text=image_of_text))


def resident_bytes(features: Features, precision: FeaturePrecision) -> int:
    """Memory that `make_resident` takes, in bytes."""
    per_region = features.width * getattr(torch, precision).itemsize + 1 + (4 if precision == "int8" else 0)
    return features.num_images * features.num_regions * per_region


def make_resident(split: Split, device: torch.device, precision: FeaturePrecision) -> Split:
    """The split with its features on a device, each read or computed once; int8 has one scale per region."""
    if precision not in get_args(FeaturePrecision):
        raise SelhnError(f"feature_precision={precision!r}: choose {', '.join(get_args(FeaturePrecision))}")
    features = split.features
    if 2 * features.num_bytes < resident_bytes(features, precision):
        features = features.to(device)  # packed or computed features are small, and a device unpacks faster
    store = torch.empty(features.shape, dtype=getattr(torch, precision), device=device)
    mask = torch.empty(features.shape[:2], dtype=torch.bool, device=device)
    scale = torch.empty(features.shape[:2], device=device) if precision == "int8" else None
    most = min(MOST, torch.finfo(store.dtype).max) if scale is None else MOST
    for rows, found in features.in_blocks():
        block = slice(int(rows[0]), int(rows[-1]) + 1)
        regions, mask[block] = (tensor.to(device) for tensor in found)
        refuse_not_finite(split, rows, regions, most)
        if scale is not None:
            store[block], scale[block] = to_int8(regions)
        else:
            store[block] = regions.to(store.dtype)
    some_masked = not bool(mask.all())
    return replace(split, features=DenseFeatures(store, mask=mask if some_masked else None, scale=scale))


MOST = 1e10
"""The largest number in a feature: the squares of larger ones would soon be infinite."""


def refuse_not_finite(
    split: Split, rows: Int[Tensor, " B"], regions: Float[Tensor, "B M F"], most: float = MOST
) -> None:
    """Refuse features that are NaN, infinite or huge, naming the first image: it would spoil its batch."""
    bad = (~(regions.flatten(1).abs() <= most).all(dim=1)).nonzero()  # NaN is not below anything
    if len(bad):
        image = int(rows[int(bad[0, 0])])
        raise SelhnError(
            f"features of image {image} of {split.name} ({split.image_names[image]}) hold NaN or numbers "
            f"above {most:g}: `selhn data check` on the folder lists all such rows; fix or remove them"
        )
