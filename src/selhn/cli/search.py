"""`selhn index` and `selhn search`: fill an index and search it from the command line."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from shlex import quote

from PIL import Image, ImageDraw, ImageFont, ImageOps

from selhn.base.errors import NotFound, SelhnError
from selhn.base.progress import Progress
from selhn.base.types import StoredPrecision
from selhn.data import FORMATS, Split
from selhn.models import load_model
from selhn.models.saved import BEST_FOLDER, CONFIG_FILE
from selhn.pictures import Library, index_pictures, open_picture
from selhn.pictures.picture_files import SUFFIXES, Found, find_pictures
from selhn.pictures.picture_folders import DEFAULT_INDEX, default_index, found_index
from selhn.pictures.plans import make_plan
from selhn.search import Hit, Index, Item, Query, Record, is_uri
from selhn.search.items import Kind, Order, by_date, date_of, seconds_of, split_ids, split_items, whole
from selhn.search.shards import holds_embeddings, index_embeddings
from selhn.training import open_run
from selhn.training.recipes import DATASETS
from selhn.training.run import open_data

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


def fill_index(
    source: str | None,
    path: Path | str | None,
    model: Path | None,
    split: str = "test",
    precision: StoredPrecision = "float32",
    *,
    captions: Path | None = None,
    extractor: str | None = None,
    device: str = "cpu",
    dry_run: bool = False,
    remove_missing: bool = False,
) -> str:
    """Put pictures, embeddings or a split into an index, which is created if needed; says what it holds.

    A folder of pictures needs no model and no path. What is in the index already is left alone, so that the
    same command continues after it was stopped. With `dry_run`, only say what would be done to pictures.
    """
    if source is None and model is None:
        raise SelhnError(
            "nothing to index: name a folder of pictures, `selhn index ~/Pictures`, or a data set or a run with --model"
        )
    is_embedded = source is not None and holds_embeddings(Path(source).expanduser())
    found = None if source is None or is_embedded else _pictures_of(source, remove_missing)
    opened = None if model is None else load_model(model)
    if found is None:
        options = {"captions": captions, "extractor": extractor, "dry-run": dry_run or None}
        for name, value in {**options, "remove-missing": remove_missing or None}.items():
            if value is not None:
                raise SelhnError(
                    f"--{name} is for a folder of pictures, and {source or 'the data of a run'} is not one"
                )
        path = path or DEFAULT_INDEX
        if is_embedded:
            return str(index_embeddings(Path(str(source)).expanduser(), path, opened, precision))
        index = Index.load(path, opened) if Index.exists(path) else None
        if index is None and opened is None:
            raise NotFound(
                f"{source} is a data set, not a folder of pictures, and there is no index {path} yet: "
                "name a run or a saved model with --model"
            )
        items = open_data(model or Path(path), source)[split]
        if index is None:
            assert opened is not None
            index = Index.create(opened, path, precision=precision)
        index.add(_told(items, frozenset(index.ids())), existing="skip")
        return str(index)
    if dry_run:
        path = path or default_index()
        index = Index.load(path, opened) if Index.exists(path) else None
        return str(make_plan(found, index, captions, remove_missing))
    done = index_pictures(
        found,
        path,
        model=opened,
        extractor=extractor,
        captions=captions,
        precision=precision,
        device=device,
        remove_missing=remove_missing,
    )
    here = "" if path is None else f" --{'uri' if is_uri(path) else 'index'} {path}"
    return f'{done}\n{done.index}\nSearch it: selhn search "children playing in the snow"{here}'


def _pictures_of(source: str, remove_missing: bool) -> Found | None:
    """The pictures of a folder, perhaps none; None if the source is a data set."""
    path = Path(source).expanduser()
    if source in DATASETS or (path.exists() and any(known.looks_like(path) for known in FORMATS.values())):
        return None
    if not path.exists() and remove_missing:
        return Found(path.resolve(), [], [], [])
    if path.is_file():
        what = "one picture" if path.suffix.lower() in SUFFIXES else "a file"
        raise SelhnError(f"{source} is {what}: name the folder that it is in: selhn index {path.parent}")
    return find_pictures(path.resolve())


def index_path(folder: Path | None, uri: str | None) -> Path | str | None:
    """The path of the index that the options name."""
    if uri is None:
        return folder
    if folder is not None:
        raise SelhnError(f"an index is in a folder ({folder}) or on a server (--uri {uri}): give one of them")
    if not is_uri(uri):
        raise SelhnError(
            f"--uri {uri} is not the address of a server, such as http://host:19530 or postgresql://host/photos"
        )
    return uri


def open_asked(
    words: Sequence[str],
    path: Path | str | None,
    model: Path | None = None,
    data: str | None = None,
    split: str = "test",
    extractor: str | None = None,
) -> tuple[Library, str | None]:
    """The library to search, and the sentence: the words, except the first if it names an index or a run.

    It names one if it is one, or if it looks like a path and other words follow.
    """
    picture = next((word for word in words if _is_picture(word)), None)
    if picture is not None:
        raise SelhnError(
            f"{picture} is a picture, not a word: to find pictures like it, `selhn search --like {quote(picture)}`"
        )
    named = words[0] if words and _is_place(words[0], followed=len(words) > 1) else None
    path = found_index(path) if named is None else named if is_uri(named) else Path(os.path.expanduser(named))
    sentence = " ".join(words if named is None else words[1:]) or None
    if named is None or is_uri(named) or Index.exists(path):
        return Library.open(path, None if model is None else load_model(model), extractor=extractor), sentence
    if Path(path).is_dir() and not _is_run(Path(path)):
        raise NotFound(
            f"{named} is neither an index nor a run: to search the pictures in it, `selhn index {named}`, "
            "then `selhn search` with only the words"
        )
    own_model, dataset = open_run(Path(path), data)
    return Library(Index.build(own_model, dataset[split])), sentence


def _is_place(word: str, followed: bool) -> bool:
    path = Path(os.path.expanduser(word))  # a word after ~ that is no user stays as it is
    if is_uri(word) or (followed and len(path.parts) > 1):
        return True
    return os.path.isdir(path) and (_is_run(path) or Index.exists(path))


def _is_picture(word: str) -> bool:
    path = os.path.expanduser(word)
    return Path(path).suffix.lower() in SUFFIXES and os.path.isfile(path)


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG_FILE, BEST_FOLDER, "checkpoints"))


def find_hits(
    index: Index, query: Query | None, k: int, find: Kind, where: str | None, order: Order | None
) -> Sequence[Hit | Record]:
    """The answers to a query; without one, the first items in an order (newest first if only filtered)."""
    if find == "text" and not index.num_texts:
        raise SelhnError(
            f"{index.location} has no captions: add some with `selhn index FOLDER --captions FILE`, "
            "or search without --find text"
        )
    if query is not None:
        hits = index.search(query, k, find, where=where)
        return hits if order is None else by_date(((date_of(hit), hit.id, hit) for hit in hits), order)
    if (order or where) is None or find != "image":
        raise SelhnError(
            'nothing to search for: write `selhn search "a dog in the snow"`, '
            "or `selhn search --order newest` to list pictures by date"
        )
    return list(islice(index.records(where, order or "newest", moments=False), k))


def answers(found: Sequence[Hit | Record], as_json: bool = False) -> str:
    """Lines of rank, score or date, path or text, and a caption if one is known."""
    if as_json:
        return json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False)
    if not found:
        return "nothing found: the index is empty, or the filter leaves nothing"
    judged = any(isinstance(one, Hit) and one.fit is not None for one in found)
    fitting = [isinstance(one, Hit) and one.fits for one in found]
    marks = [("* " if fits else "  ") if any(fitting) else "" for fits in fitting]
    lines = [
        f"{mark}{rank:2}  {_value(one)}  {_shown(getattr(one, 'name', one.id)):24} {' '.join(one.captions[:1])}"
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


def answer_tiles(found: Sequence[Hit | Record]) -> list[Tile]:
    """The pictures that were found with their scores or dates, and their file names."""
    tiles = []
    for rank, one in enumerate(found, 1):
        label, name = f"{rank}.  {_value(one).strip()}", f"\n{_shortened(Path(_shown(one.id)).name)}"
        try:
            tiles.append(Tile(open_picture(one.id).image, label + name))
        except SelhnError:  # deleted, or changed, since it was indexed
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
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _told(split: Split, skip: frozenset[str]) -> Iterator[Item]:
    """The items of a split with its name as metadata, and progress on the screen."""
    ids = split_ids(split)
    shown = Progress(len(ids), sum(name in skip for name in ids))
    for item in split_items(split, skip):
        yield replace(item, metadata={"split": split.name})
        shown.step("images encoded")
    shown.clear()
