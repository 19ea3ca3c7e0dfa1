"""The settings of a run: frozen dataclasses, and `key=value` to change them."""

import dataclasses
import inspect
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import yaml

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import did_you_mean, plain, require_kind
from selhn.data import Data
from selhn.losses import LOSSES, loss_settings
from selhn.losses.base import as_ours
from selhn.models import MODELS, AbstractMatcher
from selhn.runs import OWN, RunFolder

NAMED = ("model", "loss", "data")
TEXTS = (*NAMED, "start")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of training that do not depend on the model, the loss or the data."""

    epochs: int = 20
    """Passes over the training split."""
    batch_size: int = 128
    """Pairs per step, over all processes together."""
    lr: float = 5e-4
    """Learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW: each step shrinks a weight by this share times the learning rate."""
    schedule: Literal["step", "constant", "cosine"] = "step"
    """Learning rate: times `decay_by` at the epochs `decay_at`; constant; or half a cosine down to 0."""
    decay_at: tuple[int, ...] = ()
    """Epochs (from 0) at whose start `schedule=step` multiplies the learning rate by `decay_by`."""
    decay_by: float = 0.1
    """What the learning rate is multiplied by at each epoch of `decay_at`."""
    lr_warmup: float = 0.0
    """Epochs of linear warm-up of the learning rate; 0.5 is half an epoch."""
    ema: float = 0.0
    """Decay of the moving average of the weights, such as 0.999; 0 for none. The averaged model is then
    evaluated on dev, kept as the best and measured on test."""
    distil: float = 0.0
    """Weight of self-distillation: how much the averaged model teaches the trained one; needs `ema`."""
    distil_temperature: float = 0.05
    """What scores are divided by in self-distillation."""
    text_lr_factor: float = 0.1
    """A pre-trained text encoder learns at this share of the learning rate."""
    clip: float = 2.0
    """Largest norm of the gradient; 0 turns clipping off."""
    drop_regions: float = 0.2
    """Share of an image's regions that is left out at random, in training only."""
    corrupt_words: float = 0.2
    """Share of a text's words that is masked, replaced or deleted at random, in training only."""
    mask_same_image: bool = True
    """Whether captions of one image in a batch are excluded as negatives of each other."""
    noise: float = 0.0
    """Share of the training texts that get a wrong image, as in the experiments of NCR."""
    seed: int = 0
    """Seed of the weights, the order of the pairs and the augmentation."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or the like; auto takes a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the encoders; auto is bfloat16 on a GPU that supports it."""
    feature_precision: Literal["auto", "float32", "float16", "bfloat16", "int8"] = "auto"
    """Storage precision of features on a GPU; auto is the precision of the encoders."""
    feature_bytes: int = 0
    """GPU memory for features; 0 means half of what is free. What does not fit stays on the host."""
    capture: Literal["auto", "always", "never"] = "auto"
    """Whether steps are recorded as a CUDA graph; auto records on a GPU, with losses of selhn."""
    chunk: int = 0
    """Pairs that a process encodes at a time, for large batches on small devices; 0 means all. The embeddings of
    the whole batch are compared, and each chunk is encoded again for its gradients: the same step in less
    memory and more time, for embedding models. Steps are not recorded then, and batch norms see a chunk at a time."""
    two_pass: bool = False
    """Score all pairs without gradients first, then only those that need a gradient again: the same step
    in less time, for cross-attention and losses of hardest negatives."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0 saves only at its end."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            object.__setattr__(self, one.name, plain(getattr(self, one.name)))


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration of a run: model, loss and data by name, the settings of each, and training."""

    model: str = "rvse"
    loss: str = "selhn"
    data: str = "world"
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    loss_settings: Mapping[str, Any] = field(default_factory=dict)
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    start: str = ""
    """A run or a saved model to start from: weights that both models have are copied; empty for none."""

    @property
    def own(self) -> list[str]:
        """The parts that only Python code can create, because they are not registered."""
        named = {kind: getattr(self, kind) for kind in NAMED}
        return [f"{kind} ({name.removeprefix(OWN)})" for kind, name in named.items() if name.startswith(OWN)]

    def to_dict(self) -> dict[str, Any]:
        # Through JSON: tuples become lists, paths strings, numbers of NumPy those of Python.
        return json.loads(json.dumps(dataclasses.asdict(self), default=_as_json))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; unknown keys are errors."""
        values = dict(values)
        _refuse_unknown(values, [f.name for f in dataclasses.fields(cls)])
        for name in TEXTS:
            if not isinstance(values.get(name, ""), str):
                raise SelhnError(f"{name} must be a name or a path, got {values[name]!r}")
        for name in ("model_settings", "loss_settings", "data_settings", "train"):
            values[name] = values.get(name) or {}
            if not isinstance(values[name], dict):
                raise SelhnError(f"{name} must have `name: value` lines, got {values[name]!r}")
        training = values.pop("train")
        _refuse_unknown(training, [f.name for f in dataclasses.fields(TrainConfig)])
        return cls(**values, train=with_values(TrainConfig(), training))

    @classmethod
    def of_run(cls, run: Path) -> "RunConfig":
        """The configuration a run was started with."""
        folder = RunFolder(run)
        values = folder.config
        if values is None:
            what = f"{run} holds no run with settings (no config.yaml)"
            raise NotFound(
                f"{what if run.exists() else f'there is no run {run}'}: name the folder that `selhn train` wrote"
            )
        try:
            return cls.from_dict(values)
        except SelhnError as error:
            raise Damaged(
                f"{folder.file('config.yaml')} cannot be read ({error}): restore it, or start the run again"
            ) from None


def _as_json(value: Any) -> Any:
    return os.fspath(value) if plain(value) is value else plain(value)


def describe_objects(
    model: AbstractMatcher, loss: Callable[..., Any], data: Data, train: TrainConfig
) -> RunConfig:
    """The configuration of a run from Python: registered objects by name, `own:` before all others."""
    of_model = model.name or OWN + type(model).__name__
    of_loss = next((name for name, entry in LOSSES.items() if type(loss) is entry.loss), None)
    ours = as_ours(loss)
    return RunConfig(
        of_model,
        of_loss or OWN + getattr(loss, "__name__", type(loss).__name__),
        data.source or OWN + data.name,
        {"networks": 1, **model.settings} if model.name else {},
        loss_settings(ours) if ours is not None and of_loss else {},
        data.settings,
        train,
    )


def override(config: RunConfig, settings: Sequence[str]) -> RunConfig:
    """The configuration with `key=value` settings applied.

    `epochs=3` or any field of `TrainConfig`; `model=`, `loss=`, `data=` by name; `start=` a run; `model.dim=512`,
    `loss.epsilon=0.02`, `data.images=2000` for the settings of each. A changed model or loss keeps those
    settings of the configuration that it has too.
    """
    values = key_values(settings)
    for key, value in sorted(
        values.items(), key=lambda item: item[0] not in NAMED
    ):  # names before their settings
        owner, dot, name = key.partition(".")
        changed: dict[str, Any] = {key: value}
        if dot and owner in NAMED and name:
            slot = f"{owner}_settings"
            changed = {slot: {**getattr(config, slot), name: value}}
        elif key not in TEXTS:
            _refuse_bare(config, key)
            changed = {"train": with_values(config.train, {key.removeprefix("train."): value})}
        elif takes := settings_of(key, value):
            slot = f"{key}_settings"
            changed[slot] = {name: of for name, of in getattr(config, slot).items() if name in takes}
        config = dataclasses.replace(config, **changed)
    return config


def _refuse_bare(config: RunConfig, key: str) -> None:
    """Refuse a setting of the loss or the model that is given without its prefix."""
    if key in get_type_hints(TrainConfig):
        return
    for owner in ("loss", "model"):
        if key in settings_of(owner, getattr(config, owner)):
            raise NotFound(f"unknown setting {key!r}: did you mean '{owner}.{key}'?")


def settings_of(kind: str, name: str) -> Collection[str]:
    """The settings of a registered model or loss by name; none if it is not registered."""
    if kind == "model" and name in MODELS:
        return inspect.signature(MODELS[name].build).parameters
    return inspect.signature(LOSSES[name].loss).parameters if kind == "loss" and name in LOSSES else ()


def key_values(settings: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` words; numbers, lists, true and false become Python values."""
    values = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise SelhnError(f"{setting!r} is not a setting: write key=value, for example epochs=3")
        if key in TEXTS:  # names and paths, which may look like numbers or hold a #
            values[key] = text
            continue
        try:
            values[key] = _number(yaml.safe_load(text) if text else "")
        except yaml.YAMLError:
            raise SelhnError(f"the value of {setting!r} cannot be read: close brackets and quotes") from None
    return values


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A `TrainConfig` with some fields replaced, their types checked."""
    kinds = get_type_hints(TrainConfig)
    _refuse_unknown(values, [*kinds, *TEXTS, "model.…", "loss.…", "data.…"])
    return dataclasses.replace(
        config, **{name: _fit(name, value, kinds[name]) for name, value in values.items()}
    )


def _fit(name: str, value: Any, kind: Any) -> Any:
    """The value converted to the field's type, if that loses nothing."""
    value = 0.0 if name == "ema" and value is None else plain(_number(value))
    if get_origin(kind) is tuple:
        value = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list) else value
    require_kind(name, value, kind)
    if isinstance(value, int) and value >= 2**63:
        raise SelhnError(f"{name} must be below 2^63, got {value}")
    minimum = {"epochs": 1, "batch_size": 2}.get(name, 0)
    if kind in (int, float) and not minimum <= value < math.inf:
        raise SelhnError(
            f"{name} must be {'finite' if value == math.inf else f'at least {minimum}'}, got {value!r}"
        )
    return float(value) if kind is float else value


def _number(value: Any) -> Any:
    """YAML reads 5e-4 as text; people mean a number."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
        return int(number) if number.is_integer() and "." not in value else number
    except (ValueError, OverflowError):
        return value


def _refuse_unknown(values: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in values:
        if name not in known:
            raise NotFound(f"unknown setting {name!r}: {did_you_mean(name, known)}")
