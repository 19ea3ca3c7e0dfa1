"""Turns a picture into the features of its regions: backbone, boxes, and the form that a model takes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.names import NAMED_LIBRARIES, named_object
from selhn.data import Projection
from selhn.pictures.backbones import Backbone, create_backbone
from selhn.pictures.ready import load_ready_projection
from selhn.pictures.tower_vectors import REDUCED
from selhn.towers import Preparation
from selhn.towers.ready import READY, networks
from selhn.towers.ready.networks import CODES

EMBEDDING = "embedding:"
Form = Literal["raw", "full", "pca"]
Detector = Callable[[Image.Image], Float[Tensor, "M 4"]]
NO_PIXELS = torch.empty(3, 0, 0)


@dataclass(frozen=True)
class Prepared:
    """A picture ready for the backbone."""

    pixels: Float[Tensor, "3 H W"]
    boxes: Float[Tensor, "M 4"]
    map: Float[Tensor, "C h w"] | None = None
    """Output of the backbone, if already computed; the pixels are dropped then."""


@dataclass(frozen=True)
class Extractor:
    """Turns pictures into region features: whole picture, cells of a grid, and boxes if there is a detector.

    raw:   x = mean of the map over the box
    pca:   z = clip((sqrt(x) - mean) @ components)
    full:  relu(mean + z @ components')

    Args:
        backbone: the vision model.
        cells: cells of the grid along each side; 3 makes 1 + 9 regions, 0 the whole picture alone.
        projection: of a pocket folder, for the forms pca and full.
        detector: returns further boxes of a picture, always the same number: x1, y1, x2, y2 as
            shares of width and height.
        detector_name: identifies the detector, so that the features of two are never mixed.
        name: the name by which `load_extractor` makes it again, if there is one.
    """

    backbone: Backbone
    cells: int = 3
    form: Form = "raw"
    projection: Projection | None = None
    detector: Detector | None = None
    detector_name: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        if self.form not in ("raw", "full", "pca"):
            raise SelhnError(f'form is {self.form!r}: choose "raw", "full" or "pca"')
        if self.form != "raw" and self.projection is None:
            raise SelhnError(f'form="{self.form}" needs a projection: pass one, or take form="raw"')
        if self.projection is not None and len(self.projection.mean) != self.backbone.width:
            raise SelhnError(
                f"the projection is for {len(self.projection.mean)} channels and {self.backbone.name} has "
                f"{self.backbone.width}: use the projection that was made with it"
            )
        if (self.detector is None) != (self.detector_name == ""):
            raise SelhnError("a detector and its name go together: give both, or neither")

    @property
    def width(self) -> int:
        """F, the numbers per region."""
        if self.form == "pca" and self.projection is not None:
            return len(self.projection.scale)
        return self.backbone.width

    @property
    def identity(self) -> str:
        """Differs whenever the features would differ, up to how JPEGs are decoded: see `cached_as`."""
        parts = [self.backbone.name, f"grid {self.cells}", self.form, self.detector_name]
        if self.projection is not None and self.form != "raw":
            kept = (self.projection.mean, self.projection.components, self.projection.scale)
            digest = hashlib.sha256(b"".join(x.float().cpu().numpy().tobytes() for x in kept))
            parts.append(digest.hexdigest()[:16])
        return ", ".join(parts)

    @property
    def in_threads(self) -> bool:
        """Whether pictures are computed fastest one at a time, each in a thread of its own, as on a CPU."""
        device = getattr(self.backbone, "device", None)
        return device is not None and device.type == "cpu"

    @property
    def cached_as(self) -> str:
        """`identity` for features in a cache: versions that decode large JPEGs in another way have others.

        An index compares `identity` alone, because vectors made by either belong together (cosine 0.999).
        """
        return self.identity if self.resized is None else f"{self.identity}, {REDUCED}"

    @property
    def resized(self) -> tuple[int, int] | None:
        """Width and height, if `prepare` begins with squashing a picture to that size: a decoder may do so before."""
        resizing = self.backbone.prepare if self.detector is None else None
        return resizing.resized if isinstance(resizing, Preparation) else None

    def prepare(self, image: Image.Image) -> Prepared:
        """What can be done ahead, in another thread."""
        boxes = _grid(self.cells)
        if self.detector is not None:
            boxes = torch.cat([boxes, self.detector(image)])
        return Prepared(torch.as_tensor(self.backbone.prepare(image)), boxes)

    @torch.inference_mode()
    def compute(self, picture: Prepared) -> Prepared:
        """The most expensive part of `extract`, for one picture; the rest is cheaper in batches."""
        return Prepared(NO_PIXELS, picture.boxes, self.backbone.maps(picture.pixels[None])[0])

    @torch.inference_mode()
    def extract(self, pictures: Sequence[Prepared]) -> Float[Tensor, "B M F"]:
        """The features of some pictures, on the CPU."""
        known = [picture.map for picture in pictures if picture.map is not None]
        maps = (
            torch.stack(known) if known else self.backbone.maps(torch.stack([own.pixels for own in pictures]))
        )
        return self.projected(
            pool_boxes(maps.float(), torch.stack([picture.boxes for picture in pictures])).cpu()
        )

    def projected(self, means: Float[Tensor, "B M C"]) -> Float[Tensor, "B M F"]:
        """Features of the form, from means of the map over the boxes."""
        projection = self.projection
        if self.form == "raw" or projection is None:
            return means
        # After a ReLU, only rounding gives values below zero.
        coordinates = (means.clamp(min=0).sqrt() - projection.mean) @ projection.components
        coordinates = coordinates.clamp(-CODES * projection.scale, CODES * projection.scale)
        if self.form == "pca":
            return coordinates
        return (projection.mean + coordinates @ projection.components.T).relu()

    def __call__(self, images: Sequence[Image.Image]) -> Float[Tensor, "B M F"]:
        return self.extract([self.prepare(image) for image in images])


def load_extractor(name: str = READY, device: torch.device | str = "cpu", cells: int = 3) -> Extractor:
    """The extractor of the ready model or, by the name of a vision model, one that pools its map.

    "embedding:transformers:NAME" is the picture tower of such a model: one region, the vector of the picture.
    """
    if name.startswith(EMBEDDING):
        return (
            named_object(NAMED_LIBRARIES["transformers"])(name.removeprefix(EMBEDDING)).to(device).extractor
        )
    if name != READY:
        backbone = create_backbone(name, device)
        own = getattr(backbone, "cells", None)
        return Extractor(backbone, cells if own is None else own, name=name if own or cells == 3 else None)
    if cells != 3:
        raise SelhnError(f"cells is {cells}: the ready model takes 3 x 3; name another vision model")
    backbone = create_backbone("efficientnet_lite2", device)
    return Extractor(backbone, 3, "full", load_ready_projection(), name=READY)


def grid_boxes(cells: int = 3) -> Float[Tensor, "M 4"]:
    """The whole picture, then cells x cells of it row by row: x1, y1, x2, y2 from 0 to 1."""
    if cells < 0:
        raise SelhnError(
            f"cells is {cells}: a grid has at least one cell per side, and 0 is the picture alone"
        )
    return torch.from_numpy(networks.grid_boxes(cells)).float()


_grid = lru_cache(16)(grid_boxes)


def pool_boxes(maps: Float[Tensor, "B C h w"], boxes: Float[Tensor, "B M 4"]) -> Float[Tensor, "B M C"]:
    """The mean of the map over each box, where a cell counts by the area it shares with the box."""
    height, width = maps.shape[2:]
    shares = torch.stack([box_shares(own, height, width) for own in boxes])
    return shares.to(maps) @ maps.flatten(2).transpose(1, 2)


def box_shares(boxes: Float[Tensor, "M 4"], height: int, width: int) -> Float[Tensor, "M cells"]:
    """How much of each box of a picture is in each cell of a map."""
    return _shares(tuple(map(tuple, boxes.tolist())), height, width)


@lru_cache(64)
def _shares(boxes: tuple[tuple[float, ...], ...], height: int, width: int) -> Float[Tensor, "M cells"]:
    """`box_shares`, cached because most boxes form a grid."""
    x1, y1, x2, y2 = torch.tensor(boxes, dtype=torch.float64).T[..., None]
    if not bool(((x1 >= 0) & (x1 < x2) & (x2 <= 1) & (y1 >= 0) & (y1 < y2) & (y2 <= 1)).all()):
        raise SelhnError(
            "a box needs 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1, shares of the picture's width and height"
        )
    parts = []
    for low, high, cells in ((y1, y2, height), (x1, x2, width)):
        edges = torch.arange(cells + 1, dtype=torch.float64) / cells
        shared = torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])
        parts.append(shared.clamp(min=0) / (high - low))
    return torch.einsum("mh,mw->mhw", *parts).flatten(1)
