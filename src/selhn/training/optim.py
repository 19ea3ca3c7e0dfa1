"""The optimiser: how it is made, its learning rate, its update, and its state in a checkpoint."""

import math
from collections.abc import Mapping, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from selhn.base.errors import Damaged, SelhnError, warn
from selhn.models import AbstractMatcher
from selhn.training.config import TrainConfig

MOST_LR = 1.0
"""Highest useful learning rate: above it, one step of AdamW adds more than any weight of these models."""


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` in one pass over memory (`fused`), without torch's compiler; steps on a GPU can be recorded.

    torch keeps the methods of its optimisers out of compiled programs by a decorator, which imports the whole compiler:
    a second before the first step. These are the same methods without it.
    """

    grad_scale: Tensor | None = None
    """What all gradients are divided by as they are read."""

    def __init__(
        self, groups: Sequence[dict[str, Any]], lr: float, weight_decay: float, device: torch.device
    ):
        for weight in (weight for group in groups for weight in group["params"]):
            # The update walks through the memory of weights and of moments, which have no gaps.
            if torch.empty_like(weight, device="meta").stride() != weight.stride():
                raise SelhnError(
                    f"a weight of shape {tuple(weight.shape)} is a part of a larger tensor, with gaps in memory: "
                    "make it a tensor of its own, nn.Parameter(part.clone())"
                )
        super().__init__(groups, lr, weight_decay=weight_decay, fused=True, capturable=device.type == "cuda")

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The moments of every weight, in the weight's own layout; all settings stay those of this run."""
        weights = [weight for group in self.param_groups for weight in group["params"]]
        if not state_dict["state"].keys() <= set(range(len(weights))):
            raise Damaged("the optimiser in the checkpoint belongs to other weights: start the run again")
        self.state.clear()
        for number, saved in state_dict["state"].items():
            weight = weights[number]
            moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            own = {"step": torch.zeros((), dtype=torch.float32, device=weight.device), **moments}
            if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
                raise Damaged("the optimiser in the checkpoint does not fit the model: start the run again")
            for name, held in own.items():
                held.copy_(saved[name])
            self.state[weight] = own


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
    return AdamW(groups, config.lr, config.weight_decay, device)


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
