"""The runs behind tables and figures: reused if they exist, trained if they do not."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file

from selhn.base.device import choose_device
from selhn.base.errors import NotFound, SelhnError
from selhn.base.files import refuse_links
from selhn.base.folders import new_folder
from selhn.base.names import did_you_mean, flat
from selhn.base.sealed import read_sealed_json, write_sealed_json
from selhn.data import Data, Split, load_data
from selhn.data.formats import DATASETS
from selhn.eval import Metrics, score_split
from selhn.models import MODELS, AbstractMatcher
from selhn.ops.bert import Bert
from selhn.reproduce.run_processes import outcomes
from selhn.reproduce.tables import Wanted
from selhn.runs import RunFolder, environment
from selhn.text import Vocabulary
from selhn.training import RunConfig, get_recipe, measure_runs, override
from selhn.training.config import key_values, settings_of
from selhn.training.run import make_model
from selhn.training.state import FREE_TO_CHANGE
from selhn.training.step import on_device

_Measured = TypeVar("_Measured")
OF_A_ROW = (
    "a row is named after what it trains: train other runs with `selhn train`, see them with `selhn report`"
)
FIXED = {"model": OF_A_ROW, "loss": OF_A_ROW, "start": OF_A_ROW, "data": "use --data", "seed": "use --seeds"}
"""Settings that cannot be the same for all runs, and what to do instead."""
TINY = ("epochs=6", "batch_size=32", "lr=1e-3", "decay_at=[]", "drop_regions=0", "corrupt_words=0",
        "device=cpu", "model.dim=64", "model.word_dim=32", "model.sim_dim=32")  # fmt: skip
TINY_WORLD = ("data.images=300", "data.width=128")
TINY_BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
             "max_position_embeddings": 64, "model_type": "bert"}  # fmt: skip
"""`--tiny`: every run takes seconds, to see that everything works; its numbers mean nothing. The second is
added if the data is the generated world, the third is a BERT of one layer."""


class PaperRuns:
    """One folder of runs on one data set: `OUT/runs/NAME/seed0`, ... and joint measurements.

    Args:
        out: the folder.
        data: a name in `DATASETS`, or the folder of a data set, which is trained on as Flickr30K is.
        settings: changes to every run, as `selhn train` takes them; `model.X` applies to models that have X.
        seeds: one run each.
        small: whether all runs are made small, see `TINY`.
    """

    def __init__(
        self, out: Path, data: str = "world", settings: Sequence[str] = (), seeds: Sequence[int] = (0,),
        small: bool = False,
    ):  # fmt: skip
        if len(set(seeds)) < len(seeds) or not seeds:
            named = ", ".join(map(str, seeds)) or "none"
            raise SelhnError(f"the seeds are {named}: name one or more, each once")
        for key in key_values(settings):
            if (instead := FIXED.get(key.removeprefix("train."))) is not None:
                raise SelhnError(f"{key}= cannot be set for all runs of a table or figure: {instead}")
        self.out, self.data_name, self.seeds, self.small = out, data, tuple(seeds), small
        refuse_links(out, ["measured", "tiny_bert"])
        refuse_links(out, ["runs"], deep=False)
        refuse_links(out / "runs", deep=False)
        for seeds_of_a_run in out.glob("runs/*"):  # `RunFolder` looks into each
            refuse_links(seeds_of_a_run, deep=False)
        added = (*TINY, *(TINY_WORLD if data == "world" else ())) if small else ()
        self.settings = (*added, *settings)
        self.failed: dict[Wanted, str] = {}
        """Runs that could not be made, and why."""

    @cached_property
    def data(self) -> Data:
        """The data; read before the first run, so that missing data is reported at once."""
        words = [word for word in self.settings if word.startswith("data.")]
        return load_data(self.data_name, **override(RunConfig(), words).data_settings)

    def config(self, wanted: Wanted, seed: int) -> RunConfig:
        """The configuration of a run: its recipe, what is special to this run, and the settings given for all runs."""
        known = self.data_name if self.data_name in DATASETS else "f30k"
        config = override(get_recipe(f"{wanted.recipe}_{known}"), wanted.settings)
        settings = fitting(self.settings, config.model)
        takes = settings_of("model", config.model)
        if "num_regions" in takes:
            settings.insert(0, f"model.num_regions={self.data.train.features.num_regions}")
        if self.small and "bert" in takes and "bert" not in config.model_settings:
            settings.insert(0, f"model.bert={self.out / 'tiny_bert'}")
        start = "" if wanted.start is None else str(self.folder(wanted.start, seed))
        return replace(
            override(config, [*settings, f"seed={seed + wanted.further_seed}"]),
            data=self.data_name,
            start=start,
        )

    def folder(self, wanted: Wanted, seed: int) -> Path:
        """The folder of a run, whether it exists or not."""
        return self.out / "runs" / wanted.name / f"seed{seed}"

    def train(self, wanted: Sequence[Wanted], jobs: int = 1) -> None:
        """Train what is missing and resume what was stopped; `jobs` runs at a time, each in its own process.

        Runs that others start from come first.
        """
        if starts := [one.start for one in wanted if one.start is not None]:
            self.train(starts, jobs)
        data = self.data  # read first, so that missing data is reported before anything else
        quiet, start = self.small or jobs > 1, time.monotonic()
        every = {
            (one, seed): (self.config(one, seed), self.folder(one, seed), quiet, "")
            for one in wanted
            for seed in self.seeds
        }
        tasks = {key: task for key, task in every.items() if not is_done(task[1], task[0])}
        if tasks and self.small:
            write_tiny_bert(self.out / "tiny_bert", data)
        if len(every) > len(tasks):
            print(f"{len(every) - len(tasks)} of {len(every)} runs are there", flush=True)
        if jobs > 1:  # tables list slow systems last, and one that starts last leaves other processes idle
            tasks = dict(reversed(tasks.items()))
        for number, ((one, seed), outcome) in enumerate(outcomes(tasks, jobs), 1):
            passed = f"{number}/{len(tasks)}, {time.monotonic() - start:.0f} s"
            print(f"[{passed}] {one.name} seed {seed}: {outcome.said}", flush=True)
            if outcome.failed:
                self.failed[one] = outcome.said

    def done(self, wanted: Wanted) -> list[RunFolder]:
        """A run with every seed; none if one of them has not finished."""
        runs = [RunFolder(self.folder(wanted, seed)) for seed in self.seeds]
        return runs if all(run.finished for run in runs) else []

    def logs(self, wanted: Wanted) -> list[list[dict[str, Any]]]:
        return [run.log() for run in self.done(wanted)]

    def metrics(self, members: Sequence[Wanted], folds: int = 1) -> list[Metrics]:
        """Test metrics of a run, or of the averaged scores of several, for each seed; none if a run is missing."""
        if not all(self.done(member) for member in members):
            return []

        def measured(seed: int) -> Metrics:
            folders = [self.folder(member, seed) for member in members]
            results = RunFolder(folders[0]).results
            if results is not None and len(folders) == folds == self.data.test.folds == 1:
                return Metrics.from_dict(results.test)

            def measure() -> dict[str, Any]:
                device = RunConfig.of_run(folders[0]).train.device
                *_, (_, metrics) = measure_runs(folders, folds=folds, device=device)
                return metrics.to_dict()

            return self._measured_once(folders, f"folds{folds}", measure, Metrics.from_dict)

        return [measured(seed) for seed in self.seeds]

    def pairs_a_second(self, members: Sequence[Wanted]) -> float:
        """Pairs of the test split scored per second, encoders included; all members in turn.

        Features and tokens are on the device already. The weights are new: they do not change the time.
        """
        folders = [self.folder(member, self.seeds[0]) for member in members]

        def measure() -> dict[str, Any]:
            seconds = 0.0
            for config in map(RunConfig.of_run, folders):
                device = choose_device(config.train.device)
                test = on_device(self.data, config.train, device).test
                model = make_model(config, self.data).to(device)
                seconds += min(_seconds_to_score(model, test) for _ in range(4))
            pairs = self.data.test.num_images * self.data.test.num_texts
            return {"pairs_a_second": pairs / seconds, **environment()}

        return self._measured_once(folders, "speed", measure, lambda kept: float(kept["pairs_a_second"]))

    def _measured_once(
        self,
        folders: Sequence[Path],
        what: str,
        measure: Callable[[], Mapping[str, Any]],
        parse: Callable[[dict[str, Any]], _Measured],
    ) -> _Measured:
        """Joint measurements of finished runs, kept until one of the runs is made again.

        Unreadable ones are measured again.
        """
        name = "+".join(folder.parent.name for folder in folders)
        kept = self.out / "measured" / f"{name}-{folders[0].name}-{what}.json"
        newest = max((folder / "results.json").stat().st_mtime_ns for folder in folders)
        if kept.exists() and kept.stat().st_mtime_ns > newest:
            with suppress(ValueError, KeyError, TypeError):
                return parse(read_sealed_json(kept, "remove it"))
        kept.parent.mkdir(exist_ok=True)
        write_sealed_json(kept, measure())
        return parse(read_sealed_json(kept, "check the disk"))

    def environment(self) -> Mapping[str, Any]:
        """The device and versions of the runs: those of the first run, or the current ones."""
        said = (RunFolder(path).environment for path in sorted(self.out.glob("runs/*/seed*")))
        return next(filter(None, said), None) or environment()


def fitting(settings: Sequence[str], model: str) -> list[str]:
    """The settings without those of `model.` that this model does not have; one that no model has is refused."""
    known = {key for entry in MODELS for key in settings_of("model", entry)}
    kept = []
    for setting in settings:
        owner, _, name = setting.partition("=")[0].rpartition(".")
        if owner == "model" and name not in known:
            raise NotFound(f"no model has a setting {name!r}: {did_you_mean(name, sorted(known))}")
        if owner != "model" or name in settings_of("model", model):
            kept.append(setting)
    return kept


def is_done(path: Path, config: RunConfig) -> bool:
    """Whether there is a finished run; a run with other settings is refused."""
    run = RunFolder(path)
    if run.config is None:
        return False
    there, here = _compared(RunConfig.of_run(path)), _compared(config)
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            raise SelhnError(
                f"{path} holds another run: {key} is {there.get(key)} there and {here.get(key)} here; "
                "choose another folder with --out, or remove it"
            )
    return run.finished


def _compared(config: RunConfig) -> dict[str, Any]:
    """The settings that two runs must share, as one types them."""
    typed = {
        key.removeprefix("train.").replace("_settings.", "."): value
        for key, value in flat(config.to_dict()).items()
    }
    # `start` is a path: it differs once the folder has been moved.
    return {
        key: value for key, value in typed.items() if key == "epochs" or key not in ("start", *FREE_TO_CHANGE)
    }


def write_tiny_bert(folder: Path, data: Data) -> Path:
    """A BERT of one layer with random weights that knows the words of the training texts; the same every time."""
    words = [word for word in Vocabulary.build(data.train.captions).words if not word.startswith("<")]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = {**TINY_BERT, "vocab_size": len(pieces)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = Bert(config).bert.state_dict()
    with new_folder(folder, replace=("vocab.txt", "config.json", "model.safetensors")) as partial:
        (partial / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
        (partial / "config.json").write_text(json.dumps(config))
        save_file(weights, partial / "model.safetensors")
    return folder


def _seconds_to_score(model: AbstractMatcher, split: Split) -> float:
    start = time.perf_counter()
    if score_split(model, split).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
