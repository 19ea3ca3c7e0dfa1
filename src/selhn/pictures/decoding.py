"""Decodes pictures that strangers made, in processes that limits of CPU time and memory can end.

Each process decodes one picture at a time, and is kept for the next one unless it had to be ended.
"""

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, TypeVar

from PIL import Image

from selhn.base.errors import MissingExtra, SelhnError
from selhn.pictures import decoder
from selhn.pictures.facts import checked_facts

Value = TypeVar("Value")
MOST_PIXELS = 50_000_000
LIMITS = {"seconds": 2.0, "seconds_per_megapixel": 0.1, "memory": 960 * 2**20}
"""CPU time and bytes for one picture. With 50 megapixels, photographs need up to 3.5 s and 800 MiB."""
DEADLINE = 30.0
"""Seconds by the clock, also for systems without these limits."""
TIMERS = hasattr(signal, "setitimer")
"""Whether a process can limit its own time."""
SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # glibc keeps the memory of small pictures for the next ones; to return it after each costs a fifth more.
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Environment of the processes."""
MOST_IDLE = max(4, os.cpu_count() or 1)
_THREAD = threading.local()
_IDLE: list["_Process"] = []


class TooSlow(SelhnError):
    """A picture that was not decoded within its CPU time."""


@dataclass(frozen=True)
class Picture:
    """A picture as a model sees it, and what was done to it on the way."""

    image: Image.Image
    """RGB, turned as its EXIF entry says."""
    notes: tuple[str, ...] = ()
    format: str = ""
    """Of its file, as Pillow names it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its file says about it; see `selhn.pictures.facts`."""
    at: float | None = None
    """Of a frame of a video: seconds from the beginning."""


@dataclass(frozen=True)
class Moment:
    """A frame of a video file."""

    path: Path
    """With all links followed: the decoder opens none."""
    at: float | None = None
    """Seconds from the beginning; None for the first frame that shows something."""


def decode_picture(
    content: bytes | Moment,
    name: str,
    most_pixels: int = MOST_PIXELS,
    *,
    within: int | None = None,
    resized: tuple[int, int] | None = None,
) -> Picture:
    """The picture in some bytes; `name` is for messages. Too large a size is refused before decoding.

    Args:
        within: reduce it to so many pixels on its longer side; a JPEG is then decoded faster.
        resized: resize it to this width and height, bicubic.
    """
    return _decoded(content, name, {"most_pixels": most_pixels, "within": within, "resized": resized})[0]


def decode_video(
    path: Path, name: str, most_pixels: int = MOST_PIXELS, *, resized: tuple[int, int] | None = None
) -> list[Picture]:
    """Some key frames of a video, a few seconds apart, that differ; see `decode_picture`."""
    return _decoded(Moment(path), name, {"most_pixels": most_pixels, "resized": resized, "only": None})


def _decoded(content: bytes | Moment, name: str, request: dict[str, Any]) -> list[Picture]:
    if isinstance(content, Moment):
        first = "first" if content.at is None else content.at
        request, content = {"video": str(content.path), "only": first, **request}, b""
    said, pixels = _ask(content, name, request)
    (width, height), facts = said["size"], checked_facts(said["facts"])
    size, notes, found = 3 * width * height, tuple(said["notes"]), []
    for row, at in enumerate(said.get("at", [None])):
        image = Image.frombytes("RGB", (width, height), pixels[row * size : (row + 1) * size])
        found.append(Picture(image, notes, said["format"], facts, at))
    return found


def header_facts(content: bytes, name: str) -> dict[str, Any]:
    """What a picture says about itself, see `selhn.pictures.facts`; only its header is read. Empty if that fails."""
    with suppress(SelhnError):
        return checked_facts(_ask(content, name, {"only_facts": True, "most_pixels": MOST_PIXELS})[0]["facts"])
    return {}


def _ask(content: bytes, name: str, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    if not content and "video" not in request:
        raise SelhnError(f"{name} is empty: copy it again")
    said, pixels = (getattr(_THREAD, "decoding", None) or Decoding()).ask(content, name, {**request, **LIMITS})
    if "bug" in said:
        raise RuntimeError(f"decoding {name} failed:\n{said['bug']}")
    if "refused" in said:
        raise (MissingExtra if said["missing"] else SelhnError)(f"{name} {said['refused']}")
    return said, pixels


class Decoding:
    """One call of something that decodes pictures, which another thread can end.

    Args:
        seconds: CPU time for one picture, instead of that of `LIMITS`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._limits = {} if seconds is None else {"seconds": seconds, "seconds_per_megapixel": 0.0}
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._ended = False

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call a function in this thread; `end` ends what it decodes."""
        _THREAD.decoding = self
        try:
            return function(*arguments)
        finally:
            _THREAD.decoding = None

    def end(self) -> None:
        """Kill the process that decodes now; who waits for it gets a SelhnError at once."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def ask(self, content: bytes, name: str, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The answer of a process and the pixels; a SelhnError if the process has to be ended."""
        process = _idle_process() or _Process()
        late = None if TIMERS else threading.Timer(DEADLINE, self.end)
        if late is not None:
            late.daemon = True
            late.start()
        answered = False
        try:
            self._use(process)
            answer = process.ask(content, {**request, **self._limits, "deadline": DEADLINE})
            answered = True
            return answer
        except (OSError, EOFError):
            raise self._why_ended(name, process, "video" in request) from None
        finally:
            if late is not None:
                late.cancel()
            self._use(None)
            if answered and not self._ended and len(_IDLE) < MOST_IDLE:
                _IDLE.append(process)
            else:
                process.close()

    def _why_ended(self, name: str, process: "_Process", is_video: bool) -> SelhnError:
        status = process.close()
        if self._ended or (TIMERS and status in (-signal.SIGPROF, -signal.SIGALRM)):
            kind = "MP4 (H.264)" if is_video else "JPEG or PNG"
            return TooSlow(f"{name} takes too long to decode: save it again as an ordinary {kind}")
        why = f"the decoder ended with status {status}"
        return SelhnError(f"{name} cannot be decoded ({why}): copy or export it again")

    def _use(self, process: "_Process | None") -> None:
        with self._lock:
            self._process = process
            if self._ended and process is not None:
                process.kill()


class _Process:
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
        """End it; returns its exit status, that of its own end if it had ended before."""
        self.kill()
        for pipe in (self._give, self._take):
            with suppress(OSError):
                pipe.close()
        return self._popen.wait()

    def forget(self) -> None:
        """In a forked process: it belongs to the other one."""
        self._popen.returncode = 0

    def _read(self, number: int) -> bytes:
        found = self._take.read(number)
        if len(found) < number:
            raise EOFError
        return found


def _idle_process() -> _Process | None:
    while True:
        try:
            process = _IDLE.pop()
        except IndexError:
            return None
        if process.is_alive():
            return process
        process.close()


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
