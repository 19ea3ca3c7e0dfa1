"""How far an index has come while pictures are added: a small file in its folder, for other processes."""

import json
import os
import platform
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selhn.base.errors import SelhnError
from selhn.base.files import refuse_links, write_whole
from selhn.base.untrusted import read_json
from selhn.pictures.extraction import Extraction
from selhn.pictures.picture_report import REPORT_FILE

PROGRESS_FILE = "progress.json"
EVERY, WINDOW, FEWEST = 0.5, 30.0, 8
"""Seconds between two writes; of the past that the time left is estimated from; and fewest pictures in it."""
STALE = 60.0
"""A process of another machine that has written nothing for this many seconds counts as ended."""


@dataclass(frozen=True)
class HowFar:
    """How many pictures are done, of all in the folder that is being indexed."""

    done: int = 0
    total: int = 0
    left_out: int = 0
    seconds_left: float | None = None
    process: int = 0
    host: str = ""

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {in_words(self.seconds_left)} left"
        return f"{self.done:,} of {self.total:,} pictures{left}"

    @classmethod
    def read(cls, index: Path | str | None) -> "HowFar | None":
        """What the process that is adding pictures to an index says; None if there is no such process."""
        path = Path(index or "") / PROGRESS_FILE
        with suppress(
            SelhnError, OSError
        ):  # a page may ask before the index is opened, and links in it refused
            refuse_links(path.parent, [path.name])
            told = read_json(path)
            fields = {name: told.get(name) for name in cls.__dataclass_fields__}
            if all(map(_fits, fields, fields.values())):
                found = cls(**fields)  # type: ignore[arg-type]
                return found if found._is_running(path) else None
        return None

    def _is_running(self, path: Path) -> bool:
        if os.name != "posix" or self.host != platform.node():
            return abs(time.time() - path.stat().st_mtime) < STALE
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's process
            pass
        return True


def _fits(name: str, value: Any) -> bool:
    if name == "host":
        return isinstance(value, str)
    if name == "seconds_left":
        return value is None or (isinstance(value, int | float) and 0 <= value < 1e9)
    return type(value) is int and (1 if name == "process" else 0) <= value < 2**31


class HowFarFile:
    """Writes the file while pictures are added to an index, and removes it at the end.

    Args:
        index: its path; nothing is written if that is not a folder.
        done, new: pictures of the folder that are already in the index, and that will be read.
    """

    def __init__(self, index: Path | str | None, done: int, new: int):
        self.path = index / PROGRESS_FILE if isinstance(index, Path) else None
        self._first, self._total = done, done + new
        self._times: deque[tuple[float, int]] = deque([(time.monotonic(), done)])
        self._written = 0.0

    def __enter__(self) -> "HowFarFile":
        self._write(0, 0)
        return self

    def __exit__(self, *error: object) -> None:
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def tell(self, reading: Extraction) -> None:
        """Write how far it is, at most every half second."""
        if self.path is not None and time.monotonic() - self._written >= EVERY:
            self._write(reading.progress.done, len(reading.report.refused))

    def _write(self, read: int, left_out: int) -> None:
        self._written = now = time.monotonic()
        done = self._first + read
        self._times.append((now, done))
        while now - self._times[0][0] > WINDOW:
            self._times.popleft()
        (since, before), seconds = self._times[0], None
        if done - before >= FEWEST:
            seconds = (now - since) / (done - before) * (self._total - done)
        told = HowFar(done, self._total, left_out, seconds, os.getpid(), platform.node())
        if self.path is not None:
            with suppress(OSError):  # a full disk: more important writes report it
                write_whole(self.path, json.dumps(asdict(told)))


def left_out(index: Path | str | None, most: int = 1000) -> list[tuple[str, str]]:
    """The first files that the last indexing has left out so far, and why."""
    with suppress(SelhnError, OSError):
        refuse_links(Path(index or ""), [REPORT_FILE])
        found = read_json(Path(index or "") / REPORT_FILE).get("left out")
        pairs = found[:most] if isinstance(found, list) else []
        return [(str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    return []


def in_words(seconds: float) -> str:
    """About how long something takes: "a few seconds", "about 3 minutes"."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {10 * round(seconds / 10)} seconds"
    if seconds < 90:
        return "about a minute"
    if seconds < 55 * 60:
        return f"about {round(seconds / 60)} minutes"
    hours = round(seconds / 3600)
    return "about an hour" if hours == 1 else f"about {hours} hours"
