"""A read-only disk, also for root, whom permissions do not stop."""

import errno
import os
import sys
from contextlib import contextmanager
from pathlib import Path

CHANGES = {
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink"),
    *("os.chmod", "os.utime"),
}
_folders = []


def _refuse(event, arguments):
    if not _folders or (event != "open" and event not in CHANGES):
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    for path in arguments:
        if isinstance(path, str | bytes | os.PathLike):
            place = Path(os.path.abspath(os.fsdecode(path)))
            if any(place.is_relative_to(folder) for folder in _folders):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))


@contextmanager
def read_only(folder):
    """Every change that Python makes below the folder fails as it does on a read-only file system."""
    if _refuse not in _hooked:
        sys.addaudithook(_refuse)
        _hooked.append(_refuse)
    _folders.append(Path(os.path.abspath(folder)))
    try:
        yield
    finally:
        _folders.pop()


_hooked = []


def content_of(folder):
    """Every name below a folder with what it is: text of files, where links lead, times of folders."""
    return {
        path.relative_to(folder).as_posix(): (
            path.lstat().st_mtime_ns,
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(Path(folder).rglob("*"))
    }
