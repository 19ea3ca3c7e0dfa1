"""The optimiser: how it is made, its learning rate, its update, and its state in a checkpoint."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selhn.base.errors import Damaged, SelhnError, warn
from selhn.diagnose import Norms, total_norm
from selhn.models import AbstractMatcher
from selhn.training.adamw import AdamW
from selhn.training.config import TrainConfig

MOST_LR = 1.0
"""Highest useful learning rate: above it, one step of AdamW adds more than any weight of these models."""


def make_optimizer(
    model: AbstractMatcher, config: TrainConfig, device: torch.device, of_loss: Sequence[nn.Parameter] = ()
) -> AdamW:
    """AdamW, with a lower rate for a pre-trained text encoder and no decay for parameters of the loss."""
    if config.lr > MOST_LR:
        warn(
            f"lr={config.lr:g}: AdamW changes every weight by about that much in each step, "
            "too much to learn anything; try lr=5e-4"
        )
    groups = parameter_groups(model, config.lr, config.text_lr_factor)
    own = set(map(id, model.parameters()))  # a loss from outside may contain the model
    if of_loss := [parameter for parameter in of_loss if id(parameter) not in own]:
        groups.append({"params": of_loss, "lr": config.lr, "weight_decay": 0.0})
    if not groups:
        raise SelhnError("the model has no weights to train: none of its parameters has requires_grad=True")
    for group in groups:
        group["initial_lr"] = group["lr"]
        if device.type == "cuda":  # a recorded step reads the rate from the device on every replay
            group["lr"] = torch.tensor(group["lr"], device=device)
    return AdamW(groups, config.lr, config.weight_decay)


def parameter_groups(model: nn.Module, lr: float, text_lr_factor: float = 0.1) -> list[dict[str, Any]]:
    """Trainable parameters; modules marked `is_pretrained`, such as a BERT, learn at `lr * text_lr_factor`."""
    parts = [part for part in model.modules() if getattr(part, "is_pretrained", False)]
    pretrained = [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]
    known = set(map(id, pretrained))
    own = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in known
    ]
    groups = [{"params": own, "lr": lr}, {"params": pretrained, "lr": lr * text_lr_factor}]
    return [group for group in groups if group["params"]]


def rate_factor(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """The factor on the learning rate in a step (from 0): a function of the step number alone.

    So a resumed run follows the same schedule. Resumed for more epochs, a cosine is that of the longer run.
    """
    rising = config.lr_warmup * steps_per_epoch
    factor = min(1.0, (step + 1) / rising) if rising else 1.0
    if config.schedule == "step":
        factor *= config.decay_by ** sum(step // steps_per_epoch >= at for at in config.decay_at)
    elif config.schedule == "cosine":
        done = max(0.0, step - rising) / max(1.0, config.epochs * steps_per_epoch - rising)
        factor *= (1 + math.cos(math.pi * min(1.0, done))) / 2
    return factor


def set_learning_rate(optimizer: AdamW, factor: float) -> None:
    """Set the rate of every group to its initial rate times a factor."""
    for group in optimizer.param_groups:
        rate = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def clipped_step(optimizer: AdamW, norms: Norms, clip: float) -> None:
    """One update, with all gradients scaled down together if their norm is above `clip`; 0 turns that off."""
    # The update divides by this as it reads the gradients, which saves a pass over them.
    optimizer.step(((total_norm(list(norms.values())) + 1e-6) / clip).clamp(min=1).float() if clip else None)


def flatten_optimizer(optimizer: AdamW) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The moments of an optimiser as tensors by name, and its settings."""
    state = optimizer.state_dict()
    tensors = {
        f"optimizer.{index}.{key}": value.contiguous()
        for index, values in state["state"].items()
        for key, value in values.items()
    }
    groups = [
        {key: float(value) if isinstance(value, Tensor) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, groups


def unflatten_optimizer(
    optimizer: AdamW, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The inverse of `flatten_optimizer`; refuses tensors that do not fit the weights."""
    state: dict[int, dict[str, Tensor]] = {}
    mine = optimizer.state_dict()["param_groups"]
    weights = list(optimizer.weights)
    try:
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                if not tensor.is_floating_point() or tensor.shape not in (
                    weights[int(index)].shape,
                    torch.Size(),
                ):
                    raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}")
                state.setdefault(int(index), {})[key] = tensor
        if [group["params"] for group in groups] != [group["params"] for group in mine]:
            raise ValueError("it belongs to other weights")
        for saved, own in zip(groups, mine):
            for key in own:
                if not _alike(own[key], saved.get(key, own[key])):
                    raise ValueError(f"{key} is {str(saved[key])[:40]}")
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(
            f"the checkpoint's optimiser does not fit the model ({error}): start the run again"
        ) from None


def _alike(own: Any, saved: Any) -> bool:
    """Whether both are numbers, or sequences of equally many; other values always fit."""
    if isinstance(own, (tuple, list)):
        return isinstance(saved, (tuple, list)) and len(own) == len(saved) and all(map(_alike, own, saved))
    return not isinstance(own, (int, float)) or isinstance(own, bool) or isinstance(saved, (int, float))
