"""The training loop."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from selhn.base.device import choose_device
from selhn.base.errors import SelhnError
from selhn.base.names import require_type
from selhn.base.progress import Progress
from selhn.base.ranks import Processes, joined, local_device
from selhn.data import Data
from selhn.diagnose import diagnose, patience, probe_split, watched_plateau
from selhn.eval import Metrics, evaluate, in_folds
from selhn.losses import LOSSES
from selhn.losses.base import as_ours
from selhn.models import AbstractMatcher
from selhn.ops.batch_norm import synced
from selhn.runs import Results, RunFolder
from selhn.training.capture import recording_stream
from selhn.training.checkpoint import load_checkpoint, save_checkpoint
from selhn.training.config import RunConfig, TrainConfig, describe_objects, with_values
from selhn.training.log import Meter
from selhn.training.optim import rate_factor, set_learning_rate
from selhn.training.state import RunState, make_state
from selhn.training.step import make_stepper
from selhn.training.trackers import Trackers, known_trackers, tracked


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

    @classmethod
    def of(cls, out: Path | None, results: Results) -> "Run":
        dev, test = Metrics.from_dict(results.dev), Metrics.from_dict(results.test)
        return cls(out, dev, test, results.best_epoch, results.stalled)


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
    config, settings, rate, ours = run.train, run.to_dict(), None, as_ours(loss)
    with joined() as ranks, synced(model) if ranks is not None else nullcontext():
        folder.check(resume)
        asked = known_trackers(track, folder)
        device, first = local_device(choose_device(config.device)), ranks is None or ranks.own == 0
        state = make_state(model, data, loss, config, device, ranks)
        batches, average = state.protocol.batches, state.average
        stepper = make_stepper(state.protocol, state.optimizer)
        writes, steps = folder if first else RunFolder(None), len(batches)
        with writes.hold(), tracked(asked if first else [], writes, run.model, settings) as trackers:
            damage = _load_in_turn(folder, state, ranks, device) if resume else []
            at = state.position
            writes.describe(settings, state.identity, model.tokenizer, finished=at.epoch == config.epochs)
            progress = Progress(config.epochs * steps, at.step, quiet or not first, label)
            for sentence in damage:
                progress.say(sentence)
            log = None if writes.path is None else writes.log_path
            meter = Meter(log, at.log_position, state.alarm, progress.say, trackers)

            def pause(save: bool) -> None:
                """Between two steps: save if it is time; if a signal has arrived, save and stop."""
                number = interrupted() if ranks is None else ranks.most(interrupted(), device)
                if first and (number or save):
                    at.log_position = meter.flush()
                    save_checkpoint(writes, state)
                if number:
                    raise _stopped(number, _how_to_continue(folder, at.step, run), progress)

            with meter, interruptible() as interrupted, recording_stream(device):
                for epoch in range(at.epoch, config.epochs):
                    _begin_epoch(state, epoch)
                    for step in batches.steps(epoch, start=at.step_in_epoch):
                        if (wanted := rate_factor(config, at.step, steps)) != rate:
                            set_learning_rate(state.optimizer, rate := wanted)
                        numbers = stepper(step, None if ours is None else ours.phase)
                        at.step, at.step_in_epoch = at.step + 1, at.step_in_epoch + 1
                        if average is not None:
                            average.update(at.step)
                        meter.add(at.step, epoch, numbers, read=at.step_in_epoch == steps)
                        progress.step(meter.summary)
                        pause(save=bool(config.checkpoint_every) and at.step % config.checkpoint_every == 0)
                    at.epoch, at.step_in_epoch = epoch + 1, 0
                    if first:
                        _judge(state, writes, meter, progress)
                    pause(save=True)
            results = _results(state, folder, progress, trackers) if first else None
            return Run.of(folder.path, _for_all(ranks, model, results, device))


def _begin_epoch(state: RunState, epoch: int) -> None:
    ours, alarm, protocol = as_ours(state.loss), state.alarm, state.protocol
    if ours is not None:
        ours.set_epoch(epoch)
        if alarm is not None:
            alarm.plateau = watched_plateau(ours, protocol.config.batch_size)
            alarm.patience = patience(ours, len(protocol.batches))
    if state.position.step_in_epoch == 0:
        protocol.begin_epoch(epoch)
    state.model.train()


def _judge(state: RunState, folder: RunFolder, meter: Meter, progress: Progress) -> None:
    """At the end of an epoch: evaluate on dev, and keep the model if it is the best so far."""
    at, data, judged = state.position, state.protocol.data, state.judged
    dev, probed = evaluate(judged, data.dev), probe_split(judged, data.dev)
    meter.write({"step": at.step, "epoch": at.epoch - 1, "dev": dev.to_dict(), "probe": probed})
    progress.say(f"epoch {at.epoch:2}/{state.protocol.config.epochs}  {meter.summary}  dev {dev}")
    if dev.rsum > at.best_rsum:
        folder.keep_best(judged)
        at.best_rsum, at.best_epoch = dev.rsum, at.epoch - 1


def _results(state: RunState, folder: RunFolder, progress: Progress, trackers: Trackers) -> Results:
    """Measure the best epoch, give its weights to the model, and write the last files of the run."""
    model, data, at = state.model, state.protocol.data, state.position
    folder.restore_best(model)
    dev, test = (evaluate(model, split).to_dict() for split in (data.dev, data.test))
    results = Results(dev, test, at.best_epoch, None if state.alarm is None else state.alarm.said)
    if data.test.folds > 1:
        progress.say(f"test: {in_folds(data.test, data.test.folds)}")
    if folder.path is not None:
        verdict = diagnose(folder.path).verdict
        folder.write_verdict(verdict.to_dict())
        trackers.table("verdict", [verdict.row], at.step)
    trackers.table("results", [{"split": "dev", **dev}, {"split": "test", **test}], at.step)
    # The last file: a run that has it is finished and is not continued.
    folder.write_results(results)
    return results


def _for_all(
    ranks: Processes | None, model: AbstractMatcher, results: Results | None, device: torch.device
) -> Results:
    """The results of rank 0, on every rank; the models get its best weights."""
    if ranks is not None:
        ranks.copy_from_first(model.state_dict().values())
        said = ranks.text_of_first("" if results is None else json.dumps(asdict(results)), device)
        results = Results(**json.loads(said))
    assert results is not None
    return results


def _load_in_turn(
    folder: RunFolder, state: RunState, ranks: Processes | None, device: torch.device
) -> list[str]:
    """Rank 0 first, which may repair what it finds damaged."""
    said = load_checkpoint(folder, state) if ranks is None or ranks.own == 0 else None
    if ranks is not None:
        ranks.most(0, device)  # the others wait for it
    said = load_checkpoint(folder, state) if said is None else said
    done, wanted = state.position.epoch, state.protocol.config.epochs
    if done > wanted:
        raise SelhnError(
            f"{folder.path} has trained for {done} epochs already: epochs={wanted} would undo some"
        )
    return said


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
