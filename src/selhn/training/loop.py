"""The one training loop."""

import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.progress import Progress
from selhn.data import Batches, Data, with_noise
from selhn.diagnose import StallAlarm, probe_split
from selhn.diagnose.stall import PATIENCE
from selhn.eval import Metrics, evaluate
from selhn.losses import AbstractLoss, TripletSelHN
from selhn.models import AbstractMatcher
from selhn.training.capture import Stepper, recording_stream
from selhn.training.checkpoint import Position, load_checkpoint, save_checkpoint
from selhn.training.config import TrainConfig, with_values
from selhn.training.folder import RunFolder, interruptible
from selhn.training.log import Meter
from selhn.training.optim import make_optimizer, set_learning_rate
from selhn.training.protocols import Protocol, make_protocol
from selhn.training.resident import on_device
from selhn.training.step import make_batches, make_stepper, uses_bfloat16

FREE_TO_CHANGE = ("epochs", "device", "feature_bytes", "capture", "two_pass", "checkpoint_every")
"""Settings that a resumed run may have otherwise than when it began."""


@dataclass(frozen=True)
class Run:
    """A finished run. The model has the weights of its best epoch."""

    out: Path | None
    dev: Metrics
    """Of the epoch with the highest RSUM on dev."""
    test: Metrics
    """Of that epoch, read once, at the end."""
    best_epoch: int
    stalled: str | None
    """What the stall alarm said, if it went off and training has not left the plateau since."""


def train(
    model: AbstractMatcher,
    data: Data,
    loss: Callable[..., Tensor],
    *,
    out: str | Path | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
    quiet: bool = False,
    label: str = "",
    config_text: str | None = None,
    **settings: Any,
) -> Run:
    """Train a model on `data.train`, keep the epoch with the best RSUM on `data.dev`, measure it once on `data.test`.

    `settings` are fields of `TrainConfig`, such as `epochs=20, lr=5e-4`. `loss` is any function of the scores; one of
    ours is also told which pairs show the same image. With `out` the run writes its log, checkpoints and results
    there, and `resume=True` takes it up again to the same end, bit for bit on the CPU. `config_text` is what to write
    as its `config.yaml`, where the run comes from a configuration.
    """
    config = with_values(config or TrainConfig(), settings)
    if isinstance(loss, AbstractLoss) and loss.reduction == "none":
        raise SelhnError("training needs one number for a batch: give the loss reduction='mean' or 'sum', not 'none'")
    device = choose_device(config.device)
    torch.manual_seed(config.seed)
    model = model.to(device)
    data = with_noise(data, config.noise, config.seed)
    data = on_device(data, config, device, half=uses_bfloat16(config, device.type))
    batches = make_batches(model, data, config, device)
    of_loss = loss.to(device).learnt() if isinstance(loss, AbstractLoss) else []
    optimizer = make_optimizer(model, config, device, of_loss)
    protocol = make_protocol(model, loss, data, batches, config)
    stepper = make_stepper(model, batches, loss, optimizer, config, protocol)
    folder = RunFolder(out, resume, _identity(model, loss, data, config), config_text)
    with folder.held():
        position, alarm = Position(), make_alarm(loss, len(batches))
        if resume:
            position, alarm_state = load_checkpoint(folder.checkpoints, model, optimizer, folder.identity, protocol)
            alarm = StallAlarm(**alarm_state) if alarm_state else None
            if position.epoch > config.epochs:
                raise SelhnError(
                    f"{folder.path} has trained for {position.epoch} epochs already: "
                    f"epochs={config.epochs} would take some back"
                )
        folder.describe(finished=position.epoch == config.epochs)
        meter = Meter(folder.log, position.log_position, alarm)
        progress = Progress(config.epochs * len(batches), position.step, quiet, label)
        under_way = _Training(
            model,
            data,
            loss,
            config,
            batches,
            optimizer,
            protocol,
            stepper,
            folder,
            alarm,
            meter,
            progress,
            position,
            label,
        )
        with meter, interruptible() as interrupted, recording_stream(device):
            for epoch in range(position.epoch, config.epochs):
                under_way.train_epoch(epoch, interrupted)
                under_way.end_epoch(epoch)
        return under_way.finish()


@dataclass
class _Training:
    """A run under way: all that it is made of, and how far it has got."""

    model: AbstractMatcher
    data: Data
    loss: Callable[..., Tensor]
    config: TrainConfig
    batches: Batches
    optimizer: torch.optim.Optimizer
    protocol: Protocol
    stepper: Stepper
    folder: RunFolder
    alarm: StallAlarm | None
    meter: Meter
    progress: Progress
    position: Position
    label: str

    def train_epoch(self, epoch: int, interrupted: Callable[[], bool]) -> None:
        """All steps of an epoch, or those that are left of it."""
        self._begin_epoch(epoch)
        phase = self.loss.phase if isinstance(self.loss, AbstractLoss) else None
        for step in self.batches.steps(epoch, start=self.position.step_in_epoch):
            numbers = self.stepper(step, phase)
            self.position = self.position.after_step()
            last = self.position.step_in_epoch == len(self.batches)
            self.meter.add(self.position.step, epoch, numbers, read=last)
            self._pass_on()
            self.progress.step(self.meter.summary)
            if interrupted():
                self.checkpoint()
                self.progress.say(self.folder.how_to_go_on(self.position.step))
                raise KeyboardInterrupt(self.folder.how_to_go_on(self.position.step))
            if self.config.checkpoint_every and self.position.step % self.config.checkpoint_every == 0:
                self.checkpoint()

    def _pass_on(self) -> None:
        for said in self.meter.heard():
            self.progress.say(self.label + said)

    def _begin_epoch(self, epoch: int) -> None:
        set_learning_rate(self.optimizer, epoch, self.config)
        if isinstance(self.loss, AbstractLoss):
            self.loss.set_epoch(epoch)
            if self.alarm is not None:  # a scheduled loss has another plateau in another phase
                self.alarm.plateau = self.loss.plateau(self.config.batch_size)
                self.alarm.patience = patience(self.loss, len(self.batches))
        if self.position.step_in_epoch == 0:
            self.protocol.begin_epoch(epoch)
        self.model.train()

    def end_epoch(self, epoch: int) -> None:
        """How good it is on dev, what the log says of it, and the weights, where they are the best yet."""
        dev, probed = evaluate(self.model, self.data.dev), probe_split(self.model, self.data.dev)
        self.meter.write({"step": self.position.step, "epoch": epoch, "dev": dev.to_dict(), "probe": probed})
        self.progress.say(f"{self.label}epoch {epoch + 1:2}/{self.config.epochs}  {self.meter.summary}  dev {dev}")
        if dev.rsum > self.position.best_rsum:
            self.position = replace(self.position, best_rsum=dev.rsum, best_epoch=epoch)
            self.folder.keep_best(self.model)
        self.position = self.position.after_epoch()
        self.checkpoint()

    def checkpoint(self) -> None:
        """All that the run needs to go on from here, where it has a folder."""
        if self.folder.checkpoints is not None:
            position = replace(self.position, log_position=self.meter.flush())
            self._pass_on()
            heard = None if self.alarm is None else asdict(self.alarm)
            identity = self.folder.identity
            save_checkpoint(
                self.folder.checkpoints, self.model, self.optimizer, position, identity, heard, self.protocol
            )

    def finish(self) -> Run:
        """The best epoch, measured on test, once."""
        self.folder.restore_best(self.model)
        dev, test = evaluate(self.model, self.data.dev), evaluate(self.model, self.data.test)
        stalled = None if self.alarm is None else self.alarm.said
        run = Run(self.folder.path, dev, test, self.position.best_epoch, stalled)
        self.folder.write_results(run)
        return run


def make_alarm(loss: Callable[..., Tensor], steps_per_epoch: int) -> StallAlarm | None:
    """The stall alarm for a loss of ours; its plateau is set at the start of every epoch."""
    if not isinstance(loss, AbstractLoss):
        return None
    if isinstance(loss, TripletSelHN):
        remedy = (
            "a larger epsilon (loss.epsilon=0.03), a smaller batch or learning rate, "
            "or a loss that has no switch (loss=tal loss.temperature=0.05)"
        )
        # With a smaller epsilon than that of the alarm it mines where scores are still, and stalls like T-HN.
        epsilon = max(loss.epsilon, StallAlarm.epsilon)
        return StallAlarm(None, epsilon, patience(loss, steps_per_epoch), remedy)
    return StallAlarm(None, patience=patience(loss, steps_per_epoch))


def patience(loss: AbstractLoss, steps_per_epoch: int) -> int:
    """How long a loss may stand still: one that averages over negatives leaves its plateau, but may take epochs."""
    return PATIENCE if loss.mines else max(PATIENCE, 4 * steps_per_epoch)


def _identity(model: AbstractMatcher, loss: Callable[..., Tensor], data: Data, config: TrainConfig) -> dict[str, str]:
    """What must be the same when a run is resumed; the number of epochs may grow."""
    settings = {key: value for key, value in asdict(config).items() if key not in FREE_TO_CHANGE}
    made_of = ", ".join(f"{key}={value}" for key, value in model.settings.items())
    weights = sum(parameter.numel() for parameter in model.parameters())
    texts = "\n".join([*data.train.captions[:100], *data.dev.captions[:100]])
    return {
        "model": f"{model.name or type(model).__name__} ({made_of}), {weights:,} weights",
        "loss": repr(loss) if isinstance(loss, AbstractLoss) else getattr(loss, "__name__", type(loss).__name__),
        "data": f"{data.name}, {data.train.num_images:,} images, {data.train.num_texts:,} texts, "
        f"which begin as {zlib.crc32(texts.encode(errors='surrogatepass')):08x}",
        **{key: repr(value) for key, value in settings.items()},
    }
