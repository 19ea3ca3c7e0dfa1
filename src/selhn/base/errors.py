"""The errors that selhn raises on purpose. Anything else is a bug, and its traceback is shown or logged.

Every message says what is wrong, where, and what to do. The command line prints it as one line, and the
service maps each class to an HTTP status. Nobody matches on message text.
"""

import sys
import warnings


class SelhnError(ValueError):
    """Something the caller can correct: a wrong argument, setting or file."""


class NotFound(SelhnError, KeyError):
    """A path, a name or an item that does not exist."""

    __str__ = Exception.__str__  # KeyError would put the sentence in quotes


class Damaged(SelhnError):
    """A file that is not what was written: cut off, changed, or of another version."""


class Locked(SelhnError):
    """Another process is writing there; the same call works once it has finished."""


class MissingExtra(SelhnError, ImportError):
    """An optional dependency that is not installed; the message has the `pip install` line."""


class SelhnWarning(UserWarning):
    """Something that can be computed and is hardly ever meant."""


def warn(message: str) -> None:
    """Warn at the line of the user's own code, where Python says the same thing only once."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("selhn", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SelhnWarning, stacklevel=level)
