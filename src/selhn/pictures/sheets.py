"""A contact sheet: questions, each with the pictures that answer it in a row, best first."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont, ImageOps

SIDE, GAP, TOP, BOTTOM = 200, 12, 44, 34
FRAME = "#16a34a"


@dataclass(frozen=True, eq=False)
class Tile:
    """A picture, what is written under it, and whether it has a green frame."""

    picture: Image.Image
    label: str
    framed: bool = False


def contact_sheet(rows: Sequence[tuple[str, Sequence[Tile]]]) -> Image.Image:
    """Rows of a title and some tiles; pictures are made to fit, never cut or stretched."""
    columns = max(1, *(len(tiles) for _, tiles in rows)) if rows else 1
    height = TOP + SIDE + BOTTOM
    sheet = Image.new("RGB", (columns * (SIDE + GAP) + GAP, height * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (title, tiles) in enumerate(rows):
        top = row * height
        draw.text((GAP, top + 14), title, fill="#111111", font=ImageFont.load_default(18))
        for column, tile in enumerate(tiles):
            picture = ImageOps.contain(tile.picture, (SIDE, SIDE))
            left = GAP + column * (SIDE + GAP)
            x, y = left + (SIDE - picture.width) // 2, top + TOP + (SIDE - picture.height) // 2
            if tile.framed:
                draw.rectangle((x - 5, y - 5, x + picture.width + 4, y + picture.height + 4), fill=FRAME)
            sheet.paste(picture, (x, y))
            font = ImageFont.load_default(15)
            draw.text((left, top + TOP + SIDE + 8), tile.label, fill="#444444", font=font)
    return sheet
