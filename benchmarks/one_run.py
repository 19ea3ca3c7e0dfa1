"""One run of a comparison, in a process that keeps data, tokenised texts and compiled kernels for the next one."""

import csv
import gc
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.names import require_settings
from selhn.data import Data, Features, Split, load_data
from selhn.diagnose import how_it_ended
from selhn.eval import Metrics, score_split
from selhn.losses import create_loss
from selhn.models import MODELS, AbstractMatcher
from selhn.training import RunConfig, get_recipe, override
from selhn.training.capture import Stepper
from selhn.training.config import TrainConfig
from selhn.training.log import Meter
from selhn.training.loop import train
from selhn.training.run import make_model
from selhn.training.step import on_device, uses_bfloat16

LOG_COLUMNS = ("step", "epoch", "loss_per_anchor", "delta_s", "dev_rsum")


@dataclass(frozen=True)
class Job:
    """One run: a name for its row, a recipe with settings, a seed, and what is kept beside the row."""

    name: str
    dataset: str
    data: str
    recipe: str
    settings: tuple[str, ...]
    seed: int
    log: Path | None = None
    log_epochs: int = 5
    scores: Path | None = None
    test: bool = True
    """Whether test is read, once, at the end."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """How the rows of runs differ."""
        return self.name, self.dataset, str(self.seed), " ".join(self.settings)

    @property
    def centred(self) -> bool:
        """Whether the mean of the training features is taken off: a setting of the comparison, not of a run."""
        return "centred=true" in self.settings

    def config(self) -> RunConfig:
        """The configuration; an error says what in it this version does not know."""
        own = [setting for setting in self.settings if not setting.startswith("centred=")]
        config = override(
            get_recipe(f"{self.recipe}_{self.dataset}"), [f"data={self.data}", f"seed={self.seed}", *own]
        )
        create_loss(config.loss, **config.loss_settings)
        require_settings(config.model, MODELS[config.model].build, config.model_settings)
        return config


@dataclass(frozen=True, eq=False)
class CentredFeatures(Features):
    """Features less a vector."""

    features: Features
    mean: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(I, M, F)."""
        return self.features.shape

    @property
    def num_bytes(self) -> int:
        """Size of the features below."""
        return self.features.num_bytes

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Features and mask of some images."""
        regions, mask = self.features.gather(rows)
        return regions - self.mean.to(regions.device), mask

    def to(self, device: torch.device | str) -> "CentredFeatures":
        """The same on a device."""
        return CentredFeatures(self.features.to(device), self.mean.to(device))


def centred(data: Data, device: torch.device) -> Data:
    """The data with the mean region of the training split, found on a device, taken off everywhere."""
    total, count = torch.zeros(data.feature_dim, dtype=torch.float64), 0
    features = data.train.features.to(device)
    for rows in torch.arange(data.train.num_images).split(256):
        regions, mask = features.gather(rows)
        total += regions[mask].sum(dim=0, dtype=torch.float64).cpu()
        count += int(mask.sum())
    mean = (total / max(count, 1)).float()

    def without_mean(split: Split) -> Split:
        return replace(split, features=CentredFeatures(split.features, mean))

    return replace(
        data, train=without_mean(data.train), dev=without_mean(data.dev), test=without_mean(data.test)
    )


@dataclass
class WarmRunner:
    """Runs jobs one after the other; what one has read or tokenised serves the next."""

    data: dict[object, Data] = field(default_factory=dict)
    tokenizers: dict[object, Any] = field(default_factory=dict)

    def run(self, job: Job) -> dict[str, object]:
        """Train, choose the epoch on dev, read test once if the job says so; the row of the run."""
        start = time.perf_counter()
        config = job.config()
        device = choose_device(config.train.device)
        half = uses_bfloat16(config.train, device.type)
        source = (config.data, repr(config.data_settings), job.centred)
        if (*source, half, config.train.feature_precision) not in self.data:
            read = load_data(config.data, **config.data_settings)
            read = on_device(centred(read, device) if job.centred else read, config.train, device)
            self.data[(*source, half, config.train.feature_precision)] = read
        data = self.data[(*source, half, config.train.feature_precision)]
        reads_with = (source, config.model_settings.get("bert", config.model)) if _brings(config) else source
        if reads_with in self.tokenizers:
            own = {**config.model_settings, "tokenizer": self.tokenizers[reads_with]}
            config = replace(config, model_settings=own)
        model = make_model(config, data)
        self.tokenizers[reads_with] = model.tokenizer
        try:
            return self._train(job, config, model, data, start)
        finally:
            del model
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()

    def _train(
        self, job: Job, config: RunConfig, model: AbstractMatcher, data: Data, start: float
    ) -> dict[str, object]:
        device = choose_device(config.train.device)
        settings = config.train
        if device.type == "cuda" and _lies_on(data.train.features, device):
            # They are there already, in the requested precision: no second copy for this run.
            settings = replace(settings, feature_precision="auto", feature_bytes=1)
        with watched() as seen:
            read = data if job.test else replace(data, test=data.dev)
            run = train(
                model, read, create_loss(config.loss, **config.loss_settings), config=settings, quiet=True
            )
        if job.log is not None:
            write_log(job.log, seen.rows, job.log_epochs)
        if job.scores is not None:
            numbers = model.activation(score_split(model, data.test, for_ranking=True))
            keep_scores(job.scores, numbers, data.test)
        place = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        return {
            "steps": "recorded" if seen.recorded else "as written",
            "learning_rate": learning_rate(settings),
            "name": job.name,
            "dataset": job.dataset,
            "seed": job.seed,
            **(recalls(run.test) if job.test else {}),
            "dev": [round(row["dev"]["rsum"], 2) for row in seen.rows if "dev" in row],
            "dev_rsum": f"{run.dev.rsum:.2f}",
            "best_epoch": run.best_epoch + 1,
            "stalled": how_it_ended(run.stalled, run.dev),
            "seconds": f"{time.perf_counter() - start:.1f}",
            "device": place,
            "settings": " ".join(job.settings),
        }


def recalls(metrics: Metrics) -> dict[str, str]:
    """The seven numbers of a row."""
    each = {f"{way}_r{k}": f"{getattr(metrics, way)[k]:.2f}" for way in ("i2t", "t2i") for k in (1, 5, 10)}
    return {**each, "rsum": f"{metrics.rsum:.2f}"}


def learning_rate(settings: TrainConfig) -> str:
    """How the rate goes, in words."""
    rising = f", rising for {settings.lr_warmup:g} epochs" if settings.lr_warmup else ""
    if settings.schedule != "step" or not settings.decay_at:
        return f"{'cosine' if settings.schedule == 'cosine' else 'constant'}{rising}"
    return f"x{settings.decay_by:g} at epoch {' and '.join(map(str, settings.decay_at))}{rising}"


@dataclass
class Seen:
    """What a run says about itself while it trains."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """The lines of its log."""
    recorded: bool = False
    """Whether its steps are recorded and replayed."""


@contextmanager
def watched() -> Iterator[Seen]:
    """What a run in here says: a run folder would keep it too, with checkpoints that cost more than the epochs."""
    seen, write, begin = Seen(), Meter.write, Stepper.__init__

    def keep(self: Meter, row: Mapping[str, Any]) -> None:
        write(self, row)
        seen.rows.append(row)

    def notice(self: Stepper, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        seen.recorded = self.record

    with patch.object(Meter, "write", keep), patch.object(Stepper, "__init__", notice):
        yield seen


def write_log(path: Path, rows: Iterable[Mapping[str, Any]], epochs: int) -> None:
    """The steps of the first epochs as CSV, and RSUM on dev after each of all epochs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            if "dev" in row:
                writer.writerow(
                    {"step": row["step"], "epoch": row["epoch"], "dev_rsum": f"{row['dev']['rsum']:.2f}"}
                )
            elif row["epoch"] < epochs:
                writer.writerow({name: f"{row[name]:.6g}" for name in LOG_COLUMNS[:4]})


def keep_scores(path: Path, scores: Tensor, split: Split) -> None:
    """The scores of a split and its ground truth, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".partial")
    torch.save({"scores": scores.float().cpu(), "image_of_text": split.image_of_text.cpu()}, unfinished)
    unfinished.replace(path)


def _brings(config: RunConfig) -> bool:
    return MODELS[config.model].brings_tokenizer


def _lies_on(features: Features, device: torch.device) -> bool:
    return features.gather(torch.zeros(1, dtype=torch.int64))[0].device.type == device.type
