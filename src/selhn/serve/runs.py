"""Training runs as they go: which there are, what their logs have said since one last looked, and the verdict."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.training.diagnosis import diagnose

LOG_FILE, RESULTS_FILE = "log.jsonl", "results.json"
DEEPEST, MOST_RUNS = 4, 500
MOST_BYTES = 4 * 2**20
"""Read of a log at a time; who asks again gets what follows."""
MOST_ROWS = 1_000
COLUMNS = {"loss": ("loss_per_anchor", "loss"), "delta_s": ("delta_s",), "mined": ("separated", "mined")}
"""What is shown, and what a log calls it; `separated` is the share of anchors whose hardest negative is mined."""


@dataclass(frozen=True)
class Seen:
    """What a log says from a place in the file on."""

    steps: list[int] = field(default_factory=list)
    columns: Mapping[str, list[float | None]] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """Step, epoch and RSUM on dev."""
    after: int = 0
    """Where to go on reading."""
    more: bool = False
    """Whether there is more to read now."""
    anew: bool = False
    """The log is shorter than it was: it was begun again, and this is from its beginning."""


class Runs:
    """The runs below a folder; no file outside it is read."""

    def __init__(self, root: str | Path):
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise NotFound(f"there is no folder {root}: name the one that holds runs with --runs")
        self._verdicts: dict[str, tuple[int, dict[str, Any]]] = {}

    def names(self) -> list[str]:
        """All runs by their paths in the folder, those written to last first."""
        found: list[tuple[float, str]] = []
        for place, folders, files in os.walk(self.root):
            relative = Path(place).relative_to(self.root)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if len(relative.parts) >= DEEPEST:
                folders[:] = []
            if LOG_FILE in files and self._locate(relative.as_posix()) is not None:
                found.append((-(Path(place) / LOG_FILE).stat().st_mtime, relative.as_posix()))
                folders[:] = []
            if len(found) >= MOST_RUNS:
                break
        return [name for _, name in sorted(found)]

    def describe(self, name: str) -> dict[str, Any]:
        """A run in a few words: when it was last heard of, and its end where it has one."""
        folder = self._found(name)
        results = folder / RESULTS_FILE
        changed = (folder / LOG_FILE).stat().st_mtime
        content: dict[str, Any] = {"name": name, "changed": changed, "finished": results.is_file(), "test_rsum": None}
        if results.is_file():
            try:
                content["test_rsum"] = finite(json.loads(results.read_text(encoding="utf-8"))["test"]["rsum"])
            except (ValueError, LookupError, TypeError, OSError):
                content["finished"] = False
        return content

    def read(self, name: str, after: int = 0) -> Seen:
        """The log of a run from a byte on; a line that is not whole yet is left for the next time."""
        path = self._found(name) / LOG_FILE
        size = path.stat().st_size
        anew = after > size
        start = 0 if anew else after
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(MOST_BYTES)
        whole = content.rfind(b"\n") + 1
        if whole == 0 and len(content) == MOST_BYTES:  # no line is that long: pass over it
            return Seen(after=start + len(content), more=start + len(content) < size, anew=anew)
        rows = [row for line in content[:whole].splitlines() if (row := _row(line)) is not None]
        end = start + whole
        return _seen(rows, end, start + len(content) < size, anew)

    def verdict(self, name: str) -> dict[str, Any]:
        """What `selhn diagnose` says of a run as it is now."""
        folder = self._found(name)
        size = (folder / LOG_FILE).stat().st_size
        if self._verdicts.get(name, (-1, {}))[0] != size:
            try:
                said = diagnose(folder)[0].to_dict()
            except (SelhnError, OSError) as wrong:
                why = "nothing has been logged yet" if size == 0 else str(wrong).replace(f"{folder}/", "")
                said = {"kind": "unclear", "since": None, "why": why, "evidence": [], "remedy": ""}
            if len(self._verdicts) >= MOST_RUNS:
                self._verdicts.clear()
            self._verdicts[name] = (size, said)
        return self._verdicts[name][1]

    def _found(self, name: str) -> Path:
        folder = self._locate(name)
        if folder is None:
            raise NotFound(f"there is no run {name[:80]!r}")
        return folder

    def _locate(self, name: str) -> Path | None:
        try:
            log = (self.root / name / LOG_FILE).resolve(strict=True)
            folder = (self.root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            return None
        return folder if log.is_relative_to(self.root) and folder.is_relative_to(self.root) and log.is_file() else None


def finite(value: Any) -> float | None:
    """A number that JSON can say."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _seen(rows: list[dict[str, Any]], after: int, more: bool, anew: bool) -> Seen:
    evaluations = []
    steps: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row.get("dev"), dict):
            rsum = finite(row["dev"].get("rsum"))
            if rsum is not None:
                epoch = row.get("epoch")
                evaluations.append({"step": row["step"], "epoch": epoch if isinstance(epoch, int) else 0, "rsum": rsum})
        else:
            steps.append(row)
    every = max(1, math.ceil(len(steps) / MOST_ROWS))
    groups = [steps[first : first + every] for first in range(0, len(steps), every)]
    columns = {name: [_mean(group, names) for group in groups] for name, names in COLUMNS.items()}
    return Seen([group[-1]["step"] for group in groups], columns, evaluations, after, more, anew)


def _mean(rows: list[dict[str, Any]], names: tuple[str, ...]) -> float | None:
    """Of some steps, where they have it under one of its names."""
    for name in names:
        values = [number for row in rows if (number := finite(row.get(name))) is not None]
        if values:
            return sum(values) / len(values)
    return None
