"""The log of a run, `log.jsonl`: one JSON object per line, read whole or as it grows."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from selhn.base.errors import Damaged


class LogPart(NamedTuple):
    """Rows of a log, read from some byte on."""

    rows: list[dict[str, Any]]
    after: int
    """The byte from which to continue reading."""
    more: bool
    """Whether the file already holds more than was read."""
    restarted: bool
    """Whether the log is shorter than `after`: it was started again, and this is its beginning."""


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a log; a last line that was cut off in the middle is left out."""
    rows = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    raise Damaged(
                        f"{path}, line {number} is not JSON: was the file edited by hand?"
                    ) from None
    return rows


def read_log_part(path: Path, after: int = 0, most_bytes: int = 4 * 2**20) -> LogPart:
    """The rows from a byte on, up to a number of bytes; lines that are not JSON objects are left out.

    A last line that is still being written is left for the next call.
    """
    size = path.stat().st_size
    restarted = after > size
    start = 0 if restarted else after
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(most_bytes)
    read = start + len(content)
    whole = content.rfind(b"\n") + 1
    if whole == 0 and len(content) == most_bytes:  # no line is that long: skip it
        return LogPart([], read, read < size, restarted)
    rows = [row for line in content[:whole].splitlines() if (row := _row(line)) is not None]
    return LogPart(rows, start + whole, read < size, restarted)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
