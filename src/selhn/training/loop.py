"""The training loop."""

import json
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.names import require_type
from selhn.base.progress import Progress
from selhn.base.ranks import Ranks, joined, local_device
from selhn.data import Data, with_noise
from selhn.diagnose import diagnose, make_alarm, patience, probe_split, watched_plateau
from selhn.eval import Metrics, evaluate, in_folds
from selhn.losses import LOSSES, AbstractLoss, Learns, Scheduled, loss_settings
from selhn.losses.base import learnt_by
from selhn.models import AbstractMatcher
from selhn.ops import synced
from selhn.runs import Results, RunFolder
from selhn.training.average import WeightAverage
from selhn.training.capture import recording_stream
from selhn.training.checkpoint import Checkpoints, Position
from selhn.training.config import RunConfig, TrainConfig, describe_objects, with_values
from selhn.training.log import Meter
from selhn.training.optim import make_optimizer, rate_factor, set_learning_rate
from selhn.training.protocols import Protocol, protocol_of
from selhn.training.protocols.base import require_shareable, require_shareable_model, require_two_pass
from selhn.training.step import make_batches, make_stepper, on_device
from selhn.training.trackers import Trackers, known_trackers, tracked

FREE_TO_CHANGE = ("epochs", "device", "feature_bytes", "capture", "two_pass", "checkpoint_every")
"""Settings that may change when a run is resumed."""


@dataclass(frozen=True)
class Run:
    """A finished run. The model has the weights of its best epoch."""

    out: Path | None
    dev: Metrics
    """Metrics of the epoch with the highest RSUM on dev."""
    test: Metrics
    """Metrics of that epoch on test, measured once at the end; over the folds of the split, five for COCO."""
    best_epoch: int
    stalled: str | None
    """The stall alarm's message, if training stalled and has not left the plateau since."""


def train(
    model: AbstractMatcher,
    data: Data,
    loss: Callable[..., Tensor],
    *,
    out: str | Path | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
    quiet: bool = False,
    track: Any = None,
    **settings: Any,
) -> Run:
    """Train a model on `data.train`, keep its best epoch on `data.dev`, and measure it once on `data.test`.

    Args:
        model: any `AbstractMatcher` with a tokenizer. It ends up with the weights of its best epoch on dev.
        data: what `load_data` returns, or a `Data` of your own.
        loss: a loss of selhn, or any function from scores `(B, B)`, pairs on the diagonal, to one number; if it is
            a module with parameters, these are trained too.
        out: folder for the run's settings, log, checkpoints, best model, results and verdict.
        config: the settings of training; by default `TrainConfig()`.
        resume: continue the run in `out` from its latest checkpoint, to the same end, bit for bit on the CPU.
        quiet: show no progress.
        track: where to send the curves as well: "tensorboard", "wandb", "trackio", "mlflow", an object with
            `log(dict, step=)`, or a list of these. By default TensorBoard, if it is installed.
        settings: fields of `TrainConfig` that replace those of `config`, such as `epochs=20, lr=5e-4`.

    Example:
        >>> run = selhn.train(model, data, TripletSelHN(), out="runs/rvse", epochs=20)  # doctest: +SKIP
    """
    require_type("model", model, AbstractMatcher, "train(model, data, loss) takes what create_model returns")
    require_type(
        "data", data, Data, "train(model, data, loss) takes all three splits, as load_data returns them"
    )
    if isinstance(loss, type) or not callable(loss):
        named = f'create_loss("{loss}")' if isinstance(loss, str) and loss in LOSSES else "TripletSelHN()"
        raise SelhnError(f"the loss is {loss!r}: give an object such as {named}, or a function of the scores")
    config = with_values(config or TrainConfig(), settings)
    run = describe_objects(model, loss, data, config)
    return train_in(RunFolder(out), model, data, loss, run, resume=resume, quiet=quiet, track=track)


def train_in(
    folder: RunFolder,
    model: AbstractMatcher,
    data: Data,
    loss: Callable[..., Tensor],
    run: RunConfig,
    *,
    resume: bool = False,
    quiet: bool = False,
    label: str = "",
    track: Any = None,
) -> Run:
    """The loop behind `train`. `run` becomes `config.yaml`; `label` stands before every printed line.

    With several processes (`torchrun`) each computes its part of every batch; rank 0 does everything else.
    """
    config, settings, rate = run.train, run.to_dict(), None
    with joined() as ranks, synced(model) if ranks is not None else nullcontext():
        folder.check(resume)
        asked = known_trackers(track, folder)
        device, first = local_device(choose_device(config.device)), ranks is None or ranks.own == 0
        parts = _set_up(folder, model, data, loss, config, device, ranks)
        protocol, alarm, stepper = parts.protocol, parts.alarm, make_stepper(parts.protocol, parts.optimizer)
        writes, steps = folder if first else RunFolder(None), len(protocol.batches)
        with writes.hold(), tracked(asked if first else [], writes, run.model, settings) as trackers:
            position, damage = _load_in_turn(parts, ranks, device) if resume else (Position(), [])
            if position.epoch > config.epochs:
                raise SelhnError(
                    f"{folder.path} has trained for {position.epoch} epochs already: "
                    f"epochs={config.epochs} would undo some"
                )
            finished = position.epoch == config.epochs
            writes.describe(settings, parts.identity, model.tokenizer, finished=finished)
            progress = Progress(config.epochs * steps, position.step, quiet or not first, label)
            for sentence in damage:
                progress.say(sentence)
            log = None if writes.path is None else writes.log_path
            meter = Meter(log, position.log_position, alarm, progress.say, trackers)

            def pause(save: bool) -> None:
                """Between two steps: save if it is time; if a signal has arrived, save and stop."""
                number = interrupted() if ranks is None else ranks.most(interrupted(), device)
                if first and (number or save):
                    parts.save(replace(position, log_position=meter.flush()))
                if number:
                    raise _stopped(number, _how_to_continue(folder, position.step, run), progress)

            with meter, interruptible() as interrupted, recording_stream(device):
                for epoch in range(position.epoch, config.epochs):
                    _begin_epoch(parts, epoch, position)
                    for step in protocol.batches.steps(epoch, start=position.step_in_epoch):
                        if (wanted := rate_factor(config, position.step, steps)) != rate:
                            set_learning_rate(parts.optimizer, rate := wanted)
                        numbers = stepper(step, loss.phase if isinstance(loss, Scheduled) else None)
                        done = position.step_in_epoch + 1
                        position = replace(position, step=position.step + 1, step_in_epoch=done)
                        if protocol.average is not None:
                            protocol.average.update(position.step)
                        meter.add(position.step, epoch, numbers, read=done == steps)
                        progress.step(meter.summary)
                        pause(
                            save=bool(config.checkpoint_every)
                            and position.step % config.checkpoint_every == 0
                        )
                    position = replace(position, epoch=epoch + 1, step_in_epoch=0)
                    if first:
                        position = _judged(parts, position, meter, progress)
                    pause(save=True)
            stalled = None if alarm is None else alarm.said
            results = _results(folder, protocol, position, stalled, progress, trackers) if first else None
            if ranks is not None:
                ranks.copy_from_first(model.state_dict().values())
                said = ranks.text_of_first("" if results is None else json.dumps(asdict(results)), device)
                results = Results(**json.loads(said))
    assert results is not None
    return Run(
        folder.path,
        Metrics.from_dict(results.dev),
        Metrics.from_dict(results.test),
        results.best_epoch,
        stalled,
    )


def _set_up(
    folder: RunFolder,
    model: AbstractMatcher,
    data: Data,
    loss: Callable[..., Tensor],
    config: TrainConfig,
    device: torch.device,
    ranks: Ranks | None,
) -> Checkpoints:
    """Everything a run consists of, on its device; nothing is written."""
    if isinstance(loss, AbstractLoss) and loss.reduction == "none":
        raise SelhnError("training needs one number per batch: give the loss reduction='mean' or 'sum'")
    kind, number = protocol_of(type(loss), config.distil), 1 if ranks is None else ranks.number
    require_shareable(kind, loss, config, number)
    require_shareable_model(model, config, number)
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
    protocol = kind(model, loss, data, batches, config, average, ranks)
    alarm = make_alarm(loss, len(batches))
    return Checkpoints(folder, _identity(model, loss, data, config), protocol, optimizer, alarm)


def _begin_epoch(parts: Checkpoints, epoch: int, position: Position) -> None:
    protocol, alarm, loss = parts.protocol, parts.alarm, parts.protocol.loss
    if isinstance(loss, Scheduled):
        loss.set_epoch(epoch)
    if alarm is not None and isinstance(loss, AbstractLoss):
        alarm.plateau = watched_plateau(loss, protocol.config.batch_size)
        alarm.patience = patience(loss, len(protocol.batches))
    if position.step_in_epoch == 0:
        protocol.begin_epoch(epoch)
    protocol.model.train()


def _judged(parts: Checkpoints, position: Position, meter: Meter, progress: Progress) -> Position:
    """At the end of an epoch: evaluate on dev, and keep the model if it is the best so far."""
    protocol, epoch = parts.protocol, position.epoch - 1
    judged = protocol.model if protocol.average is None else protocol.average.current()
    dev, probed = evaluate(judged, protocol.data.dev), probe_split(judged, protocol.data.dev)
    meter.write({"step": position.step, "epoch": epoch, "dev": dev.to_dict(), "probe": probed})
    progress.say(f"epoch {epoch + 1:2}/{protocol.config.epochs}  {meter.summary}  dev {dev}")
    if dev.rsum <= position.best_rsum:
        return position
    parts.folder.keep_best(judged)
    return replace(position, best_rsum=dev.rsum, best_epoch=epoch)


def _results(
    folder: RunFolder,
    protocol: Protocol,
    position: Position,
    stalled: str | None,
    progress: Progress,
    trackers: Trackers,
) -> Results:
    """Measure the best epoch, give its weights to the model, and write the last files of the run."""
    model, data = protocol.model, protocol.data
    folder.restore_best(model)
    dev, test = (evaluate(model, split).to_dict() for split in (data.dev, data.test))
    results = Results(dev, test, position.best_epoch, stalled)
    if data.test.folds > 1:
        progress.say(f"test: {in_folds(data.test, data.test.folds)}")
    if folder.path is not None:
        verdict = diagnose(folder.path).verdict
        folder.write_verdict(verdict.to_dict())
        trackers.table("verdict", [verdict.row], position.step)
    trackers.table("results", [{"split": "dev", **dev}, {"split": "test", **test}], position.step)
    # The last file: a run that has it is finished and is not continued.
    folder.write_results(results)
    return results


def _load_in_turn(
    checkpoints: Checkpoints, ranks: Ranks | None, device: torch.device
) -> tuple[Position, list[str]]:
    """Rank 0 first, which may repair what it finds damaged."""
    loaded = checkpoints.load() if ranks is None or ranks.own == 0 else None
    if ranks is not None:
        ranks.most(0, device)  # the others wait for it
    return checkpoints.load() if loaded is None else loaded


@contextmanager
def interruptible() -> Iterator[Callable[[], int]]:
    """Let the step finish on Ctrl-C, SIGTERM or SIGHUP; a second signal stops at once.

    The returned function gives the signal that arrived, 0 for none. Ignored signals (nohup) stay ignored.
    """
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            raise _stopped(number)
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, remember)
    try:
        yield lambda: came[0] if came else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopped(number: int, said: str = "", progress: Progress | None = None) -> BaseException:
    """The exception that ends the process: KeyboardInterrupt for Ctrl-C, otherwise a shell's exit status."""
    if progress is not None:
        progress.say(said)
    return KeyboardInterrupt(said) if number == signal.SIGINT else SystemExit(128 + number)


def _how_to_continue(folder: RunFolder, step: int, run: RunConfig) -> str:
    if folder.path is None:
        return f"Stopped after {step} steps; nothing was saved, because the run has no folder (out=)."
    how = (
        f'train(..., out="{folder.path}", resume=True)' if run.own else f"selhn train --resume {folder.path}"
    )
    return f"Stopped after {step} steps; all of it is saved. Continue with: {how}"


def _identity(
    model: AbstractMatcher, loss: Callable[..., Tensor], data: Data, config: TrainConfig
) -> dict[str, str]:
    """What must not change when a run is resumed; the number of epochs may grow."""
    of_loss = repr(loss) if isinstance(loss, AbstractLoss) else getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, AbstractLoss) and isinstance(loss, Learns):  # with the values it starts from
        started = ", ".join(f"{key}={value!r}" for key, value in loss_settings(loss).items())
        of_loss = f"{type(loss).__name__}({started})"
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
