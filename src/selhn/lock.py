"""One writer at a time: a lock that the system takes back when its holder dies, however it dies."""

import errno
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock"
HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""What the systems say of a lock that another process has."""


@contextmanager
def writing(folder: Path, meanwhile: str = "") -> Iterator[None]:
    """Hold the lock of a folder; who finds it held is told by whom, and what can be done `meanwhile`.

    The lock is the system's (`flock`), so that one held by a process that was killed is free again at once; what is
    written in the file only tells people who holds it.
    """
    path = folder / LOCK_FILE
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _lock(file)
        except OSError as error:
            # Where the file system has no locks, as on some clusters, there is nothing to hold, and work goes on.
            if error.errno in HELD:
                raise ValueError(
                    f"{folder} is being written by {_holder(path)}: wait until that is done, or stop it{meanwhile}"
                ) from None
        os.truncate(file, 0)
        os.write(file, json.dumps({"process": os.getpid(), "host": platform.node()}).encode())
        yield
    finally:
        os.close(file)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['process'])} on {str(holder['host'])[:80]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _lock(file: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
