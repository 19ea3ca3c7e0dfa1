"""Decodes untrusted pictures, in processes with limits on CPU time and memory.

Each process decodes one picture at a time, and is kept for the next one unless it had to be ended.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from selhn.base.errors import MissingExtra, SelhnError
from selhn.pictures.decoder_processes import DecoderProcess, idle_process, keep_idle
from selhn.pictures.facts import checked_facts

Value = TypeVar("Value")
MOST_PIXELS = 50_000_000
LIMITS = {"seconds": 2.0, "seconds_per_megapixel": 0.1, "memory": 960 * 2**20}
"""CPU time and bytes for one picture. With 50 megapixels, photographs need up to 3.5 s and 800 MiB."""
DEADLINE = 30.0
"""Limit in wall-clock seconds, also for systems without the limits above."""
TIMERS = hasattr(signal, "setitimer")
"""Whether a process can limit its own time."""
_THREAD = threading.local()


class TooSlow(SelhnError):
    """A picture that was not decoded within its CPU time."""


@dataclass(frozen=True)
class Picture:
    """A picture as a model sees it, and what was done to it on the way."""

    image: Image.Image
    """RGB, turned as its EXIF entry says."""
    notes: tuple[str, ...] = ()
    format: str = ""
    """Format of its file, as Pillow names it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its file says about it; see `selhn.pictures.facts`."""
    at: float | None = None
    """For a frame of a video: seconds from the beginning."""


@dataclass(frozen=True)
class Moment:
    """A frame of a video file."""

    path: Path
    """Path with all links resolved: the decoder does not follow links."""
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
    """The picture in some bytes; `name` is for messages. One that is too large is refused before decoding.

    Args:
        within: reduce it to this many pixels on its longer side.
        resized: resize it to this width and height, bicubic.

    With either, a JPEG is decoded at 1/2, 1/4 or 1/8 of its width and height where that is enough, which is faster.
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
        return checked_facts(
            _ask(content, name, {"only_facts": True, "most_pixels": MOST_PIXELS})[0]["facts"]
        )
    return {}


def _ask(content: bytes, name: str, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    if not content and "video" not in request:
        raise SelhnError(f"{name} is empty: copy it again")
    said, pixels = (getattr(_THREAD, "decoding", None) or Decoding()).ask(
        content, name, {**request, **LIMITS}
    )
    if "bug" in said:
        raise RuntimeError(f"decoding {name} failed:\n{said['bug']}")
    if "refused" in said:
        raise (MissingExtra if said["missing"] else SelhnError)(f"{name} {said['refused']}")
    return said, pixels


class Decoding:
    """One call of a function that decodes pictures, which another thread can end.

    Args:
        seconds: CPU time for one picture, instead of that of `LIMITS`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._limits = {} if seconds is None else {"seconds": seconds, "seconds_per_megapixel": 0.0}
        self._lock = threading.Lock()
        self._process: DecoderProcess | None = None
        self._ended = False

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call a function in this thread; `end` ends what it decodes."""
        _THREAD.decoding = self
        try:
            return function(*arguments)
        finally:
            _THREAD.decoding = None

    def end(self) -> None:
        """Kill the process that decodes now; its caller gets a SelhnError at once."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def ask(self, content: bytes, name: str, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The answer of a process, and the pixels; a SelhnError if the process had to be ended."""
        process = idle_process() or DecoderProcess()
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
            if not answered or self._ended or not keep_idle(process):
                process.close()

    def _why_ended(self, name: str, process: DecoderProcess, is_video: bool) -> SelhnError:
        status = process.close()
        if self._ended or (TIMERS and status in (-signal.SIGPROF, -signal.SIGALRM)):
            kind = "MP4 (H.264)" if is_video else "JPEG or PNG"
            return TooSlow(f"{name} takes too long to decode: save it again as an ordinary {kind}")
        why = f"the decoder ended with status {status}"
        return SelhnError(f"{name} cannot be decoded ({why}): copy or export it again")

    def _use(self, process: DecoderProcess | None) -> None:
        with self._lock:
            self._process = process
            if self._ended and process is not None:
                process.kill()
