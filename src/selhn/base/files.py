"""Files and folders that appear whole or not at all, and one writer at a time."""

import json
import os
import platform
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from selhn.base.errors import Locked, SelhnError

LOCK_FILE = "lock"


def write_whole(path: Path, content: str | bytes, durable: bool = False) -> None:
    """Replace a file in one step: a reader finds all of the old content or all of the new.

    With `durable` the content is on the disk, not only in the system's memory, before the old one goes.
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


@contextmanager
def new_folder(path: Path, replace_empty: bool = False, replace: Collection[str] = ()) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends without an error and else is removed.

    With `replace` a folder that exists is replaced: files of these names go, all others move to the new one.
    """
    path = path.absolute()
    is_empty = replace_empty and path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not (replace and path.is_dir()):
        raise SelhnError(f"{path} already exists: choose another name, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True) as hidden:
        partial, previous = Path(hidden, "new"), Path(hidden, "previous")
        partial.mkdir()
        yield partial
        if not (replace and path.is_dir()):
            os.rename(partial, path)
            return
        os.rename(path, previous)
        try:
            os.rename(partial, path)
        except BaseException:
            os.rename(previous, path)
            raise
        for file in previous.iterdir():  # someone's notes, or what a file manager leaves where it has looked
            if file.name not in replace:
                os.rename(file, path / file.name)


@contextmanager
def writing(folder: Path, meanwhile: str = "") -> Iterator[None]:
    """Hold the lock of a folder. Whoever finds it held is told by whom, and what can be done `meanwhile`.

    The lock belongs to the system, so one held by a killed process is free again at once. What is in the
    file only tells people who holds it.
    """
    path = folder / LOCK_FILE
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Locked(
            f"{folder} is being written by {_holder(path)}: wait until that is done, or stop it{meanwhile}"
        ) from None
    except NotImplementedError:  # this file system has no locks, as on some clusters: continue without
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
