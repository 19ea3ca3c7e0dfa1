"""Where a large collection of pictures comes from: a folder, a list of files, or Parquet with paths or with pictures.

A source is listed once, in shards. A shard is a list of entries, {"path": ...} or {"parquet": file, "size", "first",
"rows"}, so that listing a billion rows of Parquet only reads the ends of files.
"""

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged, NotFound, SelhnError, warn
from selhn.pictures.picture_files import MOST_BYTES, VIDEOS, find_pictures, missing_packages, read_bytes
from selhn.search.embedded import parquet_file, read_table
from selhn.search.items import LONGEST_ID

Entry = Mapping[str, Any]
PATH_COLUMNS = ("path", "image_path", "file", "file_name", "filename", "url")
BYTES_COLUMNS = ("image", "bytes", "content", "jpg", "png", "webp")
CAPTION_COLUMNS = ("caption", "text")
LONGEST_LINE = 2**15
PICTURES_AT_ONCE = 16
"""Rows of Parquet with pictures that are read at a time."""


@dataclass(frozen=True)
class PictureInput:
    """A picture to be read: a file, or bytes that are already here."""

    name: str
    content: bytes | None = None
    caption: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def read(self) -> bytes:
        """The content of its file."""
        if len(self.name) > LONGEST_ID:
            raise SelhnError(
                f"has a path of {len(self.name):,} characters, at most {LONGEST_ID:,} are kept: move it"
            )
        if self.content is None and "://" in self.name:
            raise SelhnError(
                "is an address, and nothing is downloaded: download the picture, and name its file"
            )
        if self.content is None:
            return read_bytes(Path(self.name))
        if len(self.content) > MOST_BYTES:
            raise SelhnError(
                f"has {len(self.content) / 2**20:.0f} MiB, at most {MOST_BYTES // 2**20} are read"
            )
        return self.content


@dataclass(frozen=True)
class PictureInputs:
    """The pictures of a shard; those in Parquet are read when they are used.

    Nothing is read outside the folder of the source, or `root`: the entries may come from elsewhere.
    """

    entries: Sequence[Entry]
    columns: Mapping[str, Any]
    source: Path
    root: Path | None = None

    def __len__(self) -> int:
        return sum(entry.get("rows", 1) for entry in self.entries)

    def __iter__(self) -> Iterator[PictureInput]:
        place, own = "the list of this shard", folder_of(self.source)
        is_walked = not self.columns and self.source.is_dir()
        for entry in self.entries:
            if "parquet" in entry:
                require_inside(entry["parquet"], own, place, is_walked=True)
                yield from islice(self._rows(Path(entry["parquet"]), entry), entry["rows"])
            else:
                require_inside(entry["path"], own if is_walked else self.root or own, place, is_walked)
                yield PictureInput(entry["path"])

    def _rows(self, path: Path, entry: Entry) -> Iterator[PictureInput]:
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise Damaged(
                f"{path} is missing or has changed since it was listed: put it back, or embed again"
            )
        picture, caption, keep = (self.columns[name] for name in ("picture", "caption", "keep"))
        wanted, row = [name for name in (picture, caption, *keep) if name], entry["first"]
        for table in read_table(path, wanted, row, PICTURES_AT_ONCE if self.columns["bytes"] else 1024):
            for values in table:
                content, text = values.pop(picture), values.pop(caption, None) if caption else None
                told = {name: value for name, value in values.items() if _is_plain(value)}
                found = _of_row(path, row, content, str(text or "").strip(), told)
                if found.content is None:
                    require_inside(found.name, self.root or folder_of(self.source), f"{path}, row {row}")
                yield found
                row += 1


def _of_row(path: Path, row: int, content: Any, caption: str, metadata: Mapping[str, Any]) -> PictureInput:
    """A row of Parquet: its picture is a path, bytes, or {"bytes": ..., "path": ...} as in other libraries."""
    if isinstance(content, Mapping):
        content = content.get("bytes") or content.get("path")
    if isinstance(content, str):
        name = content if "://" in content else str(path.parent / content)
        return PictureInput(name, None, caption, metadata)
    return PictureInput(f"{path}#{row}", content or b"", caption, metadata)


def _is_plain(value: Any) -> bool:
    """Whether metadata can hold a value; None and NaN are left out."""
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def folder_of(source: Path) -> Path:
    """The folder of a source, or the one that its file is in."""
    return source if source.is_dir() else source.parent


def require_inside(name: str, root: Path, place: str, is_walked: bool = False) -> None:
    """Refuse the name of a file outside a folder, links followed; files that were found by walking may be links."""
    head, tail = os.path.split(name)
    try:
        real = os.path.join(os.path.realpath(head), tail) if is_walked else os.path.realpath(name)
    except ValueError:  # it has a zero byte: no file has that name
        return
    if "://" not in name and not Path(real).is_relative_to(os.path.realpath(root)):
        shared = shlex.quote(os.path.commonpath([os.path.realpath(root), real]))
        raise SelhnError(
            f"{place} names {name}, which leads out of {root}: if you trust it, add --root {shared}, the folder "
            "below which pictures are read"
        )


def list_source(
    source: Path | str,
    rows: int,
    column: str | None = None,
    caption: str | None = None,
    root: Path | None = None,
) -> tuple[dict[str, Any], Iterator[Sequence[Entry]]]:
    """How a source is read, and the entries of its shards of `rows` pictures each.

    Args:
        column: of Parquet, with the path or the bytes of the picture; by default the first that has a usual name.
        caption: of Parquet, with a caption; by default the first that has a usual name, if there is one.
        root: the folder below which the files of a list are; by default its own.
    """
    path = Path(source).expanduser().absolute()
    if rows < 1:
        raise SelhnError(f"a shard of {rows} pictures: give at least 1")
    if not path.exists():
        raise NotFound(f"there is no {path}: name a folder of pictures, a list of files, or Parquet")
    tables = [path] if path.suffix == ".parquet" and path.is_file() else []
    if path.is_dir():
        found = find_pictures(path).without_videos()
        for folder, why in found.closed:
            warn(f"{folder} {why}: what it holds is left out")
        missing = missing_packages().keys() - VIDEOS  # they are listed with those that cannot be read
        files = sorted([*found.pictures, *(one for one in found.others if one.suffix.lower() in missing)])
        tables = [] if files else [one for one in found.others if one.suffix == ".parquet"]
        if not files and not tables:
            raise NotFound(f"{path} holds neither pictures nor Parquet: name another folder")
    if (column or caption) and not tables:
        raise SelhnError(f"columns are for Parquet, and {path} has none: leave --column and --caption out")
    if tables:
        columns = _columns(tables[0], column, caption)
        return {"columns": columns, "root": ""}, _parquet_shards(tables, columns, rows)
    names = map(str, files) if path.is_dir() else _lines(path, root or path.parent)
    return {"columns": None, "root": str(path) if path.is_dir() else ""}, _path_shards(names, rows)


def _path_shards(names: Iterable[str], rows: int) -> Iterator[Sequence[Entry]]:
    walk = iter(names)
    while some := [{"path": name} for name in islice(walk, rows)]:
        yield some


def _lines(path: Path, root: Path) -> Iterator[str]:
    """The paths in a list, one per line, relative to its folder."""
    with path.open("r", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if "\0" in line or len(line) == LONGEST_LINE:
                raise Damaged(
                    f"{path}, line {number} is not a path: write one per line, or name a folder or Parquet"
                )
            if name := line.strip():
                name = name if "://" in name else str(path.parent / Path(name).expanduser())
                require_inside(name, root, f"{path}, line {number}")
                yield name


def _columns(path: Path, column: str | None, caption: str | None) -> dict[str, Any]:
    """Which columns of Parquet are used: that of the pictures, of captions, and what is kept as metadata."""
    with parquet_file(path) as file:
        schema = file.schema_arrow
        kinds = {name: str(schema.field(name).type) for name in schema.names}
    for name in (column, caption):
        if name is not None and name not in kinds:
            raise NotFound(f"{path} has no column {name!r}: it has {', '.join(kinds)}")
    picture = column or next((name for name in (*BYTES_COLUMNS, *PATH_COLUMNS) if name in kinds), None)
    if picture is None:
        raise NotFound(
            f"{path} has no column with a usual name for pictures ({', '.join(kinds)}): add --column"
        )
    text = caption or next(
        (name for name in CAPTION_COLUMNS if kinds.get(name) in ("string", "large_string")), None
    )
    simple = ("string", "large_string", "bool", "int", "uint", "float", "double")
    keep = [name for name, kind in kinds.items() if name not in (picture, text) and kind.startswith(simple)]
    return {
        "picture": picture,
        "caption": text,
        "keep": keep,
        "bytes": kinds[picture].removeprefix("large_") != "string",
    }


def _parquet_shards(
    paths: Sequence[Path], columns: Mapping[str, Any], rows: int
) -> Iterator[Sequence[Entry]]:
    shard: list[Entry] = []
    free = rows
    for path in paths:
        with parquet_file(path) as file:
            there, names = file.metadata.num_rows, file.schema_arrow.names
        lacking = [
            name
            for name in (columns["picture"], columns["caption"], *columns["keep"])
            if name not in (None, *names)
        ]
        if lacking:
            raise SelhnError(
                f"{path} has no column {lacking[0]!r}, which {paths[0]} has: embed them one by one"
            )
        first, size = 0, path.stat().st_size
        while first < there:
            taken = min(free, there - first)
            shard.append({"parquet": str(path), "size": size, "first": first, "rows": taken})
            first, free = first + taken, free - taken
            if free == 0:
                yield shard
                shard, free = [], rows
    if shard:
        yield shard
