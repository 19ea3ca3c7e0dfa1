"""accelerate: the loss of a prepared loop, over the batches of all processes, and the stall alarm in it."""

import torch

from selhn.base.errors import needs
from selhn.diagnose import Watch
from selhn.integrations.pairs import PairLoss, able_to_alert
from selhn.losses import AbstractLoss

with needs("accelerate"):
    from accelerate import Accelerator


def pair_loss(
    accelerator: Accelerator, model: torch.nn.Module, loss: AbstractLoss | str = "selhn", *, every: int = 10
) -> PairLoss:
    """The loss for a loop with `accelerator.backward(loss(image_emb, text_emb))`; also watches for stalls.

    Pass it the embeddings of this process: `accelerator.gather` has no gradient, so a loss on its output
    trains nothing. `accelerator.backward` divides by the steps of gradient accumulation. Trackers that can
    alert do so.

    Args:
        accelerator: the Accelerator of the loop.
        model: the trained model; a loss with parameters of its own must be a part of it.
        every: steps between two checks of the scores; 0 turns them off.
    """
    made = PairLoss(loss).to(accelerator.device)
    made.require_trained(model.parameters())
    if every:
        trackers = able_to_alert(getattr(one, "tracker", None) for one in accelerator.trackers)
        made.watch = Watch(made.loss, every=every, trackers=trackers)
    return made
