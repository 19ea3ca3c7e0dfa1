"""Training runs while they train: which there are, what was logged since the last call, and the verdict."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.diagnose import diagnose
from selhn.runs import RunFolder, find_runs

MOST_BYTES = 4 * 2**20
"""Most bytes of a log read per call; the next call continues from there."""
MOST_ROWS = 1_000
MOST_VERDICTS = 500
COLUMNS = {"loss": ("loss_per_anchor", "loss"), "delta_s": ("delta_s",), "mined": ("separated", "mined")}
"""What is shown, and its names in logs; `separated` is the share of anchors with a mined negative."""

Row = dict[str, Any]


class RunMessage(BaseModel):
    """A training run."""

    name: str
    changed: float
    """When its log was last written, in seconds since 1970."""
    finished: bool
    test_rsum: float | None


class RunLog(BaseModel):
    """The log of a run from some byte on; in a long log, neighbouring steps are averaged."""

    steps: list[int]
    columns: dict[str, list[float | None]]
    evaluations: list[dict[str, float]]
    after: int
    """The byte to continue from."""
    more: bool
    restarted: bool
    """Whether the log was started again, and this is its beginning."""


class VerdictMessage(BaseModel):
    """What `selhn diagnose` says."""

    kind: str
    since: int | None
    why: str
    evidence: list[str]
    remedy: str
    clock: str = "step"
    """What `since` counts: steps, or rows of a log that does not say its steps."""


class WatchedRuns:
    """The runs below a folder; no file outside it is read."""

    def __init__(self, root: str | Path):
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise NotFound(f"there is no folder {root}: name the one that holds runs with --runs")
        self._judged = lru_cache(MOST_VERDICTS)(self._judge)

    def all(self) -> list[RunMessage]:
        """All runs, by their paths in the folder; the one written to last comes first."""
        runs = []
        for path in find_runs(self.root):
            with suppress(NotFound, FileNotFoundError):  # just removed
                runs.append(self.describe(path.relative_to(self.root).as_posix()))
        return sorted(runs, key=lambda run: (-run.changed, run.name))

    def describe(self, name: str) -> RunMessage:
        """When a run was last written to, and its result if it has finished."""
        run = self._run(name)
        try:
            results = run.results
        except Damaged:  # it is being written
            results = None
        test = {} if results is None or not isinstance(results.test, dict) else results.test
        changed = run.log_path.stat().st_mtime
        rsum = finite(test.get("rsum"))
        return RunMessage(name=name, changed=changed, finished=results is not None, test_rsum=rsum)

    def read(self, name: str, after: int = 0) -> RunLog:
        """The log of a run from a byte on; a line that is not complete yet is left for the next call."""
        part = self._run(name).log_since(after, MOST_BYTES)
        steps, evaluations = [], []
        for row in part.rows:
            step, epoch, dev = row.get("step"), row.get("epoch"), row.get("dev")
            if not isinstance(step, int):
                continue
            if not isinstance(dev, dict):
                steps.append(row)
            elif (rsum := finite(dev.get("rsum"))) is not None:
                epoch = epoch if isinstance(epoch, int) else 0
                evaluations.append({"step": step, "epoch": epoch, "rsum": rsum})
        every = max(1, math.ceil(len(steps) / MOST_ROWS))
        groups = [steps[first : first + every] for first in range(0, len(steps), every)]
        return RunLog(
            steps=[group[-1]["step"] for group in groups],
            columns={name: [_mean(group, names) for group in groups] for name, names in COLUMNS.items()},
            evaluations=evaluations,
            after=part.after,
            more=part.more,
            restarted=part.restarted,
        )

    def verdict(self, name: str) -> VerdictMessage:
        """What `selhn diagnose` says of a run at this moment."""
        path = self._run(name).log_path
        found = path.stat()
        return self._judged(path.parent, found.st_size, found.st_mtime_ns)

    def _judge(self, run: Path, size: int, changed: int) -> VerdictMessage:
        try:
            return VerdictMessage(**diagnose(run).verdict.to_dict())
        except (SelhnError, OSError) as wrong:
            why = "nothing has been logged yet" if size == 0 else str(wrong).replace(f"{run}/", "")
            return VerdictMessage(kind="unclear", since=None, why=why, evidence=[], remedy="")

    def _run(self, name: str) -> RunFolder:
        try:
            run = RunFolder((self.root / name).resolve(strict=True))
            log = run.log_path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # missing; not a file name; links in a circle
            raise NotFound(f"there is no run {name[:80]!r}") from None
        if not (run.log_path.is_relative_to(self.root) and log.is_relative_to(self.root) and log.is_file()):
            raise NotFound(f"there is no run {name[:80]!r}")
        return run


def finite(value: Any) -> float | None:
    """The value if JSON can store it as a number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _mean(rows: Sequence[Row], names: Sequence[str]) -> float | None:
    """The mean over some steps of the first of several columns that they have."""
    for name in names:
        values = [number for row in rows if (number := finite(row.get(name))) is not None]
        if values:
            return sum(values) / len(values)
    return None
