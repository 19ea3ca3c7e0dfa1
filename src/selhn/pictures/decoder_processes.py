"""The processes that decode: started when they are needed, kept for the next picture, ended with this process."""

import atexit
import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from subprocess import DEVNULL, PIPE
from typing import Any

from selhn.base.errors import SelhnError
from selhn.pictures import decoder

SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # glibc keeps the memory of small pictures for the next ones; returning it each time takes a fifth longer.
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Environment of the processes."""
MOST_IDLE = max(4, os.cpu_count() or 1)
_IDLE: list["DecoderProcess"] = []


class DecoderProcess:
    """A running `decoder`."""

    def __init__(self) -> None:
        # Isolated, so that the current folder, which may be a stranger's, is not searched for modules.
        command = [sys.executable, "-ISW", "ignore", decoder.__file__, json.dumps(sys.path)]
        environment = {**os.environ, **SETTINGS}
        try:
            self._popen = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)
        except OSError as error:
            why = f"cannot start a process that decodes pictures ({error.strerror}): try again later"
            raise SelhnError(why) from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._give, self._take = self._popen.stdin, self._popen.stdout
        for pipe in (self._give, self._take):
            with suppress(ImportError, AttributeError, OSError):  # not Linux, or too many such pipes
                import fcntl

                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)
        self.kill = self._popen.kill

    def ask(self, content: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        head = json.dumps(request).encode()
        self._give.write(struct.pack("<IQ", len(head), len(content)) + head)
        self._give.write(content)
        self._give.flush()
        said = json.loads(self._read(*struct.unpack("<I", self._read(4))))
        width, height = said.get("size", (0, 0))
        return said, self._read(3 * width * height * len(said.get("at", [None])))

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def close(self) -> int:
        """End it, if it has not ended by itself; returns its exit status."""
        self.kill()
        for pipe in (self._give, self._take):
            with suppress(OSError):
                pipe.close()
        return self._popen.wait()

    def forget(self) -> None:
        """Let go of it in a forked process: it belongs to the parent."""
        self._popen.returncode = 0

    def _read(self, number: int) -> bytes:
        found = self._take.read(number)
        if len(found) < number:
            raise EOFError
        return found


def idle_process() -> DecoderProcess | None:
    """An idle process that has decoded before, if there is one."""
    while True:
        try:
            process = _IDLE.pop()
        except IndexError:
            return None
        if process.is_alive():
            return process
        process.close()


def keep_idle(process: DecoderProcess) -> bool:
    """Keep a process for the next picture, unless enough are kept; returns whether it was kept."""
    if len(_IDLE) >= MOST_IDLE:
        return False
    _IDLE.append(process)
    return True


@atexit.register
def end_decoders() -> None:
    """End all processes that are idle; they would end with this process anyway."""
    while _IDLE:
        _IDLE.pop().close()


def _forget_all() -> None:
    while _IDLE:
        _IDLE.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
