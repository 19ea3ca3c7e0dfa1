"""Tells what a process opens and changes outside, and which line of the package does it."""

import os
import re
import stat
import sys
import threading
from collections.abc import Sequence
from typing import Any

from faults.given import Place
from faults.kills import CHANGES, WRITES

FOLLOWING = ("os.listdir", "os.scandir", "os.chmod", "os.truncate", "os.utime", "sqlite3.connect")


class Listening:
    """An audit hook that tells what is opened outside, from which line, and pipes that would block."""

    def __init__(self, place: Place, tell: Any, noting: bool):
        self.place, self.tell, self.noting = place, tell, noting
        self.outside, self.own = str(place.outside.path), threading.local()

    def __call__(self, event: str, args: Sequence[Any]) -> None:
        if getattr(self.own, "busy", False) or not (
            event == "open" or event in CHANGES or event in FOLLOWING
        ):
            return
        self.own.busy = True
        try:
            flags = args[2] if event == "open" and isinstance(args[2], int) else 0
            for number, path in enumerate(args[:2] if event in ("os.rename", "os.link") else args[:1]):
                self._look(event, self._name(path), flags, number)
        finally:
            self.own.busy = False

    @staticmethod
    def _name(path: Any) -> str:
        try:
            if isinstance(path, int):
                return os.readlink(f"/proc/self/fd/{path}")
            return os.path.abspath(os.fsdecode(path))
        except (OSError, TypeError, ValueError):
            return ""

    def _look(self, event: str, name: str, flags: int, number: int) -> None:
        follows = event in FOLLOWING or (event == "open" and not flags & os.O_NOFOLLOW)
        writes = event in CHANGES or bool(flags & WRITES)
        if self.noting:
            inside = name.startswith((f"{self.place.given}/", f"{self.place.user}/Pictures/uploads"))
            if writes and inside:
                self.tell(wrote=os.path.relpath(name, self.place.root))
            return
        try:
            real = (
                os.path.realpath(name)
                if follows
                else os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
            )
            is_pipe = event == "open" and not flags & os.O_NONBLOCK and stat.S_ISFIFO(os.stat(name).st_mode)
        except OSError:
            real, is_pipe = os.path.realpath(name), False
        if is_pipe and str(self.place.root) in name:
            self.tell(kind="blocks", where=self._line(), what=os.path.relpath(name, self.place.root))
            os._exit(0)
        if real == self.outside or real.startswith(f"{self.outside}/"):
            kind = "touched" if writes else "opened"
            self.tell(kind=kind, where=self._line(), what=f"{event} {os.path.relpath(real, self.place.root)}")

    @staticmethod
    def _line() -> str:
        """The line of the package that did it: not in `base`, which only opens what others name."""
        found, frame = "", sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename.rpartition("/src/")[2]
            if name.startswith("selhn/"):
                found = found or f"{name}:{frame.f_lineno}"
                if not name.startswith("selhn/base/"):
                    return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return found


def innermost(shown: str) -> str:
    """The line of the package that a traceback ends in, of either kind."""
    lines = re.findall(r'File "[^"]*/src/(selhn/[^"]+)", line (\d+)', shown)
    lines = [":".join(line) for line in (lines if "most recent call first" in shown else reversed(lines))]
    outer = [line for line in lines if not line.startswith("selhn/base/")]
    return next(iter(outer or lines), "")
