"""Side inputs of a split: inputs that a few models need besides regions and tokens, read when first used.

`base/types.py` has the table of their names, `SIDE_INPUTS`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from selhn.base.errors import SelhnError
from selhn.base.names import did_you_mean
from selhn.base.types import SIDE_INPUTS
from selhn.data.features import blocks

Given: TypeAlias = Tensor | Callable[[], Tensor]
"""A side input, or a function that reads it."""


class SideInputs(Mapping[str, Tensor]):
    """All side inputs of a split by name, with a row per image or per text.

    The neighbours of regions (`adjacency`) are made from the boxes if they are not given.
    """

    def __init__(self, given: Mapping[str, Given], boxes: Tensor | None, images: int, texts: int, split: str):
        wrong = next((name for name in given if name not in SIDE_INPUTS or name == "boxes"), None)
        if wrong is not None:
            known = did_you_mean(wrong, [name for name in SIDE_INPUTS if name != "boxes"])
            raise SelhnError(f"{split}: unknown side input {wrong!r}: {known}; boxes are given as boxes=")
        self._given, self._all = given, {**given}
        if boxes is not None:
            self._all = {"boxes": boxes, "adjacency": partial(neighbours, boxes), **given}
        self._rows = {"images": images, "texts": texts}
        self._split = split
        self._ready: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._ready:
            given = self._all[name]
            self._ready[name] = self._checked(name, given if isinstance(given, Tensor) else given())
        return self._ready[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all  # and not by reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def some(self, images: Int[Tensor, " R"], texts: Int[Tensor, " S"]) -> dict[str, Given]:
        """The side inputs of some images and texts; nothing is read before it is used."""
        return {name: partial(self._some, name, images, texts) for name in self._given}

    def _some(self, name: str, images: Int[Tensor, " R"], texts: Int[Tensor, " S"]) -> Tensor:
        return self[name][images if SIDE_INPUTS[name].of == "images" else texts]

    def _checked(self, name: str, value: Tensor) -> Tensor:
        entry, axes = SIDE_INPUTS[name], SIDE_INPUTS[name].axes.split()
        if value.ndim != 1 + len(axes) or len(value) != self._rows[entry.of]:
            raise SelhnError(
                f"{self._split}: {name} have shape {tuple(value.shape)} for {self._rows[entry.of]} "
                f"{entry.of}: give ({entry.of}, {', '.join(axes)}), a row for each"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise SelhnError(f"{self._split}: {name} hold NaN or infinity: write the file again")
        return value if entry.dtype is None else value.to(entry.dtype)


def neighbours(boxes: Float[Tensor, "I M 4"]) -> Bool[Tensor, "I M M"]:
    """For each region: itself, and the nearest centre to its right, above it, to its left and below it.

    The directions meet at the diagonals (Zhang et al., CMCAN, AAAI 2022). A box without width and height is
    padding and has no neighbours.
    """
    parts = blocks(len(boxes), 80 * boxes.shape[1] ** 2)
    return torch.cat(
        [boxes.new_zeros(0, *[boxes.shape[1]] * 2).bool(), *(_neighbours(boxes[part]) for part in parts)]
    )


def _neighbours(boxes: Float[Tensor, "I M 4"]) -> Bool[Tensor, "I M M"]:
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    right, down = (centres[:, None] - centres[:, :, None]).unbind(-1)  # of region j, seen from region i
    up, distance = -down, right.square() + down.square()
    # Official: a diagonal belongs to the direction that comes next against the clock, an equal centre to the left.
    to_right, above, below = (
        (up >= -right) & (up < right),
        (right <= up) & (right > -up),
        (right >= up) & (right < -up),
    )
    itself = torch.eye(boxes.shape[1], dtype=torch.bool, device=boxes.device)
    real = (boxes[..., 2:] > boxes[..., :2]).any(-1)
    possible = real[:, None] & real[:, :, None] & ~itself
    found = itself.expand(len(boxes), -1, -1)
    for direction in (to_right, above, ~(to_right | above | below), below):
        nearest = distance.masked_fill(~(direction & possible), torch.inf).min(2)
        found = found | one_hot(nearest.indices, boxes.shape[1]).bool() & nearest.values.isfinite()[..., None]
    return found
