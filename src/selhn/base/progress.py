"""Progress of long work, for the person at the screen."""

import sys
import time
from typing import Any

WIDTH = 119


class Progress:
    """One line that updates itself on a terminal; elsewhere, a plain line now and then.

    `total` is in any unit that is proportional to time: training steps, or words scored.
    """

    def __init__(self, total: int, done: int = 0, quiet: bool = False, label: str = ""):
        self.total, self.done, self.label, self.quiet = total, done, label, quiet
        self.live = sys.stderr.isatty() and not quiet and not label  # labelled runs share the screen
        self._first, self._start, self._last = done, time.monotonic(), 0.0

    def step(self, text: str, amount: int = 1) -> None:
        self.done += amount
        now = time.monotonic()
        if self.live and now - self._last > 0.2:
            self._last = now
            left = (now - self._start) / max(1, self.done - self._first) * (self.total - self.done)
            line = f"{self.label}{self.done}/{self.total} {self.done / self.total:4.0%}  {text}  {clock(left)} left"
            self._write("\r" + line[:WIDTH].ljust(WIDTH), sys.stderr)

    def say(self, text: str) -> None:
        """Print a line that stays, after the label."""
        self.clear()
        if not self.quiet:
            self._write(f"{self.label}{text}\n", sys.stdout)

    def clear(self) -> None:
        if self.live:
            self._write("\r" + " " * WIDTH + "\r", sys.stderr)

    def _write(self, text: str, stream: Any) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # the terminal was closed; the work continues
            self.live, self.quiet = False, True


def clock(seconds: float) -> str:
    """0:42, 12:05 or 3:07:00."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
