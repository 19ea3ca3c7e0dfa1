"""Answers to a search as a person sees them: lines, JSON, or a sheet of pictures."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from selhn.base.errors import NotFound, SelhnError
from selhn.base.files import write_whole
from selhn.base.names import printable
from selhn.pictures import Library
from selhn.search import Hit, Record
from selhn.search.items import date_of, seconds_of, whole

SIDE, GAP, TOP, BOTTOM = 200, 12, 44, 54
TITLE_SIZE, LABEL_SIZE = 18, 15
FRAME = "#16a34a"
FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "Arial Unicode.ttf",
    "arial.ttf",
)
"""Fonts of Linux, macOS and Windows for letters that Pillow's own does not have, such as ö."""


def answers(found: Sequence[Hit | Record], as_json: bool = False) -> str:
    """Lines of rank, score or date, path or text, and a caption if one is known."""
    if as_json:
        return json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False)
    if not found:
        return "nothing found: the index is empty, or the filter leaves nothing"
    judged = any(isinstance(one, Hit) and one.fit is not None for one in found)
    fitting = [isinstance(one, Hit) and one.fits for one in found]
    marks = [("* " if fits else "  ") if any(fitting) else "" for fits in fitting]
    captions = [printable(" ".join(one.captions[:1])) for one in found]
    lines = [
        f"{mark}{rank:2}  {_value(one)}  {_shown(getattr(one, 'name', one.id)):24} {captions[rank - 1]}"
        for rank, (one, mark) in enumerate(zip(found, marks), 1)
    ]
    lines = [line.rstrip() for line in lines]
    if any(fitting):
        return "\n".join([*lines, "* likely match"])
    return "\n".join(["no sure match; the nearest are:", *lines] if judged else lines)


def _value(one: Hit | Record) -> str:
    return f"{one.score:6.3f}" if isinstance(one, Hit) else f"{date_of(one)[:16]:16}"


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
        draw.text((GAP, top + 14), title, fill="#111111", font=font_for(title, TITLE_SIZE))
        for column, tile in enumerate(tiles):
            picture = ImageOps.contain(tile.picture, (SIDE, SIDE))
            left = GAP + column * (SIDE + GAP)
            x, y = left + (SIDE - picture.width) // 2, top + TOP + (SIDE - picture.height) // 2
            if tile.framed:
                draw.rectangle((x - 5, y - 5, x + picture.width + 4, y + picture.height + 4), fill=FRAME)
            sheet.paste(picture, (x, y))
            below = left, top + TOP + SIDE + 8
            draw.text(below, tile.label, fill="#444444", font=font_for(tile.label, LABEL_SIZE))
    return sheet


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture in the format of the file's extension."""
    kind = Image.registered_extensions()[path.suffix.lower()]
    write_whole(path, lambda file: picture.save(file, kind))


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, which is the same everywhere; one of the system if the text has letters that it lacks."""
    own = ImageFont.load_default(size)
    if not _has_boxes(own, text):
        return own
    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return own


def _has_boxes(font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: str) -> bool:
    """Whether a font draws a letter as the box that stands for letters it does not have."""
    box = bytes(font.getmask("\uffff"))
    return any(bytes(font.getmask(letter)) == box for letter in set(text) if not letter.isascii())


def require_sheet(path: Path) -> None:
    """Refuse a file that a contact sheet cannot be written to, before any work is done."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise SelhnError(
            f"--sheet {path}: cannot write pictures as {path.suffix or 'that'}: use .png or .jpg"
        )
    if not path.parent.is_dir():
        raise NotFound(f"--sheet {path}: there is no folder {path.parent}: make it, or name another")


def answer_tiles(library: Library, found: Sequence[Hit | Record]) -> list[Tile]:
    """The pictures that were found with their scores or dates, and their file names."""
    tiles = []
    for rank, one in enumerate(found, 1):
        label, name = f"{rank}.  {_value(one).strip()}", f"\n{_shortened(Path(_shown(one.id)).name)}"
        small = library.thumbnail(one, SIDE)
        if small is not None:
            tiles.append(Tile(Image.open(BytesIO(small)).convert("RGB"), label + name))
        else:  # deleted, or changed, since it was indexed; or in a folder that was not named
            tiles.append(Tile(Image.new("RGB", (1, 1), "#ddd"), f"{label}  (missing){name}"))
    return tiles


def _shortened(name: str) -> str:
    """A name that fits under a picture: its beginning and its end."""
    font, shown, kept = font_for(name, LABEL_SIZE), name, len(name)
    while font.getlength(shown) > SIDE and kept > 2:
        kept -= 1
        shown = f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"
    return shown


def _shown(name: str) -> str:
    """A name that a screen can show; a relative path if the file is below the current folder."""
    path, moment = Path(whole(name)), seconds_of(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        name = str(path.relative_to(Path.cwd()))
    elif moment is not None:
        name = str(path)
    name += "" if moment is None else f" at {int(moment) // 60}:{int(moment) % 60:02}"
    return printable(name)
