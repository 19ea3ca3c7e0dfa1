"""From a configuration to a run, and from runs to metrics: only here do names become objects."""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.files import refuse_links
from selhn.base.ranks import launched
from selhn.data import Data, Split, load_data
from selhn.data.concepts import graph_of
from selhn.eval import Metrics, ensemble, folds_of, in_folds, measure_split, require_width, score_split
from selhn.losses import LOSSES, create_loss
from selhn.models import MODELS, AbstractMatcher, create_model, load_model
from selhn.models.pixels import without_weights
from selhn.runs import OWN, RunFolder
from selhn.text import Tokenizer, Vocabulary
from selhn.training.config import RunConfig, override, settings_of
from selhn.training.loop import Run, train_in
from selhn.training.protocols import protocol_of


def run_config(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    label: str = "",
    track: Any = None,
) -> Run:
    """Create the data, the model and the loss, and train."""
    folder = RunFolder(out)
    folder.check(resume)
    loss = create_loss(config.loss, **config.loss_settings)
    protocol_of(type(loss), config.train.distil).require_shareable(loss, config.train, launched())
    data = load_data(config.data, **config.data_settings)
    if resume or not config.start:
        model = make_model(config, data, folder.tokenizer() if resume else None)
    else:
        start = load_model(config.start)
        model = make_model(config, data, start.tokenizer)
        kept = copy_weights(start, model, config.start)
        if not quiet:
            print(f"{label}started from {config.start}{f'; new: {kept}' if kept else ''}", flush=True)
    return train_in(folder, model, data, loss, config, resume=resume, quiet=quiet, label=label, track=track)


def resume_run(out: str | Path, settings: Sequence[str] = (), quiet: bool = False, track: Any = None) -> Run:
    """Continue a run from its latest checkpoint; `settings` may change those in `FREE_TO_CHANGE`."""
    config = override(RunConfig.of_run(Path(out)), settings)
    if config.own:
        raise SelhnError(
            f"{out} was trained from Python with its own {' and '.join(config.own)}, which has no name: "
            f'continue it there, with train(..., out="{out}", resume=True)'
        )
    if "vision" in config.model_settings:
        own = {**config.model_settings, "vision": without_weights(config.model_settings["vision"])}
        config = replace(config, model_settings=own)
    return run_config(config, out, resume=True, quiet=quiet, track=track)


def make_model(config: RunConfig, data: Data, tokenizer: Tokenizer | None = None) -> AbstractMatcher:
    """The model of a configuration, with weights drawn from the seed.

    Its vocabulary is built from the texts of train and dev unless `tokenizer` is given, as for a resumed run. So is
    its concept graph, if the model has one and none is named.
    """
    torch.manual_seed(config.train.seed)
    if not isinstance(config.model_settings.get("tokenizer"), Tokenizer | None):
        raise SelhnError(
            "model.tokenizer cannot be set: the vocabulary is built from the texts of train and dev"
        )
    settings = {"feature_dim": data.feature_dim, **config.model_settings}
    takes = settings_of("model", config.model)
    if "vision" in takes:
        settings.setdefault("num_regions", data.train.features.num_regions)
    if config.loss in LOSSES:
        settings.setdefault("networks", protocol_of(LOSSES[config.loss].loss).networks)
    if config.model in MODELS and (
        not MODELS[config.model].brings_tokenizer or isinstance(settings.get("bert"), Mapping)
    ):
        if tokenizer is None:
            tokenizer = Vocabulary.build([*data.train.captions, *data.dev.captions])
        settings.setdefault("tokenizer", tokenizer)
        if "concept_graph" in takes:
            settings["concept_graph"] = settings.get("concept_graph") or graph_of(data)
    return create_model(config.model, **settings)


def copy_weights(start: AbstractMatcher, model: AbstractMatcher, named: str) -> str:
    """Copy the weights that both models have, by name and shape; returns the parts of which none was copied."""
    given = start.state_dict()
    shared = {
        name: given[name]
        for name, weight in model.state_dict().items()
        if name in given and given[name].shape == weight.shape
    }
    parts = {name: ".".join(name.split(".")[:3]) for name, _ in model.named_parameters()}
    copied = {parts[name] for name in shared if name in parts}
    if not copied:
        raise SelhnError(
            f"start={named}: its model ({start.name}) and the new one ({model.name}) have no weights in common: "
            "start from the same kind of model with the same sizes"
        )
    model.load_state_dict(shared, strict=False)
    return ", ".join(dict.fromkeys(part for part in parts.values() if part not in copied))


def run_seeds(config: RunConfig, seeds: Sequence[int], out: Path, track: Any = None) -> str:
    """One run for each seed, each in its own folder below `out`; prints a table of results."""
    if len(set(seeds)) < len(seeds):
        raise SelhnError(f"a seed is named twice in {', '.join(map(str, seeds))}: name each once")
    runs = {}
    for seed in seeds:
        seeded = replace(config, train=replace(config.train, seed=seed))
        folder = out / f"seed{seed}"
        started, label = RunFolder(folder).started, f"[seed {seed}] "
        runs[seed] = run_config(seeded, folder, resume=started, label=label, track=track)
    rows = [f"seed {seed:4}  test  {run.test}" for seed, run in runs.items()]
    return "\n".join([*rows, f"RSUM {mean_and_deviation([run.test.rsum for run in runs.values()])}"])


def open_run(run: Path, data: str | None = None) -> tuple[AbstractMatcher, Data]:
    """The best model of a run, or a saved model, and the data it was trained on, or other data by name."""
    return load_model(run), open_data(run, data)


def open_data(run: Path, data: str | None = None, advice: str = "name some with --data") -> Data:
    """The data a run was trained on unless other data is named; `advice` is for a run that does not say."""
    if data is not None:
        return load_data(data)
    config = None if RunFolder(run).config is None else RunConfig.of_run(run)
    if config is None or config.data.startswith(OWN):
        raise SelhnError(f"{run} does not say what data it was trained on: {advice}")
    return load_data(config.data, **config.data_settings)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, as in a table: 312.4 ± 1.9."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {deviation:.1f}"


def measure_runs(
    runs: Sequence[Path],
    data: str | None = None,
    split: str = "test",
    *,
    folds: int | None = None,
    **how: Any,
) -> Iterator[tuple[str, Metrics]]:
    """Metrics of the best model of every run by name; for several runs, also those of their averaged scores.

    `how` is the rest of `score_runs`.
    """
    for name, items, numbers in score_runs(runs, data, split, folds=folds, **how):
        yield name, measure_split(numbers, items, folds=folds)


def score_runs(
    runs: Sequence[Path],
    data: str | None = None,
    split: str = "test",
    *,
    folds: int | None = None,
    scores: Path | None = None,
    device: str = "auto",
    quiet: bool = True,
) -> Iterator[tuple[str, Split, Float[Tensor, "I T"]]]:
    """The scores of the best model of every run by name; for several runs, also their average.

    A single run is ranked by its `logits`. Several are averaged by their scores, which for SGR and SAF are
    sigmoids, as their authors do. `scores` is a folder that keeps the `logits`; a measurement that was
    stopped resumes from it.
    """
    names = run_names(runs)
    if scores is not None and len(runs) > 1:  # each has a folder below
        refuse_links(scores, {Path(name).parts[0] for name in names})
    require_same_data(runs)
    models = [load_model(run) for run in runs]
    items = open_data(runs[0], data)[split]
    folds = folds_of(items, folds)
    if folds > 1 and not quiet:
        print(in_folds(items, folds))
    for model in models:  # checked before hours of scoring
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
        yield name, items, numbers
        if len(runs) > 1:
            averaged.append(model.activation(numbers))
    if averaged:
        yield "ensemble", items, ensemble(*averaged)


def run_names(runs: Sequence[Path]) -> list[str]:
    """Distinct names for the runs: their paths below their common folder."""
    folders = [run.resolve() for run in runs]
    twice = next((run for run, folder in zip(runs, folders) if folders.count(folder) > 1), None)
    if twice is not None:
        raise SelhnError(f"{twice} is named twice: name each run once")
    above = os.path.commonpath([folder.parent for folder in folders])
    return [folder.relative_to(above).as_posix() for folder in folders]


def trained_on(run: Path) -> str | None:
    """A description of a run's data that is unique to the data; None if the folder does not say."""
    folder = RunFolder(run)
    config = None if folder.config is None else RunConfig.of_run(run)
    named = folder.identity.get("data", None if config is None else config.data)
    settings = {} if config is None else config.data_settings
    return (
        None
        if named is None
        else ", ".join([str(named), *(f"{key}={settings[key]}" for key in sorted(settings))])
    )


def require_same_data(runs: Sequence[Path]) -> None:
    """Refuse runs that were trained on different data, as far as known."""
    known = {run: data for run in runs if RunFolder(run).identity and (data := trained_on(run))}
    for run, data in known.items():
        first = next(iter(known))
        if data != known[first]:
            raise SelhnError(
                f"{run} was trained on other data ({data}) than {first} ({known[first]}): "
                "measure each by itself, or average runs of the same data"
            )
