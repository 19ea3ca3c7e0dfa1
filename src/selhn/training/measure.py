"""Runs measured on one split: each by itself, and several as an ensemble."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.eval import Metrics, ensemble, folds_of, in_folds, measure_split, require_width, score_split
from selhn.models import load_model
from selhn.runs import RunFolder
from selhn.training.run import open_data, read_config

ENSEMBLE = "ensemble"


def measure_runs(
    runs: Sequence[Path],
    data: str | None = None,
    split: str = "test",
    *,
    folds: int | None = None,
    scores: Path | None = None,
    device: str = "auto",
    quiet: bool = True,
) -> Iterator[tuple[str, Metrics]]:
    """The best model of every run under its name, and after several of them what their averaged scores reach.

    A run by itself is ranked by its `logits`. What is averaged are the scores, which for SGR and SAF are
    sigmoids, as their authors do. `scores` is a folder that keeps the `logits`; a measurement that was
    stopped resumes from it.
    """
    names = run_names(runs)
    require_same_data(runs)
    models = [load_model(run) for run in runs]
    items = open_data(runs[0], data)[split]
    folds = folds_of(items, folds)
    if folds > 1 and not quiet:
        print(in_folds(items, folds))
    for model in models:  # before the first of them is scored for hours
        require_width(model, items)
    averaged = []
    for name, model in zip(names, models):
        path = None if scores is None else scores if len(runs) == 1 else scores / name
        model = model.to(choose_device(device))
        try:
            numbers = score_split(model, items, for_ranking=True, path=path, quiet=quiet)
        except KeyboardInterrupt:
            kept = "" if path is None else f"; what was scored is kept in {path}: the same command continues"
            raise KeyboardInterrupt(f"stopped{kept}") from None
        yield name, measure_split(numbers, items, folds=folds)
        if len(runs) > 1:
            averaged.append(model.activation(numbers))
    if averaged:
        yield ENSEMBLE, measure_split(ensemble(*averaged), items, folds=folds)


def run_names(runs: Sequence[Path]) -> list[str]:
    """What tells the runs apart: their paths below the folder that holds them all."""
    folders = [run.resolve() for run in runs]
    twice = next((run for run, folder in zip(runs, folders) if folders.count(folder) > 1), None)
    if twice is not None:
        raise SelhnError(f"{twice} is named twice: name each run once")
    above = os.path.commonpath([folder.parent for folder in folders])
    return [folder.relative_to(above).as_posix() for folder in folders]


def require_same_data(runs: Sequence[Path]) -> None:
    """Refuse runs that were trained on different data, where they say what it was."""
    known = {}
    for run in runs:
        folder = RunFolder(run)
        if not folder.identity:
            continue
        settings = {} if folder.config is None else read_config(run).data_settings
        named = [f"{name}={value}" for name, value in sorted(settings.items())]
        known[run] = ", ".join([str(folder.identity.get("data")), *named])
    for run, trained_on in known.items():
        first = next(iter(known))
        if trained_on != known[first]:
            raise SelhnError(
                f"{run} was trained on other data ({trained_on}) than {first} ({known[first]}): "
                "measure each by itself, or average runs of the same data"
            )
