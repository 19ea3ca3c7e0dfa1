"""Pictures of the generated world, for people: models see features, never these."""

import math
from collections.abc import Sequence
from itertools import cycle

from PIL import Image, ImageDraw
from PIL.Image import Image as PILImage

from selhn.base.errors import SelhnError
from selhn.data.world.scenes import HORIZON, Scene, Thing

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]
Figures = list[tuple[str, tuple[float, ...], Colour]]
"""Kind of figure, its corners in percent of the picture, and its colour."""

DARK: Colour = (20, 20, 40)
WHITE: Colour = (255, 255, 255)
PAINT: dict[str, Colour] = {
    "red": (214, 60, 56),
    "orange": (240, 140, 48),
    "yellow": (246, 207, 70),
    "green": (78, 160, 86),
    "blue": (62, 112, 196),
    "purple": (130, 82, 168),
    "pink": (238, 146, 178),
    "brown": (134, 92, 62),
    "white": (246, 244, 240),
    "black": (52, 52, 58),
}
GROUND: dict[str, tuple[Colour, Colour, Colour]] = {
    # top of the sky, sky at the horizon, ground
    "beach": ((146, 204, 232), (222, 240, 244), (236, 216, 170)),
    "meadow": ((150, 200, 236), (226, 240, 240), (152, 196, 116)),
    "snow": ((178, 198, 216), (230, 236, 242), (240, 245, 250)),
    "desert": ((246, 190, 130), (252, 226, 180), (220, 164, 104)),
    "night": ((22, 28, 58), (62, 66, 112), (58, 74, 82)),
    "street": ((188, 198, 208), (226, 230, 232), (142, 146, 152)),
    "room": ((232, 222, 206), (240, 232, 220), (182, 138, 100)),
    "lake": ((170, 206, 224), (238, 226, 214), (104, 160, 186)),
}
_GOLDEN = 61.8  # multiples of it, modulo 100, scatter without clusters
SCENERY: dict[str, Figures] = {
    "beach": [("rectangle", (0, 38, 100, 45), (88, 164, 200)), ("ellipse", (76, 6, 90, 20), (255, 236, 150))],
    "meadow": [
        ("ellipse", (-10, 36, 55, 54), (128, 172, 104)),
        ("ellipse", (35, 34, 120, 56), (136, 182, 108)),
        ("rectangle", (0, 45, 100, 56), (152, 196, 116)),
    ],
    "snow": [
        ("polygon", (x - 18.0, 45.0, x, 45.0 - height, x + 18.0, 45.0), (202, 214, 228))
        for x, height in ((8.0, 20.0), (30.0, 28.0), (62.0, 22.0), (84.0, 30.0))
    ],
    "desert": [
        ("ellipse", (12, 10, 30, 28), (255, 240, 200)),
        ("ellipse", (30, 37, 125, 53), (232, 182, 122)),
        ("rectangle", (0, 45, 100, 54), (220, 164, 104)),
    ],
    "night": [
        ("ellipse", (x, y, x + 0.8, y + 0.8), (244, 238, 200))
        for x, y in ((k * _GOLDEN % 100, k * k * 7.3 % 42) for k in range(40))
    ],
    "street": [
        *(
            ("rectangle", (16.0 * k, 45.0 - height, 16.0 * k + 14, 45.0), (150 + height, 160, 186 - height))
            for k, height in enumerate((18, 30, 16, 26, 34, 22, 28))
        ),
        *(("rectangle", (24.0 * k - 5, 70.0, 24.0 * k + 7, 71.5), (236, 232, 210)) for k in range(5)),
    ],
    "room": [
        ("rectangle", (61, 7, 87, 33), (250, 250, 246)),
        ("rectangle", (63, 9, 85, 31), (186, 216, 236)),
        *(("rectangle", (0, 45 + 2.2 * k * k, 100, 45.6 + 2.2 * k * k), (158, 116, 82)) for k in range(6)),
    ],
    "lake": [
        ("ellipse", (-20, 33, 70, 56), (120, 150, 130)),
        ("rectangle", (0, 45, 100, 57), (104, 160, 186)),
        *(
            (
                "rectangle",
                (k * _GOLDEN % 100, 49 + 3.5 * k, k * _GOLDEN % 100 + 10, 49.7 + 3.5 * k),
                (150, 190, 208),
            )
            for k in range(14)
        ),
    ],
}
_SMOOTH = 3  # drawn this many times larger, then shrunk: edges without steps
_TILE = 256


def render(scene: Scene, size: int = 256) -> PILImage:
    """A square picture of a scene, far things first."""
    if size < 16:
        raise SelhnError(f"size={size}: a picture needs at least 16 pixels a side")
    full = size * _SMOOTH
    picture = _backdrop(scene.setting, full)
    for thing in sorted(scene.things, key=lambda thing: -thing.depth):
        x, y, wide = thing.x * full, thing.foot * full, 0.9 * thing.radius * full
        _shade(picture, "ellipse", [x - wide, y - 0.2 * wide, x + wide, y + 0.2 * wide], DARK, 80)
        side = max(2, round(2 * thing.radius * full))
        corner = round((thing.x - thing.radius) * full), round((thing.y - thing.radius) * full)
        tile = _tile(thing).resize((side, side), Image.Resampling.LANCZOS)
        picture.paste(tile, corner, tile)
    return picture.resize((size, size), Image.Resampling.LANCZOS)


def _mix(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second))
    return red, green, blue


def _shade(
    picture: PILImage, kind: str, corners: Sequence[float] | Points, colour: Colour, strength: int
) -> None:
    """Lay a figure of a colour over a picture, up to 255 for opaque."""
    mask = Image.new("L", picture.size)
    getattr(ImageDraw.Draw(mask), kind)(corners, fill=strength)
    picture.paste(colour, mask=mask)


def _backdrop(setting: str, full: int) -> PILImage:
    """Sky, ground, and a sign or two of where we are."""
    picture = Image.new("RGB", (full, full))
    draw = ImageDraw.Draw(picture)
    top, low, ground = GROUND[setting]
    horizon = round(HORIZON * full)
    for row in range(full):
        near = (row - horizon) / (full - horizon)
        colour = _mix(top, low, row / horizon) if row < horizon else _mix(ground, DARK, 0.15 * near)
        draw.line([(0, row), (full, row)], fill=colour)
    for kind, corners, colour in SCENERY[setting]:
        getattr(draw, kind)([place * full / 100 for place in corners], fill=colour)
    return picture


def _outline(shape: str) -> Points:
    """The silhouette in the square from -1 to 1, y downwards."""
    circle = [(math.cos(math.radians(turn)), math.sin(math.radians(turn))) for turn in range(0, 360, 4)]
    if shape == "star":
        return [(r * x, r * y) for r, (y, x) in zip(cycle((0.97, 0.42)), circle[45::9] + circle[:45:9])]
    if shape == "heart":
        waves = [(s**3, c, 2 * c * c - 1, 4 * c**3 - 3 * c, 8 * c**4 - 8 * c * c + 1) for c, s in circle]
        return [(0.97 * x, -(13 * a - 5 * b - 2 * c - d) / 14.8 - 0.14) for x, a, b, c, d in waves]
    if shape == "moon":
        inner = [(0.5 + 0.75 * x, 0.75 * y) for x, y in circle[72:17:-1]]
        return [(0.97 * x + 0.15, 0.97 * y) for x, y in circle[14:77] + inner]
    if shape == "cylinder":
        return [(0.75 * x, 0.2 * y + 0.76 * (1 if y >= 0 else -1)) for x, y in circle]
    if shape == "cone":
        return [(0.0, -0.97), *((0.85 * x, 0.2 * y + 0.76) for x, y in circle[:46])]
    corners: dict[str, Points] = {
        "cube": [(-0.9, -0.55), (-0.5, -0.95), (0.9, -0.95), (0.9, 0.55), (0.5, 0.95), (-0.9, 0.95)],
        "pyramid": [(0.05, -0.95), (0.95, 0.65), (0.25, 0.95), (-0.95, 0.75)],
        "gem": [(-0.5, -0.85), (0.5, -0.85), (0.95, -0.3), (0.0, 0.95), (-0.95, -0.3)],
    }
    return corners.get(shape) or [(0.95 * x, 0.95 * y) for x, y in circle]


FACES: dict[str, list[tuple[Points, int]]] = {
    # parts of a shape that the light reaches more (above 0) or less
    "cube": [
        ([(0.5, -0.55), (0.9, -0.95), (0.9, 0.55), (0.5, 0.95)], -70),
        ([(-0.9, -0.55), (-0.5, -0.95), (0.9, -0.95), (0.5, -0.55)], 60),
    ],
    "pyramid": [([(0.05, -0.95), (0.95, 0.65), (0.25, 0.95)], -70)],
    "gem": [
        ([(-0.95, -0.3), (-0.4, -0.3), (0.0, 0.95)], -40),
        ([(0.4, -0.3), (0.95, -0.3), (0.0, 0.95)], -75),
        ([(-0.5, -0.85), (0.5, -0.85), (0.4, -0.3), (-0.4, -0.3)], 70),
    ],
    "cylinder": [([(0.75 * math.cos(k / 9), 0.2 * math.sin(k / 9) - 0.76) for k in range(57)], 70)],
}


def _surface(thing: Thing) -> PILImage:
    """The colour of a thing as its material shows it, without its silhouette."""
    paint = PAINT[thing.colour]
    surface = Image.new("RGB", (_TILE, _TILE), paint)
    draw = ImageDraw.Draw(surface)
    for row in range(_TILE):
        down = row / _TILE
        bright = 0.5 + 0.5 * math.cos(2.6 * math.pi * down)
        if thing.material != "metal":
            tint, share = DARK, 0.3 * max(0.0, down - 0.45)
        elif bright > 0.3:  # light, dark, light: it mirrors sky and ground
            tint, share = WHITE, 0.7 * bright**2
        else:
            tint, share = DARK, 0.5 * (0.3 - bright) / 0.3
        draw.line([(0, row), (_TILE, row)], fill=_mix(paint, tint, share))
    if thing.material == "wood":
        tint, share = (WHITE, 0.25) if thing.colour == "black" else (DARK, 0.3)
        for k in range(-2, 12):
            grain = [(x, 26 * k + 12 * math.sin(x / 50 + 0.3 * k) + x / 6) for x in range(0, _TILE + 8, 8)]
            draw.line(grain, fill=_mix(paint, tint, share), width=7)
    if thing.material == "glass":
        for offset, wide in ((70, 26), (120, 10)):
            draw.line([(offset - 60, _TILE), (offset + 120, 0)], fill=_mix(paint, WHITE, 0.75), width=wide)
    return surface


def _tile(thing: Thing) -> PILImage:
    """One thing on a transparent square."""

    def placed(points: Points) -> Points:
        return [((x + 1) * _TILE / 2, (y + 1) * _TILE / 2) for x, y in points]

    tile = _surface(thing)
    for points, light in FACES.get(thing.shape, []):
        _shade(tile, "polygon", placed(points), WHITE if light > 0 else DARK, abs(light))
    if thing.shape == "ball":
        _shade(tile, "ellipse", [60, 40, 110, 84], WHITE, 60 if thing.material in ("rubber", "wood") else 200)
    silhouette = Image.new("L", tile.size)
    edge = placed(_outline(thing.shape))
    ImageDraw.Draw(silhouette).polygon(edge, fill=150 if thing.material == "glass" else 255)
    rim = _mix(PAINT[thing.colour], DARK, 0.45)
    rims = [edge]
    if thing.shape == "ring":
        rims.append([(_TILE / 2 + 0.5 * (x - _TILE / 2), _TILE / 2 + 0.5 * (y - _TILE / 2)) for x, y in edge])
        ImageDraw.Draw(silhouette).polygon(rims[1], fill=0)
    for line in rims:
        ImageDraw.Draw(tile).line([*line, line[0]], fill=rim, width=7, joint="curve")
        ImageDraw.Draw(silhouette).line([*line, line[0]], fill=255, width=7, joint="curve")
    tile.putalpha(silhouette)
    return tile
