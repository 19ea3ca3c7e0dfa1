"""One training step: batch, forward, loss, backward, update; and the setup that all steps share."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.ranks import Processes
from selhn.base.types import FeaturePrecision
from selhn.data import Augmentation, Batches, Data, Pairs, make_resident, resident_bytes
from selhn.diagnose import epsilon_of, gradient_norms, parameter_norms, probe_scores, total_norm
from selhn.eval import require_width
from selhn.losses.base import as_ours, learnt_by
from selhn.models import AbstractMatcher
from selhn.models.matcher import taken_side
from selhn.ops import side_by_side
from selhn.training.capture import Stepper
from selhn.training.config import TrainConfig
from selhn.training.optim import AdamW
from selhn.training.protocols import Protocol


def uses_bfloat16(config: TrainConfig, device: str) -> bool:
    """Whether the encoders compute in bfloat16: as set, or by default if the device supports it."""
    if config.precision == "auto":
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return config.precision == "bfloat16"


def on_device(data: Data, config: TrainConfig, device: torch.device) -> Data:
    """The data with all features on the device if they fit into the byte budget, else unchanged.

    Encoders that compute in bfloat16 round their features to it first, so keeping them in it changes no
    number. Features that do not fit are copied to the device in every step instead.
    """
    automatic = config.feature_precision == "auto"
    if device.type == "cpu" and automatic:
        return data
    half: FeaturePrecision = "bfloat16" if uses_bfloat16(config, device.type) else "float32"
    precision = half if config.feature_precision == "auto" else config.feature_precision
    # On a CPU features are moved only by request: free memory is not queried.
    free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 2**62
    budget = config.feature_bytes or free
    needed = sum(resident_bytes(split.features, precision) for split in data.splits)
    if needed > budget and automatic:
        return data
    if needed > budget:
        raise SelhnError(
            f"feature_precision={precision} takes {needed / 2**30:.1f} GiB and feature_bytes allows "
            f"{budget / 2**30:.1f} GiB of the device: take int8, raise feature_bytes, "
            "or set feature_precision=auto to read them as needed"
        )
    train, dev, test = (make_resident(split, device, precision) for split in data.splits)
    return replace(data, train=train, dev=dev, test=test)


def make_batches(
    model: AbstractMatcher,
    data: Data,
    config: TrainConfig,
    device: torch.device,
    ranks: Processes | None = None,
) -> Batches:
    """Shuffled pairs of the training split, augmented as the settings say."""
    if model.tokenizer is None:
        raise SelhnError("the model has no tokenizer: pass tokenizer=Vocabulary.build(...) to create_model")
    for split in data.splits:
        require_width(model, split)
        if split.num_texts == 0:
            raise SelhnError(f"{split.name} has no texts: training needs some in each of train, dev and test")
    return Batches(
        data.train,
        model.tokenizer,
        config.batch_size,
        augmentation=Augmentation(drop_regions=config.drop_regions, corrupt_words=config.corrupt_words),
        seed=config.seed,
        device=device,
        # On a GPU a few more tokens cost little, and every number of tokens needs a recording of its own.
        token_step=4 if device.type == "cuda" else 1,
        dtype=torch.bfloat16 if uses_bfloat16(config, device.type) else torch.float32,
        side=taken_side(model, data.train.side),
        shares=None if ranks is None else ranks.shares(config.batch_size),
    )


def make_stepper(protocol: Protocol, optimizer: AdamW) -> Stepper:
    """All steps of a run; recorded if the settings and the device allow it."""
    batches, loss, config = protocol.batches, protocol.loss, protocol.config
    ranks = None if batches.shares is None else batches.shares.ranks
    if config.capture == "always" and batches.device.type != "cuda":
        raise SelhnError("capture=always records steps as CUDA graphs and needs a GPU: leave capture=auto")
    record = config.capture == "always" or (
        config.capture == "auto"
        and batches.device.type == "cuda"
        and as_ours(loss)
        is not None  # a function from outside might read its values, which a recording cannot
        and protocol.capturable
        and ranks is None  # an exchange through the host cannot be recorded,
        and not config.chunk  # nor can reading the generator before a chunk is encoded again
    )
    return Stepper(partial(training_step, protocol, optimizer), batches.generator, record, ranks)


def training_step(protocol: Protocol, optimizer: AdamW, pairs: Pairs, num_tokens: int) -> dict[str, Tensor]:
    """Batch, forward, backward, clip, update; returns the numbers of the step, still on the device.

    `Stepper` calls it, for one `Step` of `Batches.steps` after the other, and seeds what is random in it.
    """
    model, loss, config = protocol.model, protocol.loss, protocol.config
    batch = protocol.batches.assemble_seeded(pairs, num_tokens)
    device, image_ids = batch.tokens.device.type, protocol.image_ids(batch)
    with torch.autocast(device, torch.bfloat16, enabled=uses_bfloat16(config, device)):
        match, given = protocol.match(pairs, batch)
    # The loss, its mean over anchors and the probe share one pass over the scores.
    ours, anchors = as_ours(loss), None
    if ours is None:
        value = _one_number(loss(match.scores))
    else:
        anchors = ours.statistics(match.scores, image_ids, given=given, also=("hardest",))
        value = ours.reduce(anchors)

    def watch() -> dict[str, Tensor]:
        mean, raw = value, None
        if ours is not None and anchors is not None:
            mean, raw = value if ours.reduction == "mean" else ours.reduce(anchors, "mean"), anchors.raw
        probed = probe_scores(match.scores, image_ids, epsilon_of(loss), raw)
        return {"loss_per_anchor": mean.detach(), **probed}

    optimizer.zero_grad()
    _, watched = side_by_side(sum(match.aux.values(), start=value).backward, watch)
    trained = [*model.parameters(), *learnt_by(loss)]
    if (shares := protocol.batches.shares) is not None:
        shares.ranks.average_gradients(dict.fromkeys(trained))  # a loss from outside may contain the model
    norms = parameter_norms(trained)
    own = loss.numbers() if callable(getattr(loss, "numbers", None)) else {}
    numbers = {
        "loss": value.detach(),
        **watched,
        **gradient_norms(model.watched, norms),
        **{f"aux_{name}": term.detach() for name, term in match.aux.items()},
        **{name: torch.as_tensor(number).detach().clone() for name, number in own.items()},
    }
    if config.clip:  # the update divides by this as it reads the gradients, which saves a pass over them
        norm = total_norm(list(norms.values()))
        optimizer.grad_scale = ((norm + 1e-6) / config.clip).clamp(min=1).float()
    optimizer.step()
    return numbers


def _one_number(value: object) -> Tensor:
    """The value of a loss from outside; refuses what cannot be trained with."""
    if isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
        return value
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.ndim else repr(value)
    raise SelhnError(
        f"the loss must be one number with a gradient for the scores, got {got}: return a 0-d tensor"
    )
