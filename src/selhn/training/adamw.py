"""AdamW in one pass over memory, on a CPU as on a GPU.

It is `torch.optim.AdamW` with `fused=True`. But creating any optimiser of torch imports torch's compiler, which takes
as long as importing torch itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from selhn.base.errors import SelhnError

State = dict[str, Tensor]


class AdamW:
    """`w <- (1 - lr decay) w - lr m / (sqrt(v) + eps)`, with running means m of the gradients and v of their squares.

    Both means are corrected for their start at 0.

    Args:
        groups: parts of the weights, `params`, each with settings of its own.
        lr: learning rate of groups that have none.
        weight_decay: that of groups that have none.

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], lr: float, weight_decay: float = 0.0):
        defaults = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [{**defaults, **group} for group in groups]
        self.state: dict[nn.Parameter, State] = {}

    @property
    def weights(self) -> Iterator[nn.Parameter]:
        """All weights, in the order in which a checkpoint numbers them."""
        return (weight for group in self.param_groups for weight in group["params"])

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, divisor: Tensor | None = None) -> None:
        """One update of all weights that have a gradient, which is divided by `divisor` as it is read."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            states = [self._state_of(weight) for weight in weights]
            means, squares, steps = (
                [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
            )
            beta1, beta2 = group["betas"]
            adamw(
                weights, [weight.grad for weight in weights], means, squares, [], steps, foreach=False, fused=True,
                capturable=weights[0].is_cuda, grad_scale=divisor, amsgrad=False, maximize=False, beta1=beta1,
                beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
            )  # fmt: skip

    def _state_of(self, weight: nn.Parameter) -> State:
        if weight not in self.state:
            means = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            if means["exp_avg"].stride() != weight.stride():  # the update walks through memory
                raise SelhnError(
                    f"a weight of shape {tuple(weight.shape)} is a part of a larger tensor, with gaps in memory: "
                    "make it a tensor of its own, nn.Parameter(part.clone())"
                )
            self.state[weight] = {"step": torch.zeros((), dtype=torch.float32, device=weight.device), **means}
        return self.state[weight]

    def state_dict(self) -> dict[str, Any]:
        """As that of torch's optimisers: weights are numbered."""
        number = {weight: index for index, weight in enumerate(self.weights)}
        groups = [
            {**group, "params": [number[weight] for weight in group["params"]]} for group in self.param_groups
        ]
        return {
            "state": {number[weight]: state for weight, state in self.state.items()},
            "param_groups": groups,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, also of one that torch's AdamW wrote; a rate on the device stays there."""
        for own, group in zip(self.param_groups, saved["param_groups"], strict=True):
            for key in own.keys() & group.keys() - {"params"}:
                own[key] = own[key].fill_(group[key]) if isinstance(own[key], Tensor) else group[key]
        self.state = {}
        for index, weight in enumerate(self.weights):
            if index in saved["state"]:
                for name, held in self._state_of(weight).items():
                    held.copy_(saved["state"][index][name])  # laid out in memory as the weight
