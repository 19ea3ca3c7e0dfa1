"""Folders that appear whole or not at all: filled out of sight beside their place, and then renamed.

The block of `new_folder` may write as it likes: nobody else has put anything into the folder that it fills.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from selhn.base.disk_errors import naming
from selhn.base.errors import Locked, SelhnError
from selhn.base.files import LOCK_FILE, refuse_links, sync_folder, writing

_STAGES = ("new", "ready", "previous")


@contextmanager
def new_folder(path: Path, replace_empty: bool = False, replace: Collection[str] = ()) -> Iterator[Path]:
    """A folder to fill. It becomes `path` if the block ends without an error; otherwise it is removed.

    Everything is on the disk before it gets its name. With `replace` an existing folder is replaced: files
    with these names are removed, all others move to the new folder.
    """
    path = _real(path)
    settle(path, replace)
    is_empty = replace_empty and path.is_dir() and not any(path.iterdir())
    if os.path.lexists(path) and not is_empty and not (replace and path.is_dir()):
        settle(path)
        raise SelhnError(f"{path} already exists: choose another name, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path, _hidden(path)), _workshop(path, replace) as hidden:
        partial, ready, previous = (hidden / name for name in _STAGES)
        partial.mkdir()
        yield partial
        sync_folder(partial, files=True)
        if not (replace and path.is_dir()):
            os.rename(partial, path)
        else:
            os.rename(partial, ready)  # from here on it is complete
            if not _swapped(ready, path):
                os.rename(path, previous)
                try:
                    os.rename(ready, path)
                except BaseException:
                    os.rename(previous, path)
                    raise
        sync_folder(path.parent)


def settle(path: Path, replace: Collection[str] = ()) -> None:
    """Finish or remove what a killed process left behind while it was writing a folder with `new_folder`.

    For writers: `whole_folder` finds the same content without changing anything.
    """
    path = _real(path)
    if os.path.lexists(_hidden(path)):
        # A process that is still running finishes it itself; on a read-only disk it stays.
        with suppress(Locked, OSError), _workshop(path, replace):
            pass


def whole_folder(path: Path) -> Path:
    """Where the content of a folder is that `new_folder` writes: in `path`, or, after a kill between two renames, in
    the complete copy beside it. Changes nothing.
    """
    hidden = _hidden(_real(path))
    if path.exists() or not os.path.lexists(hidden):
        return path
    _require_own(hidden)
    _, ready, previous = (hidden / name for name in _STAGES)
    if not previous.exists():
        return path
    return ready if ready.exists() else previous


def _real(path: Path) -> Path:
    """The folder that the user named, where a link leads."""
    return Path(os.path.realpath(path))


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _require_own(hidden: Path) -> None:
    """Refuse a hidden folder that leads elsewhere: what is in it is moved and removed."""
    refuse_links(hidden.parent, [hidden.name], deep=False)
    refuse_links(hidden, [*_STAGES, LOCK_FILE], deep=False)


@contextmanager
def _workshop(path: Path, replace: Collection[str]) -> Iterator[Path]:
    """The hidden folder in which one process at a time makes `path`."""
    hidden = _hidden(path)
    _require_own(hidden)
    hidden.mkdir(exist_ok=True)
    with ExitStack() as unlocked, writing(hidden):
        unlocked.callback(_remove, hidden)
        try:
            yield hidden
        finally:
            _clear(path, hidden, replace)


def _remove(hidden: Path) -> None:
    with suppress(OSError):  # another process may hold it by now
        (hidden / LOCK_FILE).unlink(missing_ok=True)
        hidden.rmdir()


def _clear(path: Path, hidden: Path, replace: Collection[str]) -> None:
    _, ready, previous = (hidden / name for name in _STAGES)
    if previous.exists() and not path.exists():  # killed between two renames
        os.rename(ready if ready.exists() else previous, path)
    for left in (ready, previous):
        for file in list(left.iterdir()) if left.is_dir() and path.is_dir() else ():
            # Someone's notes, or files that file managers leave in folders.
            if file.name not in replace and not (path / file.name).exists():
                os.rename(file, path / file.name)
    for name in _STAGES:
        shutil.rmtree(hidden / name, ignore_errors=True)


def _swapped(one: Path, other: Path) -> bool:
    """Swap two folders in one step, if the system and the file system support it: Linux, but not NFS."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return swap is not None and swap(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
