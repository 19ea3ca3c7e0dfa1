"""The model `open_towers("ready")`: what is shipped of it, and the towers folder that is made of that once."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import cache_folder, private_folder, writing
from selhn.base.folders import new_folder
from selhn.base.minilm import MINILM_FILES
from selhn.base.sealed import digest_file
from selhn.towers.description import DESCRIPTION_FILE, Description
from selhn.towers.first_run import remember
from selhn.towers.towers import Towers

READY = "ready"
FOLDER = Path(__file__).parent
CONFIG_FILE, HEADS_FILE, PROJECTION_FILE = "config.json", "heads.safetensors", "projection.safetensors"
LITE2, FIT_FILE = "efficientnet_lite2.safetensors", "fit.json"
INSTALL = "install selhn again"
FORM = 2
"""Of the towers folder: a change of the networks, or of what describes them, needs a new one."""


class ReadyTowers(Towers):
    """The ready model. Its folder is in the user's cache, and is made again when it is missing or damaged."""

    def _verified(self, name: str) -> Path:
        """The folder is this user's own: against damage a checksum is enough that takes a third of the time."""
        path = self.folder / name
        try:
            is_whole = checksum(path) == self.description.about["crc32"][name]
        except OSError:
            is_whole = False
        if not is_whole:
            self.description = _made(self.folder)
        return path


def open_ready(name: str = READY) -> Towers:
    """The ready model; its towers folder is made at the first use, which takes some seconds."""
    folder = ready_folder()
    try:
        description = Towers.open(folder).description
    except SelhnError:
        description = _made(folder)
    return ReadyTowers(folder, description, READY)


def ready_folder() -> Path:
    """Where the towers folder is, or will be: `ready-` and what identifies it, in the user's cache."""
    parts = [FORM, ready_config(), MINILM_FILES, digest_file(FOLDER / FIT_FILE)]
    return cache_folder() / f"{READY}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def _made(folder: Path) -> Description:
    """Make the folder, unless another process has just done so."""
    from selhn.towers.ready.assembly import FILES, write_towers

    try:
        with writing(private_folder(folder.parent), wait=-1):
            if not _is_whole(folder):
                with new_folder(folder, replace=FILES) as new:
                    write_towers(new)
                remember((folder / DESCRIPTION_FILE).read_bytes())  # it is ours
    except OSError as error:
        raise SelhnError(
            f"cannot write the ready model, 125 MB, to {folder} ({error.strerror}): free some space, or set "
            "XDG_CACHE_HOME"
        ) from None
    return Towers.open(folder).description


def _is_whole(folder: Path) -> bool:
    try:
        sums = Towers.open(folder).description.sha256
        return all(digest_file(folder / name) == digest for name, digest in sums.items())
    except (SelhnError, OSError):
        return False


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(2**18):
            found = crc32(chunk, found)
    return found


def shipped(name: str) -> Path:
    """A file of weights that is part of selhn, compared with its SHA-256."""
    path = FOLDER / name
    if not path.is_file() or digest_file(path) != ready_config()["sha256"][name]:
        raise Damaged(f"{path} is missing or not as published: {INSTALL}")
    return path


@cache
def ready_config() -> dict[str, Any]:
    """How the model is built and was trained, and the SHA-256 of its weights."""
    content: dict[str, Any] = json.loads((FOLDER / CONFIG_FILE).read_text(encoding="utf-8"))
    return content
