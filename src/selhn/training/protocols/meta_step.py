"""Meta-SPN: a step for a weighting network (our reading of Wei et al., 2021; experimental)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.types import Batch, Match
from selhn.data import Batches, Pairs
from selhn.losses import MetaSPN, TripletHN
from selhn.training.optim import AdamW
from selhn.training.protocols.base import Protocol

NUDGE = 0.001
"""How far weights are moved along a gradient, as a length, to see how losses change with it.

DARTS (Liu et al., ICLR 2019) takes 0.01, within which hinges switch on and off here.
"""


class MetaStep(Protocol):
    """Before every update: would the weights make the next step a good one for pairs of the dev split?

    With theta the model, phi the weighting network, l_i the hinges of a batch and M the T-HN loss of a batch
    of dev:

        theta' = theta - lr grad_theta mean_i(w_i(phi) l_i(theta))
        grad_phi M(theta') = -lr mean_i(grad_phi w_i(phi) <grad_theta l_i(theta), v>),   v = grad_theta M(theta')

    Neither a second derivative nor a gradient for each anchor is needed: <grad l_i, v> is how l_i changes
    along v, the difference of two passes with theta moved a little both ways. lr is the rate that the run
    begins with, and theta' a plain gradient step, where the update that follows is AdamW's.

    The abstract names the validation set, so it is dev; the epoch is chosen on dev as well, which favours
    this loss there. Test stays out of it.
    """

    in_parts = False
    loss: MetaSPN

    def __post_init__(self) -> None:
        model, data, batches, config = self.model, self.data, self.batches, self.config
        loss = self.loss.to(batches.device)
        self._plain = TripletHN(loss.margin)
        on_gpu = batches.device.type == "cuda"
        weights = [{"params": list(loss.network.parameters())}]
        self._optimizer = AdamW(weights, loss.weight_lr, 0.0, batches.device)
        size = min(batches.batch_size, data.dev.num_texts)
        self._dev = Batches(
            data.dev, batches.tokenizer, size, seed=config.seed, device=batches.device, side=batches.side
        )
        self._image_of_text = data.dev.image_of_text.to(batches.device)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        may_record = on_gpu and self._dev.resident and config.capture != "never"
        # A recorded step cannot set seeds. Elsewhere they are set: a model may draw in ways not seen here.
        self.capturable = may_record and not drops

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, None]:
        seed = self.batches.generator.initial_seed()
        # The differences below are too small for half precision.
        with torch.autocast(batch.tokens.device.type, enabled=False):
            self._teach(replace(batch, regions=batch.regions.float()), self._draw_dev(), seed)
        return super().match(pairs, batch)

    def _draw_dev(self) -> Batch:
        """Other pairs of dev in every step, of one width and drawn on the device: it can be recorded."""
        order = torch.rand(
            self.data.dev.num_texts, generator=self.batches.generator, device=self.batches.device
        )
        rows = order.argsort()[: self._dev.batch_size]
        pairs = Pairs(rows, self._image_of_text[rows])
        return self._dev.assemble_seeded(pairs, int(self._dev.texts.lengths.max()))

    def _teach(self, batch: Batch, dev: Batch, seed: int) -> None:
        # Batch statistics and seeded random numbers are restored afterwards.
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        device = self._parameters[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=not self.capturable):
            scores = self._scores(batch, seed)
            steps = self._gradients(self.loss.per_anchor(scores, self.image_ids(batch)).mean())
            with _moved(self._parameters, steps, -self.config.lr):
                towards = self._gradients(self._plain(self._scores(dev, seed), self.image_ids(dev)))
            # Zero if all pairs of dev are separated: then nothing moves, and there is nothing to learn.
            length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(towards)))
            nudge = NUDGE / length.clamp(min=torch.finfo(length.dtype).tiny ** 0.5)
            ends = []
            for side in (nudge, -nudge):
                with _moved(self._parameters, towards, side), torch.no_grad():
                    ends.append(self._plain.per_anchor(self._scores(batch, seed), self.image_ids(batch)))
            change = (ends[0] - ends[1]) * (length / (2 * NUDGE))
        for buffer, before in buffers:
            buffer.copy_(before)
        meta = -self.config.lr * (self.loss.weights(scores, self.image_ids(batch)) * change).mean()
        self._optimizer.zero_grad()
        meta.backward()
        self._optimizer.step()

    def _scores(self, batch: Batch, seed: int) -> Float[Tensor, "*K B B"]:
        if not self.capturable:
            torch.manual_seed(seed)  # the same dropout in all passes, so that only the weights differ
        return self.model(batch).scores

    def _gradients(self, value: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value, self._parameters, allow_unused=True, materialize_grads=True)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser of the weighting network, which is itself part of the loss."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


@contextmanager
def _moved(parameters: Sequence[nn.Parameter], along: Sequence[Tensor], by: float | Tensor) -> Iterator[None]:
    """Parameters moved for a while, and then put back to the last bit."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        torch._foreach_add_(list(parameters), torch._foreach_mul(list(along), by))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), before)
