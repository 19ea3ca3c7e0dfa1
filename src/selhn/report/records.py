"""What the folder of a run says, read once: settings, environment, results, log and verdict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.diagnose import Log, Verdict, diagnose, epsilon_of
from selhn.eval import Metrics
from selhn.runs import OWN, RunFolder
from selhn.training import RunConfig, run_names
from selhn.training.run import make_loss


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or not."""

    folder: Path
    name: str
    log: Log
    verdict: Verdict
    plateau: float | None
    """The loss per anchor if all scores are equal; None if that is not known."""
    epsilon: float
    """The delta_s from which an anchor counts as separated."""
    config: RunConfig | None
    settings: Mapping[str, str]
    """The configuration, or what a run that has none says of itself; names joined by a dot."""
    environment: Mapping[str, str]
    test: Metrics | None
    dev: Metrics | None
    """Of the best epoch."""
    best_epoch: int | None
    """Counted from 1."""
    alarm: str | None
    """What the stall alarm said in training."""

    @property
    def rsum(self) -> float:
        """What runs are ordered by: RSUM on test, or without one on dev; -1 without either."""
        best = self.test or self.dev
        return -1.0 if best is None else best.rsum

    @property
    def made_of(self) -> str:
        """Model, loss, data and length in words."""
        steps = f"{int(self.log.steps[-1]):,} step{'' if int(self.log.steps[-1]) == 1 else 's'}"
        if self.test is None:
            steps += ", not finished"
        config = self.config
        return steps if config is None else f"{config.model} with {config.loss} on {config.data}, {steps}"


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Every run under the name that distinguishes it from the others."""
    for path in paths:
        if not path.is_dir():
            raise NotFound(f"there is no run {path}: name the folder that `selhn train` wrote")
    return [_read_run(path, name) for path, name in zip(paths, run_names(paths))]


def _read_run(path: Path, name: str) -> RunRecord:
    """One run; a damaged file is an error, a missing one is not, except the log."""
    folder = RunFolder(path)
    rows = [row for row in folder.log() if isinstance(row, dict)]
    if not rows:
        raise SelhnError(f"{folder.log_path} is empty: the run has not made a step yet")
    found = diagnose(path)
    config = None if folder.config is None else RunConfig.from_dict(folder.config)
    results = folder.results
    best_epoch, dev = _best_on_dev(rows, folder.log_path)
    return RunRecord(
        path,
        name,
        found.log,
        found.verdict,
        found.plateau,
        epsilon_of(None if config is None or config.loss.startswith(OWN) else make_loss(config)),
        config,
        flat(folder.identity if config is None else config.to_dict()),
        flat(folder.environment),
        None if results is None else _metrics(results.test, folder.file("results.json")),
        dev,
        best_epoch,
        None if results is None else results.stalled,
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as they are typed: `train.lr` and `0.0005`."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _best_on_dev(rows: Sequence[Mapping[str, Any]], path: Path) -> tuple[int | None, Metrics | None]:
    """The epoch with the highest RSUM, as training chooses it, and what it reached."""
    rows = [row for row in rows if isinstance(row.get("dev"), Mapping) and "i2t" in row["dev"]]
    measured = [(int(row.get("epoch", 0)) + 1, _metrics(row["dev"], path)) for row in rows]
    return max(measured, key=lambda one: one[1].rsum, default=(None, None))


def _metrics(named: Any, path: Path) -> Metrics:
    try:
        return Metrics.from_dict(named)
    except (ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read ({error}): was it edited by hand?") from None
