"""Scenes of the generated world: a few coloured things in a setting, many as tensors or one in words."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.data.world.counter import Draws

SHAPES = ("ball", "cube", "cone", "cylinder", "pyramid", "ring", "star", "heart", "moon", "gem")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "white", "black")
SIZES = ("small", "medium", "large")
MATERIALS = ("metal", "wood", "glass", "rubber")
SETTINGS = ("beach", "meadow", "snow", "desert", "night", "street", "room", "lake")
KINDS = {"shape": SHAPES, "colour": COLOURS, "size": SIZES, "material": MATERIALS}
RELATIONS = ("left of", "right of", "above", "below", "in front of", "behind", "next to")

MOST_THINGS = 8
HORIZON = 0.45
_RADIUS = (0.055, 0.085, 0.12)
_CLEARLY = 0.2
"""How far apart, as a share of the picture, two things must be before a caption says so."""


@dataclass(frozen=True)
class Thing:
    """One object: centre x, y and radius (half its height) as shares of the picture; depth 1 is far."""

    shape: str
    colour: str
    size: str
    material: str
    x: float
    y: float
    foot: float
    """Height of its shadow: below y + radius when it floats."""
    depth: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """What one picture shows."""

    name: str
    setting: str
    things: tuple[Thing, ...]


class Scenes(NamedTuple):
    """B scenes of up to K things; numbers index the tables of words above."""

    setting: Int[Tensor, " B"]
    present: Bool[Tensor, "B K"]
    shape: Int[Tensor, "B K"]
    colour: Int[Tensor, "B K"]
    size: Int[Tensor, "B K"]
    material: Int[Tensor, "B K"]
    x: Float[Tensor, "B K"]
    y: Float[Tensor, "B K"]
    foot: Float[Tensor, "B K"]
    depth: Float[Tensor, "B K"]
    radius: Float[Tensor, "B K"]

    @property
    def boxes(self) -> Float[Tensor, "B K 4"]:
        """x1, y1, x2, y2 of every thing; things that are not there have an empty box."""
        x, y, radius = self.x, self.y, self.radius
        boxes = torch.stack([x - radius, y - radius, x + radius, y + radius], dim=-1).clamp(0, 1)
        return boxes * self.present[..., None]

    def repeat(self, times: int) -> "Scenes":
        return Scenes._make(numbers.repeat_interleave(times, dim=0) for numbers in self)

    def pick(self, things: Int[Tensor, " B"]) -> "Scenes":
        """The same scenes with one thing each."""
        return Scenes(self.setting, *(numbers.gather(1, things[:, None]) for numbers in self[1:]))

    def scene(self, row: int, name: str) -> Scene:
        things = []
        for k in range(int(self.present[row].sum())):
            numbers = {f.name: getattr(self, f.name)[row, k].item() for f in fields(Thing)}
            words = {kind: table[numbers[kind]] for kind, table in KINDS.items()}
            things.append(Thing(**numbers | words))
        return Scene(name, SETTINGS[int(self.setting[row])], tuple(things))


def relations(first: Scenes, second: Scenes) -> Bool[Tensor, "B 7"]:
    """Which of RELATIONS hold between two picked things of every scene."""
    dx = (second.x - first.x)[:, 0]
    dy = (second.y - first.y)[:, 0]
    away = (first.depth - second.depth)[:, 0]
    near = (dx.abs() < _CLEARLY) & (dy.abs() < _CLEARLY)
    apart = [dx > _CLEARLY, dx < -_CLEARLY, dy > _CLEARLY, dy < -_CLEARLY, away < -_CLEARLY, away > _CLEARLY]
    return torch.stack([*apart, near], dim=1)


@dataclass(frozen=True)
class SceneSource:
    """Scene number i of a split, for any i: nothing is stored, and more images never change the earlier ones.

    `make_world` says what the settings are.
    """

    seed: int
    split: str
    objects: tuple[int, int] = (3, 6)
    twins: float = 0.3

    def draw(self, rows: Int[Tensor, " B"]) -> Scenes:
        draws = Draws(self.seed, self.split)
        is_twin = (rows % 2 == 1) & (draws.uniform("twin", rows) < self.twins)
        base = torch.where(is_twin, rows - 1, rows)
        few, many = self.objects
        count = few + draws.integers("count", base, below=many - few + 1)
        looks = {key: draws.integers(key, base, many, below=len(table)) for key, table in KINDS.items()}
        changed_thing = draws.integers("changed thing", rows, 1, below=2**20) % count[:, None]
        changed_kind = draws.integers("changed kind", rows, 1, below=len(KINDS))
        for number, (key, table) in enumerate(KINDS.items()):
            changes = is_twin[:, None] & (changed_kind == number)
            changes = changes & (torch.arange(many, device=rows.device) == changed_thing)
            step = 1 + draws.integers(f"new {key}", rows, 1, below=len(table) - 1)
            looks[key] = torch.where(changes, (looks[key] + step) % len(table), looks[key])
        present = torch.arange(many, device=rows.device) < count[:, None]
        setting = draws.integers("setting", base, below=len(SETTINGS))
        return Scenes(setting, present, **looks, **_place(draws, base, many, looks["size"]))


def _place(
    draws: Draws, rows: Int[Tensor, " B"], many: int, size: Int[Tensor, "B K"]
) -> dict[str, Float[Tensor, "B K"]]:
    """Positions of things: one per column so that few are hidden, on the ground or floating above it."""
    column = draws.uniform("column", rows, many).argsort(dim=1)
    x = (column + 0.25 + 0.5 * draws.uniform("x", rows, many)) / many
    depth = draws.uniform("depth", rows, many)
    foot = 0.95 - 0.4 * depth
    # Not a table on the device: copying one there is forbidden while a CUDA graph is captured.
    radius = sum(((size == k) * near for k, near in enumerate(_RADIUS)), 0 * depth) * (1 - 0.4 * depth)
    floats = draws.uniform("floats", rows, many) < 0.3
    lift = floats * (0.15 + 0.25 * draws.uniform("lift", rows, many))
    y = torch.maximum(foot - lift - radius, radius + 0.02)
    x = torch.minimum(torch.maximum(x, radius), 1 - radius)
    return {"x": x, "y": y, "foot": foot, "depth": depth, "radius": radius}
