"""The average of a model's weights over training steps: steadier than the weights of any single step."""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.base.tensor_files import check_fits
from selhn.models import AbstractMatcher

EVERY_STEP_UNTIL, LATER_EVERY = 64, 4


class WeightAverage:
    """A copy of a model whose weights follow those of the model slowly (an exponential moving average, EMA).

        a_t = d_t a_(t-1) + (1 - d_t) w_t,      d_t = min(decay, t / (t + 9)),      t = 1, 2, ...

    `t / (t + 9)` is the warm-up: the random weights of the start are forgotten within the first steps.
    The trained weights and the running statistics of batch norms are averaged: the mean of a linear
    layer's output is linear in its weights, so the average of the means is the mean under the averaged
    weights, and that of the variances is close to theirs. The statistics of the last step belong to other
    weights. Frozen weights are shared with the model, and counters are copied from it.

    The update is one fused pass over the weights beside the step, recorded or not. After the first steps only
    every fourth has one, with the product of its four d_t, since such a pass takes 4 % of a step with a
    BERT. It depends on nothing but `t`, so a resumed run needs no counter. `model` is a copy of its own:
    nothing is exchanged in the model that is trained, whose addresses a recorded step remembers.

    Args:
        model: the model that is trained, on its device.
        decay: share of the average that a step keeps: 0.999 averages over about the last 1,000 steps.
    """

    def __init__(self, model: AbstractMatcher, decay: float):
        if not 0 < decay < 1:
            raise SelhnError(
                f"ema={decay:g} must be below 1, such as 0.999: the share of the average that a step keeps"
            )
        self.decay = decay
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        shared = {id(part): part for part in (model.tokenizer, *frozen)}
        self.model = copy.deepcopy(model, shared).eval().requires_grad_(False)
        """The averaged model; `current` brings what is not averaged up to date."""
        for part in self.model.modules():
            if isinstance(part, nn.RNNBase):  # cuDNN wants contiguous weights, which copies are not
                part.flatten_parameters()
        copies = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        followed = {
            name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad
        }
        copied = dict(model.named_buffers())
        for name, buffer in copied.copy().items():  # infinities, as in a mask, have no average
            if buffer.is_floating_point() and buffer.isfinite().all():
                followed[name] = copied.pop(name)
        self._followed, self._averages = list(followed.values()), {name: copies[name] for name in followed}
        self._copied = [(copies[name], buffer) for name, buffer in copied.items()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the model after step number `step`, counted from 1."""
        steps = 1 if step <= EVERY_STEP_UNTIL else LATER_EVERY
        if step % steps:
            return
        decay = math.prod(min(self.decay, t / (t + 9)) for t in range(step - steps + 1, step + 1))
        torch._foreach_lerp_(list(self._averages.values()), self._followed, 1 - decay)

    @torch.no_grad()
    def current(self) -> AbstractMatcher:
        """The averaged model, to evaluate and save; parts that are not averaged are copied from the model."""
        for own, buffer in self._copied:
            own.copy_(buffer)
        return self.model

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint stores."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_dict`, in place; refuses tensors that do not fit."""
        check_fits(self._averages, state, "the average in the checkpoint")
        for name, average in self._averages.items():
            average.copy_(state[name])
