"""The optimiser and its learning rate."""

import torch

from selhn.models import AbstractMatcher
from selhn.train.config import TrainConfig


def make_optimizer(model: AbstractMatcher, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the model's parameter groups; a pre-trained text encoder has a lower rate."""
    groups = model.parameter_groups(config.lr, text_lr_factor=config.text_lr_factor)
    optimizer = torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=device.type == "cuda")
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, epoch: int, config: TrainConfig) -> None:
    """Step decay: a function of the epoch alone, so that a resumed run cannot miss a step."""
    factor = config.decay_by ** sum(epoch >= at for at in config.decay_at)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
