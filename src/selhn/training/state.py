"""What a run consists of, and what identifies it."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.names import require_settings
from selhn.base.ranks import Processes
from selhn.data import Data, with_noise
from selhn.diagnose import StallAlarm, make_alarm
from selhn.losses import loss_settings
from selhn.losses.base import as_ours, learnt_by
from selhn.models import AbstractMatcher
from selhn.training.average import WeightAverage
from selhn.training.config import TrainConfig
from selhn.training.optim import AdamW, make_optimizer
from selhn.training.protocols import Protocol, protocol_of
from selhn.training.protocols.shares import require_shareable_model
from selhn.training.protocols.two_pass import require_two_pass
from selhn.training.step import make_batches, on_device

FREE_TO_CHANGE = ("epochs", "device", "feature_bytes", "capture", "two_pass", "checkpoint_every")
"""Settings that may change when a run is resumed."""


@dataclass
class Position:
    """The position of a run: `step` steps are done, `step_in_epoch` of them in epoch `epoch`."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best_rsum: float = -1.0
    best_epoch: int = -1
    log_position: int = 0


@dataclass
class RunState:
    """A run between two steps, on its device. A checkpoint is its `state_dict`."""

    model: AbstractMatcher
    loss: Callable[..., Tensor]
    optimizer: AdamW
    average: WeightAverage | None
    protocol: Protocol
    alarm: StallAlarm | None
    identity: Mapping[str, str]
    """What a resumed run must have in common with this one."""
    position: Position = field(default_factory=Position)

    @property
    def judged(self) -> AbstractMatcher:
        """The model that is evaluated and kept: the average of the weights if there is one."""
        return self.model if self.average is None else self.average.current()

    @property
    def parts(self) -> dict[str, Any]:
        """Whatever has a `state_dict`: no average, and no loss that is a plain function."""
        names = ("model", "loss", "optimizer", "average", "protocol")
        return {name: part for name in names if hasattr(part := getattr(self, name), "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        generators = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.get_rng_state()
        return {
            **{name: part.state_dict() for name, part in self.parts.items()},
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "generators": generators,
            "position": asdict(self.position),
            "identity": dict(self.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; `identity` is the caller's to compare."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        if self.alarm is not None:
            require_settings("the stall alarm", StallAlarm, state["alarm"])
            vars(self.alarm).update(state["alarm"])
        torch.set_rng_state(state["generators"]["cpu"])
        if "cuda" in state["generators"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["generators"]["cuda"])
        self.position = Position(**state["position"])


def make_state(
    model: AbstractMatcher,
    data: Data,
    loss: Callable[..., Tensor],
    config: TrainConfig,
    device: torch.device,
    ranks: Processes | None,
) -> RunState:
    """Everything a run consists of, before its first step; nothing is written."""
    ours = as_ours(loss)
    if ours is not None and ours.reduction == "none":
        raise SelhnError("training needs one number per batch: give the loss reduction='mean' or 'sum'")
    kind, processes = protocol_of(type(loss), config.distil), 1 if ranks is None else ranks.number
    kind.require_shareable(loss, config, processes)
    require_shareable_model(model, config, processes)
    if config.two_pass:
        require_two_pass(model, loss)
    torch.manual_seed(config.seed)
    model = model.to(device)
    data = with_noise(data, config.noise, config.seed)
    data = on_device(data, config, device)
    batches = make_batches(model, data, config, device, ranks)
    loss = loss.to(device) if isinstance(loss, nn.Module) else loss
    if ranks is not None:
        ranks.copy_from_first([*model.state_dict().values(), *learnt_by(loss)])
    optimizer = make_optimizer(model, config, device, learnt_by(loss))
    average = WeightAverage(model, config.ema) if config.ema else None
    protocol = kind(model, loss, data, batches, config, average)
    alarm = make_alarm(loss, len(batches))
    return RunState(model, loss, optimizer, average, protocol, alarm, identity_of(model, loss, data, config))


def identity_of(
    model: AbstractMatcher, loss: Callable[..., Tensor], data: Data, config: TrainConfig
) -> dict[str, str]:
    """What must not change when a run is resumed; the number of epochs may grow."""
    of_loss, ours = getattr(loss, "__name__", type(loss).__name__), as_ours(loss)
    if ours is not None:  # with the values that learnt settings start from
        started = ", ".join(f"{key}={value!r}" for key, value in loss_settings(ours).items())
        of_loss = f"{of_loss}({started})"
    made_of = ", ".join(f"{key}={value}" for key, value in model.settings.items())
    weights = sum(parameter.numel() for parameter in model.parameters())
    texts = "\n".join([*data.train.captions[:100], *data.dev.captions[:100]])
    return {
        "model": f"{model.name or type(model).__name__} ({made_of}), {weights:,} weights",
        "loss": of_loss,
        "data": f"{data.name}, {data.train.num_images:,} images, {data.train.num_texts:,} texts, "
        f"which begin as {zlib.crc32(texts.encode(errors='surrogatepass')):08x}",
        **{key: repr(value) for key, value in asdict(config).items() if key not in FREE_TO_CHANGE},
    }
