"""Errors of the disk: whether it is full or read-only, and which file could not be written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NAMELESS = (*FULL, errno.EFBIG, errno.EIO)
"""Errors of writing, which know a file by its number only."""
SQLITE_FULL = 13


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a full disk."""
    while error is not None:
        if getattr(error, "errno", 0) in FULL or getattr(error, "sqlite_errorcode", 0) == SQLITE_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def is_read_only(error: OSError) -> bool:
    """Whether an error says that this user may not write there, or nobody."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def naming(path: Path, hidden: Path | None = None) -> Iterator[None]:
    """Name `path` in errors of the disk that name no file, or one in `hidden`, which nobody knows."""
    try:
        yield
    except OSError as error:
        named = error.filename
        if isinstance(named, str | bytes):
            if hidden is None or not Path(os.fsdecode(named)).is_relative_to(hidden):
                raise
        elif error.errno not in _NAMELESS:
            raise
        error.filename, error.filename2 = os.fspath(path), None
        raise
