"""What the folder of a run says, read once: settings, environment, results, log and verdict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selhn.base.errors import NotFound, SelhnError
from selhn.base.untrusted import read_json
from selhn.diagnose import diagnose, epsilon_of
from selhn.diagnose.logs import Log
from selhn.diagnose.verdict import Verdict
from selhn.eval import Metrics
from selhn.runs import OWN, read_log
from selhn.training import run_names
from selhn.training.config import RunConfig
from selhn.training.run import make_loss, read_config


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or not."""

    folder: Path
    name: str
    log: Log
    verdict: Verdict
    plateau: float | None
    """What an anchor's loss comes to where all scores are equal, if that is known."""
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
        """What runs are put in order by: RSUM on test, or without one on dev; -1 without either."""
        best = self.test or self.dev
        return -1.0 if best is None else best.rsum


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Every run under the name that tells it from the others."""
    for folder in folders:
        if not folder.is_dir():
            raise NotFound(f"there is no run {folder}: name the folder that `selhn train` wrote")
        if not (folder / "log.jsonl").is_file():
            raise SelhnError(f"{folder} holds no run: there is no log.jsonl in it")
    return [read_run(folder, name) for folder, name in zip(folders, run_names(folders))]


def read_run(folder: Path, name: str) -> RunRecord:
    """One run; a file that is broken is an error, one that is missing is not, except the log."""
    rows = [row for row in read_log(folder / "log.jsonl") if isinstance(row, dict)]
    if not rows:
        raise SelhnError(f"{folder / 'log.jsonl'} is empty: the run has not made a step yet")
    verdict, log, plateau, _ = diagnose(folder)
    config = read_config(folder) if (folder / "config.yaml").exists() else None
    results = _optional(folder / "results.json")
    best_epoch, dev = _best_on_dev(rows, folder / "log.jsonl")
    return RunRecord(
        folder,
        name,
        log,
        verdict,
        plateau,
        epsilon_of(None if config is None or config.loss.startswith(OWN) else make_loss(config)),
        config,
        flat(_optional(folder / "identity.json") if config is None else config.to_dict()),
        flat(_optional(folder / "env.json")),
        _metrics(results.get("test"), folder / "results.json"),
        dev,
        best_epoch,
        str(results["stalled"]) if results.get("stalled") else None,
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


def _best_on_dev(rows: Sequence[Mapping[str, Any]], place: Path) -> tuple[int | None, Metrics | None]:
    """The epoch with the highest RSUM, as training chooses it, and what it reached."""
    measured = [(_metrics(row["dev"], place), row) for row in rows if "i2t" in _mapping(row.get("dev"))]
    found = max(((dev.rsum, -number) for number, (dev, _) in enumerate(measured) if dev is not None), default=None)
    if found is None:
        return None, None
    dev, row = measured[-found[1]]
    return int(row.get("epoch", 0)) + 1, dev


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _metrics(named: Any, place: Path) -> Metrics | None:
    try:
        return Metrics.from_dict(named) if named else None
    except (ValueError, TypeError, AttributeError) as error:
        raise SelhnError(f"{place} cannot be read ({error}): was it edited by hand?") from None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
