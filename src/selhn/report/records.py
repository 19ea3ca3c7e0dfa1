"""The content of run folders, read once, and the sentences and tables of a report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import flat
from selhn.diagnose import Diagnosis, diagnose
from selhn.eval import Metrics
from selhn.eval.metrics import DEFAULT_KS
from selhn.runs import RunFolder
from selhn.training import RunConfig, run_names
from selhn.training.run import trained_on


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or not."""

    folder: Path
    name: str
    found: Diagnosis
    data: str
    """A description of its data that is unique to the data."""
    config: RunConfig | None
    settings: Mapping[str, str]
    """The configuration, or the identity of a run without one; names joined by a dot."""
    environment: Mapping[str, str]
    test: Metrics | None
    dev: Metrics | None
    """Metrics of the best epoch."""
    best_epoch: int | None
    """Counted from 1."""
    alarm: str | None
    """The stall alarm's message in training."""

    @property
    def rsum(self) -> float:
        """RSUM on test, or on dev if there is none; -1 without either."""
        best = self.test or self.dev
        return -1.0 if best is None else best.rsum

    @property
    def made_of(self) -> str:
        number = int(self.found.log.steps[-1])
        steps = f"{number:,} step{'' if number == 1 else 's'}"
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
    with _reading(folder.file("results.json")):
        test = None if results is None else Metrics.from_dict(results.test)
    rows = [row for row in rows if isinstance(row.get("dev"), Mapping) and "i2t" in row["dev"]]
    with _reading(folder.log_path):
        measured = [(int(row.get("epoch", 0)) + 1, Metrics.from_dict(row["dev"])) for row in rows]
    # As training chooses it.
    best_epoch, dev = max(measured, key=lambda one: one[1].rsum, default=(None, None))
    return RunRecord(
        path,
        name,
        found,
        trained_on(path) or f"the unnamed data of {name}",
        config,
        as_typed(folder.identity if config is None else config.to_dict()),
        as_typed(folder.environment),
        test,
        dev,
        best_epoch,
        None if results is None else results.stalled,
    )


def as_typed(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as one types them: `train.lr` and `0.0005`."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in flat(settings).items()
    }


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say that the file is damaged if what it holds is not what a run writes."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise Damaged(f"{path} cannot be read ({error}): was it edited by hand?") from None


def by_data(runs: Sequence[RunRecord]) -> dict[str, list[int]]:
    """Indices of runs that may be compared, by the name of their data; a single group is named "".

    Recalls of different data say nothing about which run is better.
    """
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(run.data, []).append(number)
    if len(groups) == 1:
        return {"": list(range(len(runs)))}
    short = [data.partition(",")[0] for data in groups]
    return {
        name if short.count(name) == 1 else data: numbers
        for name, (data, numbers) in zip(short, groups.items())
    }


def ranked(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs on the same data, best first: those measured on test, then the others, by RSUM."""
    return sorted(runs, key=lambda run: (run.test is None, -run.rsum))


def lead(runs: Sequence[RunRecord]) -> str:
    """A summary of the page in a few sentences."""

    def reached(run: RunRecord) -> str:
        split = "dev" if run.test is None else "test"
        return f"RSUM {run.rsum:.1f} on {split}" if run.rsum >= 0 else "nothing measured yet"

    if len(runs) == 1:
        return f"{runs[0].made_of}: {runs[0].found.verdict.kind}, {reached(runs[0])}."
    groups = by_data(runs)
    best = {data: ranked([runs[number] for number in numbers])[0] for data, numbers in groups.items()}
    kinds = [f"{run.name} is {run.found.verdict.kind}" for run in runs]
    words = f"By their logs {', '.join(kinds[:-1])} and {kinds[-1]}."
    if len(groups) == 1:
        return f"{len(runs)} runs, of which {best[''].name} is the best ({reached(best[''])}). {words}"
    told = [
        f"On {data}: {f'{run.name} is the best' if len(groups[data]) > 1 else f'only {run.name}'} ({reached(run)})."
        for data, run in best.items()
    ]
    return f"{len(runs)} runs on {len(groups)} data sets, which cannot be compared. {' '.join(told)} {words}"


def results(runs: Sequence[RunRecord]) -> dict[str, dict[int, list[float]]]:
    """Recalls (-1 if not measured) and RSUM by the number of the run, under what they were measured on."""

    def measured(one: Metrics) -> list[float]:
        return [*(way.recalls.get(k, -1.0) for way in (one.i2t, one.t2i) for k in DEFAULT_KS), one.rsum]

    found = {}
    for data, numbers in by_data(runs).items():
        on = f" of {data}" if data else ""
        test = {number: measured(one) for number in numbers if (one := runs[number].test) is not None}
        dev = {number: measured(one) for number in numbers if (one := runs[number].dev) is not None}
        found[f"On test{on}, measured once with the weights of the best epoch on dev"] = test
        found[f"On dev{on}, at its best epoch"] = dev
    return {words: rows for words, rows in found.items() if rows}


def compared(tables: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Named values of every run, all names, and the names whose values differ."""
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if len({table.get(name) for table in tables}) > 1]
    return {"tables": tables, "names": names, "differing": differing}
