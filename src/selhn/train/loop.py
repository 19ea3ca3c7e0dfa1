"""The one training loop."""

import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selhn.data import Augmentation, Batches, Data, Pairs, with_noise
from selhn.diagnose import StallAlarm, gradient_norms, parameter_norms, probe_scores, probe_split
from selhn.diagnose.stall import PATIENCE
from selhn.eval import Metrics, evaluate, require_width
from selhn.kernels import side_by_side
from selhn.losses import AbstractLoss, TripletSelHN
from selhn.models import AbstractMatcher
from selhn.progress import Progress
from selhn.train.capture import Stepper, recording_stream
from selhn.train.checkpoint import Position, load_checkpoint, save_checkpoint
from selhn.train.config import TrainConfig, with_values
from selhn.train.folder import RunFolder, interruptible
from selhn.train.log import Meter
from selhn.train.optim import clipped_step, make_optimizer, set_learning_rate
from selhn.train.protocols import Protocol, make_protocol
from selhn.train.resident import on_device
from selhn.train.two_pass import match_in_two_passes, require_two_pass
from selhn.types import Batch, Match

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
        folder.describe()
        meter = Meter(folder.log, position.log_position, alarm)
        progress = Progress(config.epochs * len(batches), position.step, quiet, label)

        def checkpoint() -> None:
            if folder.checkpoints is not None:
                state = replace(position, log_position=meter.flush())
                heard = None if alarm is None else asdict(alarm)
                save_checkpoint(folder.checkpoints, model, optimizer, state, folder.identity, heard, protocol)

        with meter, interruptible() as interrupted, recording_stream(device):
            for epoch in range(position.epoch, config.epochs):
                set_learning_rate(optimizer, epoch, config)
                if isinstance(loss, AbstractLoss):
                    loss.set_epoch(epoch)
                    if alarm is not None:  # a scheduled loss has another plateau in another phase
                        alarm.plateau, alarm.patience = loss.plateau(config.batch_size), patience(loss, len(batches))
                if position.step_in_epoch == 0:
                    protocol.begin_epoch(epoch)
                model.train()
                for step in batches.steps(epoch, start=position.step_in_epoch):
                    numbers = stepper(step, loss.phase if isinstance(loss, AbstractLoss) else None)
                    position = position.after_step()
                    meter.add(position.step, epoch, numbers, read=position.step_in_epoch == len(batches))
                    if meter.warning:
                        progress.say(label + meter.warning)
                    progress.step(meter.summary)
                    if interrupted():
                        checkpoint()
                        progress.say(folder.how_to_go_on(position.step))
                        raise KeyboardInterrupt(folder.how_to_go_on(position.step))
                    if config.checkpoint_every and position.step % config.checkpoint_every == 0:
                        checkpoint()
                dev = evaluate(model, data.dev)
                probed = probe_split(model, data.dev)
                meter.write({"step": position.step, "epoch": epoch, "dev": dev.to_dict(), "probe": probed})
                progress.say(f"{label}epoch {epoch + 1:2}/{config.epochs}  {meter.summary}  dev {dev}")
                if dev.rsum > position.best_rsum:
                    position = replace(position, best_rsum=dev.rsum, best_epoch=epoch)
                    folder.keep_best(model)
                position = position.after_epoch()
                checkpoint()
        folder.restore_best(model)
        stalled = None if alarm is None else alarm.said
        run = Run(folder.path, evaluate(model, data.dev), evaluate(model, data.test), position.best_epoch, stalled)
        folder.write_results(run)
        return run


def training_step(
    model: AbstractMatcher,
    batch: Batch,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    matched: Callable[[Callable[[], Match]], tuple[Match, Any]] | None = None,
) -> dict[str, Tensor]:
    """Forward, backward, clip, update; returns the numbers of the step, still on the device.

    `matched` is handed the forward pass and gives its scores and what else the loss needs; see `Protocol.match`.
    """
    device = batch.tokens.device.type
    image_ids = batch.image_ids if config.mask_same_image else None

    def forward() -> Match:
        return match_in_two_passes(model, batch, loss, image_ids) if config.two_pass else model(batch)

    with torch.autocast(device, torch.bfloat16, enabled=uses_bfloat16(config, device)):
        match, given = (forward(), None) if matched is None else matched(forward)
    extra = {"image_ids": image_ids, "given": given} if isinstance(loss, AbstractLoss) else {}
    value = loss(match.scores, **extra)
    optimizer.zero_grad(set_to_none=True)
    total = sum(match.aux.values(), start=value)
    _, probes = side_by_side(total.backward, lambda: probe_scores(match.scores, image_ids, epsilon_of(loss)))
    of_loss = loss.learnt() if isinstance(loss, AbstractLoss) else []
    norms = parameter_norms([*model.parameters(), *of_loss])
    numbers = {
        "loss": value.detach(),
        "loss_per_anchor": _per_anchor(loss, match.scores.detach(), image_ids, given, value.detach()),
        **probes,
        **gradient_norms(model.watched(), norms),
        **{f"aux_{name}": term.detach() for name, term in match.aux.items()},
        **(loss.numbers() if isinstance(loss, AbstractLoss) else {}),
    }
    clipped_step(optimizer, norms, config.clip)
    return numbers


def make_stepper(
    model: AbstractMatcher,
    batches: Batches,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    protocol: Protocol | None = None,
) -> Stepper:
    """All steps of a run; recorded where the settings and the device allow it."""
    if config.capture == "always" and batches.device.type != "cuda":
        raise ValueError("capture=always records steps as CUDA graphs and needs a GPU: leave capture=auto")
    if config.two_pass:
        require_two_pass(model, loss)
    record = config.capture == "always" or (
        config.capture == "auto"
        and batches.device.type == "cuda"
        and isinstance(loss, AbstractLoss)  # any other function might look at its numbers, which a recording cannot
        and model.capturable
        and (protocol is None or protocol.capturable)
    )

    def compute(pairs: Pairs, num_tokens: int) -> dict[str, Tensor]:
        batch = batches.assemble_seeded(pairs, num_tokens)
        matched = None if protocol is None else partial(protocol.match, pairs, batch)
        return training_step(model, batch, loss, optimizer, config, matched)

    return Stepper(compute, batches.generator, record)


def make_batches(model: AbstractMatcher, data: Data, config: TrainConfig, device: torch.device) -> Batches:
    """Shuffled pairs of the training split, augmented as the settings say."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer: pass tokenizer=Vocabulary.build(...) to create_model")
    require_width(model, data.train)
    if config.batch_size > data.train.num_texts:
        raise ValueError(
            f"batch_size {config.batch_size} is more than the {data.train.num_texts} texts of the training split: "
            "lower batch_size"
        )
    augmentation = Augmentation(drop_regions=config.drop_regions, corrupt_words=config.corrupt_words)
    # On a GPU a few more tokens cost little, and every number of tokens is recorded anew.
    token_step = 4 if device.type == "cuda" else 1
    return Batches(
        data.train,
        model.tokenizer,
        config.batch_size,
        augmentation=augmentation,
        seed=config.seed,
        device=device,
        token_step=token_step,
        dtype=torch.bfloat16 if uses_bfloat16(config, device.type) else torch.float32,
    )


def make_alarm(loss: Callable[..., Tensor], steps_per_epoch: int) -> StallAlarm | None:
    """The stall alarm for a loss of ours; its plateau is set at the start of every epoch."""
    if not isinstance(loss, AbstractLoss):
        return None
    if isinstance(loss, TripletSelHN):
        remedy = "a larger batch of different images, less dropout, or a larger epsilon"
        # With a smaller epsilon than that of the alarm it mines where scores are still, and stalls like T-HN.
        epsilon = max(loss.epsilon, StallAlarm.epsilon)
        return StallAlarm(None, epsilon, patience(loss, steps_per_epoch), remedy)
    return StallAlarm(None, patience=patience(loss, steps_per_epoch))


def patience(loss: AbstractLoss, steps_per_epoch: int) -> int:
    """How long a loss may stand still: one that averages over negatives leaves its plateau, but may take epochs."""
    return PATIENCE if loss.mines else max(PATIENCE, 4 * steps_per_epoch)


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no GPU: use device=cpu, or device=auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}: use auto, cpu or cuda") from None


def uses_bfloat16(config: TrainConfig, device: str) -> bool:
    """bfloat16 for the encoders where the device computes in it, or where it was asked for."""
    if config.precision == "auto":
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return config.precision == "bf16"


def _per_anchor(
    loss: Callable[..., Tensor], scores: Tensor, image_ids: Tensor | None, given: Any, value: Tensor
) -> Tensor:
    """The mean over the anchors, whatever the reduction of the loss is."""
    if not isinstance(loss, AbstractLoss) or loss.reduction == "mean":
        return value
    return loss.per_anchor(scores, image_ids=image_ids, given=given).mean()


def epsilon_of(loss: Callable[..., Tensor] | None) -> float:
    """The delta_s above which an anchor counts as told apart: that of SelHN, or what SelHN has by default."""
    return loss.epsilon if isinstance(loss, TripletSelHN) else 0.01


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
        f"which begin as {zlib.crc32(texts.encode()):08x}",
        **{key: repr(value) for key, value in settings.items()},
    }
