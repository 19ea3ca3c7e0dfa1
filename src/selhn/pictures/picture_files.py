"""Picture files: found in a folder, read and opened within bounds."""

import io
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.pictures.decoding import MOST_PIXELS, Moment, Picture, decode_picture, header_facts
from selhn.search.items import seconds_of, whole

MOST_BYTES = 256 * 2**20
JPEG_HEADER = 2**18
"""Bytes of a JPEG that almost always hold all of its header."""
SUFFIXES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
    ".avif",
}  # fmt: skip
VIDEOS = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"}
PACKAGES = {
    **dict.fromkeys((".heic", ".heif", ".hif"), "pi-heif"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"), "rawpy"),
    **dict.fromkeys(VIDEOS, "av"),
}
"""Suffixes of pictures and videos that need a package, which may be missing."""


def open_picture(path: Path | str, most_pixels: int = MOST_PIXELS) -> Picture:
    """The picture of a file; a SelhnError says why it cannot be opened, whatever the file holds."""
    return decode_picture(picture_source(str(path)), str(path), most_pixels)


def picture_source(name: str) -> bytes | Moment:
    """What to decode for the path of a picture or a video, or the id of a moment of a video."""
    path = Path(whole(name)).expanduser()
    return Moment(path.resolve(), seconds_of(name)) if path.suffix.lower() in VIDEOS else read_bytes(path)


def read_bytes(path: Path) -> bytes:
    """The content of a file that may be a picture."""
    try:
        if not path.is_file():
            raise NotFound(f"there is no file {path}: give the path of a picture")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise SelhnError(f"{path} has {size / 2**20:.0f} MiB, at most {MOST_BYTES // 2**20} are read")
        return path.read_bytes()
    except OSError as error:
        raise SelhnError(f"{path} cannot be read ({error.strerror}): check its rights") from None


def read_facts(path: Path) -> dict[str, Any]:
    """What a picture file says about itself, see `selhn.pictures.facts`; nothing if it cannot be read."""
    with suppress(SelhnError, OSError):
        with path.open("rb") as file:
            header = file.read(JPEG_HEADER)
        is_jpeg = header.startswith(b"\xff\xd8")
        return (is_jpeg and header_facts(header, str(path))) or header_facts(read_bytes(path), str(path))
    return {}


def drawn(content: bytes | Moment, name: str, size: int) -> bytes:
    """A JPEG of a picture, upright, with nothing but its pixels."""
    file = io.BytesIO()
    decode_picture(content, name, within=size).image.save(file, "JPEG", quality=82, optimize=True)
    return file.getvalue()


@dataclass(frozen=True)
class Found:
    """The files below a folder."""

    folder: Path
    pictures: list[Path]
    """Files whose names end like those of pictures, or of videos."""
    others: list[Path]
    """All other files, and pictures that need a missing package."""
    closed: list[tuple[Path, str]]
    """Folders that could not be listed, and why: what they hold is unknown."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of linked folders, hidden folders and broken links, which are not followed, and of live photographs."""

    def without_videos(self) -> "Found":
        """The same, with videos counted as other files."""
        videos = [path for path in self.pictures if path.suffix.lower() in VIDEOS]
        pictures = [path for path in self.pictures if path.suffix.lower() not in VIDEOS]
        return replace(self, pictures=pictures, others=sorted([*self.others, *videos]))


def missing_packages() -> dict[str, str]:
    """Suffixes of pictures that cannot be read now, and the package that each needs."""
    missing = {name for name in set(PACKAGES.values()) if find_spec(name.replace("-", "_")) is None}
    return {suffix: name for suffix, name in PACKAGES.items() if name in missing}


def why_other(path: Path, missing: Mapping[str, str]) -> str:
    """Why a file is not among the pictures of a data set; `missing` is what `missing_packages` says."""
    if path.suffix.lower() in VIDEOS:
        return "is a video: `selhn index` finds moments in it, a data set has pictures only"
    package = missing.get(path.suffix.lower())
    return f"needs a package that is not installed: pip install {package}" if package else "is not a picture"


def readable_suffixes() -> set[str]:
    """Suffixes of the pictures and videos that can be read here."""
    return (SUFFIXES | PACKAGES.keys()) - missing_packages().keys()


def find_pictures(folder: Path | str) -> Found:
    """Walk a folder once; hidden files and linked folders are left out."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}: give one that holds pictures")
    pictures: list[Path] = []
    others: list[Path] = []
    closed: list[tuple[Path, str]] = []
    skipped: Counter[str] = Counter()
    suffixes = readable_suffixes()

    def note(error: OSError) -> None:
        closed.append((Path(str(error.filename)), f"cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(folder, onerror=note):
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(set(folders).difference(hidden))
        skipped["hidden folders"] += len(hidden)
        skipped["linked folders"] += sum(os.path.islink(os.path.join(parent, name)) for name in folders)
        photographs = {
            stem for stem, suffix in map(os.path.splitext, files) if suffix.lower() in (".heic", ".jpg")
        }
        for name in sorted(files):
            path = Path(parent) / name
            if name.startswith("."):
                continue
            if path.suffix.lower() == ".mov" and path.stem in photographs:
                skipped["moving parts of live photographs"] += 1
                continue
            if path.is_file():
                (pictures if path.suffix.lower() in suffixes else others).append(path)
            elif path.is_symlink():
                skipped["broken links"] += 1
    return Found(
        folder, sorted(pictures), sorted(others), closed, {k: n for k, n in sorted(skipped.items()) if n}
    )


def is_there(folder: Path) -> bool:
    """Whether there is anything in a folder; the place of a disk that was unplugged is missing, or empty."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return False


def writable(path: object, root: Path | None = None) -> str:
    """A path, relative to `root` if given, in a form that can be written to any text file."""
    shown = str(path) if root is None else Path(str(path)).relative_to(root).as_posix()
    return shown.encode("utf-8", "backslashreplace").decode()


def is_text(name: str) -> bool:
    """Whether a file name is Unicode; on some systems it may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
