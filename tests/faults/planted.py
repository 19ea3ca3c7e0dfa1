"""What a stranger plants in a folder, and what lies outside it and must stay as it is, unread.

The kernel reports every opening of a file outside (inotify), also by libraries that are not Python and by processes
that were started.
"""

import ctypes
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from picture_cases import encoded, photo

CANARY = "canary-7f3a"
OUTSIDE = "outside-9c41"
KINDS = ("copy", "file", "folder", "missing", "hard link", "pipe", "loop", "parent")
"""A link to a copy of the entry itself, to another file, to a folder, to a name that a writer would make; a second name
of a file outside; a pipe; a link to itself, and to the folder that it is in.
"""
FOLDERS = ("new", "ready", "previous", "uploads", "step_1")
FILES = (
    "config.json",
    "config.yaml",
    "manifest.json",
    "lock",
    "000001.npy",
    "checksums.json",
    ".a.0123456789abcdef.partial",
)
"""Names that selhn itself uses: what sweeps a folder outside would take them for its own."""
OPENED, CHANGED = 0x20 | 0x1, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200
"""IN_OPEN and IN_ACCESS; IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE."""
Tree: TypeAlias = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Outside:
    """A folder with files of the victim."""

    path: Path

    def make(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        folder = self.path / "folder"
        for inner in FOLDERS:
            (folder / inner).mkdir(parents=True)
        for place in (folder, *folder.iterdir()):
            for name in FILES:
                (place / name).write_text(f"{CANARY} {name}\n")
        for name in ("id_rsa", "log.txt"):
            (self.path / name).write_text(f"{CANARY}\n" * 3)
        (self.path / "holiday.png").write_bytes(encoded(photo(99, (60, 40)), "PNG"))

    def tree(self) -> Tree:
        """Names, kinds, modes, times and contents; the number of names of a file counts in other ways."""
        found: Tree = {}
        for path in sorted(self.path.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(self.path))] = (status.st_mode, status.st_mtime_ns, content)
        return found


def difference(before: Tree, after: Tree) -> str:
    """What has changed, in words; empty if nothing."""
    gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    other = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    parts = {"removed": gone, "made": come, "changed": other}
    return ", ".join(f"{word} {', '.join(names[:3])}" for word, names in parts.items() if names)


def plant(kind: str, entry: Path, outside: Outside) -> bool:
    """Put something in the place of an entry, or at a name where there is none; False if that makes no sense."""
    exists = os.path.lexists(entry)
    if (kind == "copy" and not exists) or (kind == "hard link" and entry.is_dir()):
        return False
    target = {
        "copy": outside.path / "copy",
        "file": outside.path / "log.txt",
        "folder": outside.path / "folder",
        "missing": outside.path / "not_there",
        "hard link": outside.path / ("copy" if exists else "log.txt"),
        "loop": entry,
        "parent": entry.parent,
    }.get(kind)
    if exists:
        if kind in ("copy", "hard link"):
            shutil.copytree(entry, target) if entry.is_dir() else shutil.copy(entry, target)
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    entry.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "hard link":
        os.link(target, entry)
    else:
        entry.symlink_to(target)
    return True


class Watch:
    """What is opened or changed in a folder and all folders below it, from now on."""

    def __init__(self, folder: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "inotify does not work here")
        self._folders: dict[int, Path] = {}
        for path in (
            folder,
            *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()),
        ):
            number = self._libc.inotify_add_watch(self._file, os.fsencode(path), OPENED | CHANGED)
            self._folders[number] = path.relative_to(folder)

    def seen(self) -> Iterator[tuple[bool, str]]:
        """Whether something was changed, else only opened, and its name; ends the watch."""
        data = b""
        with suppress(BlockingIOError):
            while part := os.read(self._file, 1 << 16):
                data += part
        os.close(self._file)
        while data:
            number, mask, _, length = struct.unpack_from("iIII", data)
            name, data = data[16 : 16 + length].rstrip(b"\0").decode(), data[16 + length :]
            if mask & (OPENED | CHANGED):
                yield bool(mask & CHANGED), str(self._folders.get(number, Path("?")) / name)
