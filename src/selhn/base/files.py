"""Files and folders that appear whole or not at all, and one writer at a time."""

import ctypes
import errno
import json
import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from selhn.base.errors import Locked, SelhnError

LOCK_FILE = "lock"
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
SQLITE_FULL = 13


def cache_folder() -> Path:
    """The user's folder for files that can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selhn"


def write_whole(path: Path, content: str | bytes, durable: bool = False) -> None:
    """Replace a file in one step: a reader finds all of the old content or all of the new.

    With `durable` the new content is on the disk, not only in the system's cache, before the old is removed.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a full disk."""
    while error is not None:
        if getattr(error, "errno", 0) in FULL or getattr(error, "sqlite_errorcode", 0) == SQLITE_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def sync_file(path: Path) -> None:
    """Flush a written file to the disk (fsync)."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path, files: bool = False) -> None:
    """Flush a folder's entries to the disk if the system can; with `files`, everything below it too."""
    for path in folder.iterdir() if files else ():
        if path.is_dir():
            sync_folder(path, files=True)
        else:
            sync_file(path)
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def new_folder(path: Path, replace_empty: bool = False, replace: Collection[str] = ()) -> Iterator[Path]:
    """A folder to fill. It becomes `path` if the block ends without an error; otherwise it is removed.

    Everything is on the disk before it gets its name. With `replace` an existing folder is replaced: files
    with these names are removed, all others move to the new folder.
    """
    path = path.absolute()
    settle(path, replace)
    is_empty = replace_empty and path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not (replace and path.is_dir()):
        settle(path)
        raise SelhnError(f"{path} already exists: choose another name, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _workshop(path, replace) as hidden:
        partial, ready, previous = (hidden / name for name in _STAGES)
        partial.mkdir()
        yield partial
        sync_folder(partial, files=True)
        if not (replace and path.is_dir()):
            os.rename(partial, path)
        else:
            os.rename(partial, ready)  # from here on it is complete
            if not _exchange(ready, path):
                os.rename(path, previous)
                try:
                    os.rename(ready, path)
                except BaseException:
                    os.rename(previous, path)
                    raise
        sync_folder(path.parent)


def settle(path: Path, replace: Collection[str] = ()) -> None:
    """Finish or remove what a killed process left behind while it was writing a folder with `new_folder`."""
    if _hidden(path.absolute()).is_dir():
        # A process that is still running finishes it itself; on a read-only disk it stays.
        with suppress(Locked, OSError), _workshop(path.absolute(), replace):
            pass


_STAGES = ("new", "ready", "previous")


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


@contextmanager
def _workshop(path: Path, replace: Collection[str]) -> Iterator[Path]:
    """The hidden folder in which one process at a time makes `path`."""
    hidden = _hidden(path)
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


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, if the system and the file system support it: Linux, but not NFS."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return swap is not None and swap(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextmanager
def writing(folder: Path, meanwhile: str = "", wait: float = 0.0, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold the lock of a folder. If it is already held, the error says by whom and what to do `meanwhile`.

    `wait` is how many seconds to wait for it first; below 0, forever. Different names are separate locks.

    The system holds the lock, so one held by a killed process is free again at once. The content of the
    file only tells people who holds it.
    """
    path = folder / name
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise Locked(
            f"{folder} is being written by {_holder(path)}: wait until that is done, or stop it{meanwhile}"
        ) from None
    except NotImplementedError:  # this file system has no locks, as on some clusters: continue without one
        pass
    try:
        with suppress(OSError):  # Windows does not let anyone write a locked file
            path.write_text(json.dumps({"process": os.getpid(), "host": platform.node()}), encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['process'])} on {str(holder['host'])[:80]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
