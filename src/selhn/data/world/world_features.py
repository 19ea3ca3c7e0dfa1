"""The generated world: scenes whose region features have the statistics of real ones, made on the fly.

A region's feature has the form of real ones, `relu(mean * (1 + gain) + z @ components')`, with a longer tail.
All regions share the mean; the gain along it is strong on things, weak on empty ground; z is a code of what
the region's box shows: the looks of its things, the setting, its position, a style that all regions of the
picture share, and noise. The constants were chosen by the statistics of Flickr8k's features alone
(docs/world.md).
"""

import copy
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from selhn.base.errors import NotFound, SelhnError
from selhn.data.features import Features, Regions
from selhn.data.splits import Data, Split
from selhn.data.world.counter import Draws
from selhn.data.world.grammar import NUM_CAPTIONS, WorldCaptions
from selhn.data.world.scenes import (
    COLOURS,
    MATERIALS,
    MOST_THINGS,
    SETTINGS,
    SHAPES,
    SIZES,
    Scene,
    Scenes,
    SceneSource,
)

LEAST_HELD_OUT = 100
"""The fewest images of dev and of test."""
CODE = 256
"""Width of z: with as many independent directions the features reach the effective rank of real ones."""
MEAN, MEAN_SPREAD = 0.185, 0.22
GAIN_EMPTY, GAIN_THING, GAIN_NOISE, GAIN_CONTENT = -0.4, 0.15, 0.52, 0.35
"""Gain on empty ground and on a thing, how much it varies between regions, and its share in z."""
THING, SETTING, PLACE, STYLE, NOISE = 0.185, 0.155, 0.05, 0.16, 0.105
"""Standard deviation that each source adds to an entry of a feature."""
SKEW = 0.5
"""Real entries have a long tail upwards: x + SKEW * x^2, which leaves zeros unchanged."""
CONTEXT = 0.3
"""How much a region also sees of the whole scene, as the wide view of a convolutional network does."""
LOOK_SHARES = {"shape": 0.25, "colour": 0.2, "binding": 0.35, "material": 0.12, "size": 0.08}
"""Variance of a thing's look by its source; binding is what is special to one shape in one colour."""
_LOOK_ROWS = {
    "shape": len(SHAPES),
    "colour": len(COLOURS),
    "binding": len(SHAPES) * len(COLOURS),
    "material": len(MATERIALS),
    "size": len(SIZES),
}


def _directions(name: str, rows: int, width: int, scale: float) -> Float[Tensor, "rows width"]:
    """Fixed random directions, the same for every seed: a red ball looks the same in all samples."""
    return Draws("looks").normal(name, torch.arange(rows), width) * scale


def _make_tables(width: int) -> dict[str, Tensor]:
    """All that is fixed about how things look."""
    looks = [
        _directions(key, rows, CODE, THING * LOOK_SHARES[key] ** 0.5) for key, rows in _LOOK_ROWS.items()
    ]
    mean = MEAN * (1 + MEAN_SPREAD * _directions("mean", 1, width, 1.0)[0]).clamp(min=0.1)
    return {
        "looks": torch.cat(looks),
        "setting": _directions("setting", len(SETTINGS), CODE, SETTING),
        "place": _directions("place", 4, CODE, PLACE),
        "mean": mean,
        # Real features vary more where their mean is larger.
        "components": _directions("components", width, CODE, CODE**-0.5) * (mean / MEAN)[:, None],
    }


class WorldFeatures(Features):
    """Region features of a split, computed from the scenes when they are gathered.

    Region 0 is the whole picture, then one per thing, then crops anywhere.
    """

    def __init__(self, source: SceneSource, num_images: int, num_regions: int, width: int, noise: float):
        self.source, self.noise = source, noise
        self._shape = num_images, num_regions, width
        self._tables = _make_tables(width)
        self._draws = Draws(source.seed, source.split, "features")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._shape

    def read(self, rows: Int[Tensor, " B"]) -> Regions:
        # Looking at numbers on a device would wait for it; there the caller is trusted.
        if (
            rows.device.type == "cpu"
            and len(rows)
            and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_images
        ):
            raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} of {self.num_images} images")
        rows = rows.to(self._tables["mean"].device)
        scenes = self.source.draw(rows)
        boxes = self.boxes(rows, scenes)
        seen = _seen(boxes, scenes.boxes)
        filled = seen.sum(dim=2, keepdim=True).clamp(max=1)
        gain = GAIN_EMPTY + (GAIN_THING - GAIN_EMPTY) * filled
        gain = gain + GAIN_NOISE * self._draws.normal("gain", rows, self.num_regions, 1)
        content = self._codes(rows, scenes, boxes, seen) @ self._tables["components"].T
        strength = (1 + GAIN_CONTENT * gain).clamp(min=0)
        features = torch.addcmul(self._tables["mean"] * (1 + gain), strength, content).relu_()
        features = torch.addcmul(features, features, features, value=SKEW)
        return features, torch.ones(features.shape[:2], dtype=torch.bool, device=rows.device)

    def to(self, device: torch.device | str) -> "WorldFeatures":
        moved = copy.copy(self)
        moved._tables = {name: table.to(device) for name, table in self._tables.items()}
        return moved

    @property
    def num_bytes(self) -> int:
        """Size of the tables; it does not grow with the number of images."""
        return sum(table.nbytes for table in self._tables.values())

    def _codes(
        self,
        rows: Int[Tensor, " B"],
        scenes: Scenes,
        boxes: Float[Tensor, "B M 4"],
        seen: Float[Tensor, "B M K"],
    ) -> Float[Tensor, "B M d"]:
        """z: what every region shows, as one sum over things, setting, picture and place, and noise."""
        tables = self._tables
        looks = self._looks(scenes)
        everything = scenes.present / scenes.present.sum(dim=1, keepdim=True)
        picture = CONTEXT * (everything[:, None] @ looks)
        # The components add up so many entries of z that uniform noise in it comes out Gaussian.
        picture += self.noise * STYLE * self._draws.noise("style", rows, 1, CODE)
        amount = seen.sum(dim=2, keepdim=True)
        ones = torch.ones_like(amount)
        weights = [seen / amount.clamp(min=1), 1 - 0.5 * amount.clamp(max=1), ones, (boxes - 0.5) / 0.3]
        place = tables["place"].expand(len(rows), -1, -1)
        sources = [looks, tables["setting"][scenes.setting][:, None], picture, place]
        noise = self._draws.noise("noise", rows, self.num_regions, CODE)
        return torch.baddbmm(
            noise, torch.cat(weights, dim=2), torch.cat(sources, dim=1), beta=self.noise * NOISE
        )

    def _looks(self, scenes: Scenes) -> Float[Tensor, "B K d"]:
        """How every thing looks: the sum of the rows of its attributes."""
        binding = scenes.shape * len(COLOURS) + scenes.colour
        chosen = scenes.shape, scenes.colour, binding, scenes.material, scenes.size
        starts = [0, *accumulate(_LOOK_ROWS.values())]
        rows = torch.stack([which + start for which, start in zip(chosen, starts)], dim=-1)
        return embedding_bag(rows.flatten(0, 1), self._tables["looks"], mode="sum").view(
            *rows.shape[:2], CODE
        )

    def boxes(self, rows: Int[Tensor, " B"], scenes: Scenes) -> Float[Tensor, "B M 4"]:
        """x1, y1, x2, y2 of every region of some images; their scenes are given too."""
        draws = Draws(self.source.seed, self.source.split, "boxes")
        corners = draws.uniform("corner", rows, self.num_regions, 2) * 0.6
        sides = 0.2 + 0.2 * draws.uniform("side", rows, self.num_regions, 2)
        boxes = torch.cat([corners, corners + sides], dim=2)
        # A detector's box is never quite right: up to a twentieth of the thing's height off.
        wobble = 0.1 * (draws.uniform("wobble", rows, scenes.x.shape[1], 4) - 0.5) * scenes.radius[..., None]
        found = (scenes.boxes + wobble).clamp(0, 1)
        slots = slice(1, 1 + found.shape[1])
        boxes[:, slots] = torch.where(scenes.present[..., None], found, boxes[:, slots])
        boxes[:, 0, :2] = 0
        boxes[:, 0, 2:] = 1
        return boxes


def _seen(regions: Float[Tensor, "B M 4"], things: Float[Tensor, "B K 4"]) -> Float[Tensor, "B M K"]:
    """The share of every thing that is inside every region."""
    low = torch.maximum(regions[:, :, None, :2], things[:, None, :, :2])
    high = torch.minimum(regions[:, :, None, 2:], things[:, None, :, 2:])
    inside = (high - low).clamp(min=0).prod(dim=-1)
    return inside / (things[..., 2:] - things[..., :2]).prod(dim=-1).clamp(min=1e-6)[:, None]


def make_world(
    images: int = 6000,
    seed: int = 0,
    *,
    regions: int = 12,
    width: int = 256,
    objects: tuple[int, int] = (3, 6),
    noise: float = 1.0,
    twins: float = 0.3,
) -> Data:
    """A generated data set with five captions per image; the same settings always give the same data.

    Args:
        images: size of the training split; dev and test have a sixth of it each, between 100 and 1,000.
        seed: which sample of the world; how things look does not depend on it.
        regions: regions per image (M), at least one more than the most objects.
        width: width of a region feature (F).
        objects: the fewest and the most things in a scene.
        noise: scales the style of a picture and the noise of a region; 1 has the statistics of real features.
        twins: share of odd-numbered scenes that repeat the scene before them with one attribute changed.
    """
    if len(objects) != 2 or not all(isinstance(number, int) for number in objects):
        raise SelhnError(f"objects={objects}: give two whole numbers, the fewest and the most things")
    few, many = objects
    for name, value, fits, wanted in (
        ("images", images, 1 <= images <= 10_000_000, "ask for 1 to 10,000,000"),
        ("objects", objects, 3 <= few <= many <= MOST_THINGS, f"give 3 <= fewest <= most <= {MOST_THINGS}"),
        (
            "regions",
            regions,
            regions > many,
            f"{many} objects and the picture need at least {many + 1} regions",
        ),
        ("width", width, width >= 1, "a feature needs at least one number"),
        ("noise", noise, noise >= 0, "give 0 for none, 1 for that of real features, or more"),
        ("twins", twins, 0 <= twins <= 1, "give a share between 0 and 1"),
    ):
        if not fits:
            raise SelhnError(f"{name}={value}: {wanted}")
    held_out = min(1000, max(LEAST_HELD_OUT, images // 6))

    def make_split(name: str, size: int) -> Split:
        source = SceneSource(seed, name, (few, many), twins)
        features = WorldFeatures(source, size, regions, width, noise)
        boxes = torch.cat(
            [features.boxes(rows, source.draw(rows)) for rows in torch.arange(size).split(1 << 14)]
        )
        image_of_text = torch.arange(size).repeat_interleave(NUM_CAPTIONS)
        names = [f"{name}-scene-{number:06d}" for number in range(size)]
        return Split(name, features, WorldCaptions(source, size), image_of_text, names, boxes)

    return Data(
        "world", make_split("train", images), make_split("dev", held_out), make_split("test", held_out)
    )


def world_scene(split: Split, index: int) -> Scene:
    """What image `index` of a generated split shows, to look at with `render`."""
    if not isinstance(split.features, WorldFeatures):
        raise SelhnError(f"the split {split.name!r} is not of the generated world: it has no scenes")
    if not 0 <= index < split.num_images:
        raise NotFound(f"there is no scene {index} among {split.num_images}: count from 0")
    return split.features.source.draw(torch.tensor([index])).scene(0, split.image_names[index])
