"""The errors that selhn raises on purpose. Anything else is a bug, and its traceback is shown or logged.

Every message says what is wrong, where, and what to do. The command line prints it as one line, and the
service maps each class to an HTTP status. Nobody matches on message text.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class SelhnError(ValueError):
    """Something the caller can correct: a wrong argument, setting or file."""


class NotFound(SelhnError, KeyError):
    """A path, a name or an item that does not exist."""

    __str__ = Exception.__str__  # KeyError would put the sentence in quotes


class Damaged(SelhnError):
    """A file that is not what was written: cut off, changed, or of another version."""


class Linked(Damaged):
    """A link, pipe or device in a folder that may come from elsewhere, where only files and folders are opened."""


class Outdated(SelhnError):
    """An index built by an earlier version of a shipped model; it can be rebuilt from the pictures."""


class Locked(SelhnError):
    """Another process is writing there; the same call works once it has finished."""


class MissingExtra(SelhnError, ImportError):
    """An optional dependency that is not installed; the message has the `pip install` line."""


def pip_install(extra: str) -> str:
    """The command that installs an extra. selhn is not on a package index, so it names this copy's source."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("selhn").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if "dir_info" in origin and url.startswith("file://"):
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'{url2pathname(url.removeprefix('file://'))}[{extra}]'"
    if url:
        kind = origin.get("vcs_info", {}).get("vcs")
        return f"pip install 'selhn[{extra}] @ {f'{kind}+' if kind else ''}{url}'"
    return f"pip install '.[{extra}]' in a checkout of selhn"


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Wrap the import of a library that is not one of our extras: if it is missing, say what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"this part of selhn needs {package} ({error}): pip install '{package}'"
        ) from error


class SelhnWarning(UserWarning):
    """Valid input that is almost certainly a mistake."""


def warn(message: str) -> None:
    """Warn at the line of the user's own code; Python then shows the same warning only once per line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("selhn", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SelhnWarning, stacklevel=level)
