"""One training step: batch, forward, loss, backward, update; and what a run makes its steps with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Augmentation, Batches, Data, Pairs
from selhn.diagnose import epsilon_of, gradient_norms, parameter_norms, probe_scores
from selhn.eval import require_width
from selhn.kernels import side_by_side
from selhn.losses import AbstractLoss
from selhn.models import AbstractMatcher
from selhn.training.capture import Stepper
from selhn.training.config import TrainConfig
from selhn.training.optim import clipped_step
from selhn.training.protocols import Protocol
from selhn.training.two_pass import match_in_two_passes, require_two_pass


def uses_bfloat16(config: TrainConfig, device: str) -> bool:
    """bfloat16 for the encoders where the device computes in it, or where it was asked for."""
    if config.precision == "auto":
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return config.precision == "bf16"


def make_batches(model: AbstractMatcher, data: Data, config: TrainConfig, device: torch.device) -> Batches:
    """Shuffled pairs of the training split, augmented as the settings say."""
    if model.tokenizer is None:
        raise SelhnError("the model has no tokenizer: pass tokenizer=Vocabulary.build(...) to create_model")
    for split in (data.train, data.dev, data.test):
        require_width(model, split)
        if split.num_texts == 0:
            raise SelhnError(f"{split.name} has no texts: training needs some in each of train, dev and test")
    if config.batch_size > data.train.num_texts:
        raise SelhnError(
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
        raise SelhnError("capture=always records steps as CUDA graphs and needs a GPU: leave capture=auto")
    if config.two_pass:
        require_two_pass(model, loss)
    record = config.capture == "always" or (
        config.capture == "auto"
        and batches.device.type == "cuda"
        and isinstance(loss, AbstractLoss)  # any other function might look at its numbers, which a recording cannot
        and (protocol is None or protocol.capturable)
    )

    def compute(pairs: Pairs, num_tokens: int) -> dict[str, Tensor]:
        batch = batches.assemble_seeded(pairs, num_tokens)
        matched = None if protocol is None else partial(protocol.match, pairs, batch)
        return training_step(model, batch, loss, optimizer, config, matched)

    return Stepper(compute, batches.generator, record)


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
        **gradient_norms(model.watched, norms),
        **{f"aux_{name}": term.detach() for name, term in match.aux.items()},
        **(loss.numbers() if isinstance(loss, AbstractLoss) else {}),
    }
    clipped_step(optimizer, norms, config.clip)
    return numbers


def _per_anchor(
    loss: Callable[..., Tensor], scores: Tensor, image_ids: Tensor | None, given: Any, value: Tensor
) -> Tensor:
    """The mean over the anchors that count, whatever the reduction of the loss is."""
    if not isinstance(loss, AbstractLoss) or loss.reduction == "mean":
        return value
    return loss.reduce(loss.statistics(scores, image_ids, given=given), "mean")
