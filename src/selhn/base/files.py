"""How the project writes: files and folders that appear whole or not at all, and one writer at a time.

A run, a model, an index, embeddings or scores may come from someone else, with links planted inside. **No link in such
a folder is followed, to read, to write or to remove.** Whoever opens one calls `refuse_links`. A whole file is written
by `write_whole`, one that grows is opened by `open_in_place`, and a folder is filled by `new_folder`, whose block may
write as it likes: nobody else has put anything there. The folder that the user names may itself be a link.
"""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
import ctypes
import errno
import json
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from selhn.base.disk_errors import naming
from selhn.base.errors import Linked, Locked, SelhnError

LOCK_FILE = "lock"
PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
"""The hidden names under which `write_whole` writes; nobody can guess one."""
ABANDONED = 3600
"""Seconds after which such a file belongs to a process that was killed, where no lock says so at once."""
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
# Windows has neither the first two, nor files that are opened as bytes without the third.
_AS_IT_IS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def cache_folder() -> Path:
    """The user's folder for files that can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selhn"


def refuse_links(folder: Path, names: Iterable[str] | None = None, deep: bool = True) -> None:
    """Refuse a folder in which some entries, by default all, are links, pipes, devices or sockets.

    With `deep`, nothing below these entries may be one either. Missing entries are fine.
    """
    for path in (folder / name for name in (_entries(folder) if names is None else names)):
        mode = _mode(path, os.lstat)
        if stat.S_ISLNK(mode):
            raise Linked(
                f"{path} is a link, and links in such a folder are not followed: put what it names in its place "
                "(cp -rL copies a folder that way), or remove it"
            )
        if stat.S_ISDIR(mode):
            if deep:
                refuse_links(path)
        elif mode and not stat.S_ISREG(mode):
            raise Linked(f"{path} is a pipe, a device or a socket, not a file or a folder: remove it")


def _mode(path: Path, look: Callable[[Path], os.stat_result]) -> int:
    """What kind of file it is; 0 if there is none."""
    try:
        return look(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return 0
        raise


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return []
        raise


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Replace a file in one step: a reader finds all of the old content or all of the new, also after a power cut.

    `content` may be a function that fills the file. A link of that name is replaced, not followed.
    """
    mode = _mode(path, os.stat)
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Linked(f"{path} is a pipe, a device or a socket: name a file")
    with ExitStack() as held:
        partial, descriptor = _hidden_file(path, held)
        try:
            with naming(path, partial):
                with os.fdopen(descriptor, "wb") as file:
                    if callable(content):
                        content(file)
                    else:
                        file.write(content.encode("utf-8") if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)
    _remove_abandoned(path)


def _hidden_file(path: Path, held: ExitStack) -> tuple[Path, int]:
    """A new file beside `path`, locked until `held` ends, so that other processes see that its writer is alive."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        with naming(path, partial):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_IT_IS, 0o666)
        if fcntl is None:
            return partial, descriptor
        kept = os.dup(descriptor)
        held.callback(os.close, kept)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(kept, fcntl.LOCK_SH)
        if partial.exists():
            return partial, descriptor
        os.close(descriptor)  # another process removed it in the moment before it was locked


def _remove_abandoned(written: Path) -> None:
    """Remove what killed processes left beside a file while they wrote."""
    for path in (written.with_name(name) for name in _entries(written.parent)):
        is_ours = PARTIAL.fullmatch(path.name) is not None
        if is_ours or path.name == f".{written.name}.partial":  # as earlier versions called it
            with suppress(OSError):  # a folder of that name, or it is still being written
                if time.time() - path.lstat().st_mtime > ABANDONED:
                    path.unlink()
                elif is_ours and fcntl is not None:
                    _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | _AS_IT_IS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def open_in_place(path: Path) -> BinaryIO:
    """A file to read and to change, or to append to; made if it is missing. No other name may lead to it."""
    refuse_links(path.parent, [path.name])
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _AS_IT_IS, 0o666), "r+b")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise Linked(
            f"{path} is the same file as another one elsewhere (a hard link): put a copy in its place"
        )
    return file


def sync_file(path: Path) -> None:
    """Flush a written file to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDWR | _AS_IT_IS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
            if not _exchange(ready, path):
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


_STAGES = ("new", "ready", "previous")


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
    open_in_place(path).close()  # refuses a link before anything locks or empties the file
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
            holder = json.dumps({"process": os.getpid(), "host": platform.node()})
            with open_in_place(path) as file:
                file.truncate()
                file.write(holder.encode())
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['process'])} on {str(holder['host'])[:80]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def private_folder(path: Path) -> Path:
    """A folder for this user alone (0700), with its parents, made if missing; one that exists keeps its rights."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    return path
