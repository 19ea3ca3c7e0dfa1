"""Where the pictures of an index are, and where the index is."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from selhn.base.errors import NotFound, SelhnError
from selhn.pictures.decoding import Moment
from selhn.pictures.picture_files import MOST_BYTES, VIDEOS
from selhn.search import Index, Record
from selhn.search.items import whole

DEFAULT_INDEX = Path("selhn.index")


def locate(folders: Sequence[Path], name: str) -> Path | None:
    """The file of that name, with all links followed; None if it is in none of the folders.

    A name is a path below one of the folders, or a full path; a link that leads outside gives None. Other paths are
    not even looked up: that could mount a disk, or tell a server who asks.
    """
    for folder in folders:
        if not Path(os.path.normpath(folder / name)).is_relative_to(folder):
            continue
        try:
            path = (folder / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # missing; a name no file has; links in a circle
            continue
        if path.is_relative_to(folder) and path.is_file():
            return path
    return None


@contextmanager
def opened_located(path: Path) -> Iterator[BinaryIO]:
    """Open a located file; a link, a folder or a pipe that has replaced it since is refused."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as wrong:
        if wrong.errno == errno.ELOOP:
            raise NotFound(f"{path.name} has become a link") from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotFound(f"{path.name} is no longer a file")
    with os.fdopen(number, "rb") as file:
        yield file


def read_located(path: Path) -> bytes:
    """The content of a located file, see `opened_located`."""
    with opened_located(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise SelhnError(f"{path.name} is larger than {MOST_BYTES // 2**20} MiB: give a smaller copy")
        return file.read(MOST_BYTES)


def located_source(path: Path, moment: float | None = None) -> bytes | Moment:
    """What to decode for a located file: its content, or a frame of a video, by default the first."""
    return Moment(path, moment) if path.suffix.lower() in VIDEOS else read_located(path)


def indexed_folders(index: Index) -> list[Path]:
    """The folders whose pictures are in an index, as it says itself; none if its items are not files.

    Only `named_folders` says which of them may be opened.
    """
    return folders_of(index.records()) if "extractor" in index.about else []


def folders_of(records: Iterable[Record]) -> list[Path]:
    """The folders that were indexed: the path of each item without the part below the folder."""
    found: dict[Path, None] = {}
    for record in records:
        inside = Path(str(record.metadata.get("folder", "")), str(record.metadata.get("file", "")))
        path, depth = Path(whole(record.id)), len(inside.parts)
        if path.is_absolute() and depth and path.parts[-depth:] == inside.parts:
            found[Path(*path.parts[:-depth])] = None
    return list(found)


def default_index() -> Path:
    """The default index of a user's pictures."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "selhn" / "pictures.index"


def found_index(path: Path | str | None) -> Path | str:
    """The index that is meant: the one named, else `selhn.index` here, else that of the user's pictures."""
    if path is not None:
        return path
    own = default_index()
    return own if Index.exists(own) and not Index.exists(DEFAULT_INDEX) else DEFAULT_INDEX


def picture_id(picture: Path | str) -> str:
    """The id of a picture in an index: its full path."""
    path = Path(picture).expanduser()
    return str(path.parent.resolve() / path.name)
