"""What a process may do in place of indexing; nothing heavy is imported, so that it starts at once."""

import errno
import os
import signal


def count(index, folders):
    with (index / "runs").open("a") as file:
        file.write("x")
    yield f"{len(folders)} folders were read"


def crash(index, folders):
    os.kill(os.getpid(), signal.SIGSEGV)


def end(index, folders):
    os.kill(os.getpid(), signal.SIGTERM)


def bug(index, folders):
    return 1 // 0


def full(index, folders):
    if (index / "full").exists():
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise OSError("the index could not be written (No space left on device)") from error
    yield from count(index, folders)


def forever(index, folders):
    (index / "begun").touch()
    while True:
        signal.pause()
