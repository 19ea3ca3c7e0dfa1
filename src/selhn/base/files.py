"""How the project writes: files that appear whole or not at all, and one writer at a time.

A run, a model, an index, embeddings or scores may come from someone else, with links planted inside. **No link in such
a folder is followed, to read, to write or to remove.** Whoever opens one calls `refuse_links`. A whole file is written
by `write_whole`, one that grows is opened by `open_in_place`, a folder is filled by `new_folder` (`folders.py`). The
folder that the user names may itself be a link.
"""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
import errno
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

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
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selhn"
    except RuntimeError:  # in a container, say, whose user has no entry
        raise SelhnError("this user has no home folder: set HOME, or XDG_CACHE_HOME") from None


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


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], Any], private: bool = False) -> None:
    """Replace a file in one step: a reader finds all of the old content or all of the new, also after a power cut.

    `content` may be a function that fills the file. A link is replaced, not followed. `private`: only for its owner.
    """
    mode = _mode(path, os.stat)
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Linked(f"{path} is a pipe, a device or a socket: name a file")
    with ExitStack() as held:
        partial, descriptor = _hidden_file(path, held, 0o600 if private else 0o666)
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


def _hidden_file(path: Path, held: ExitStack, mode: int) -> tuple[Path, int]:
    """A new file beside `path`, locked until `held` ends, so that other processes see that its writer is alive."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        with naming(path, partial):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_IT_IS, mode)
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
