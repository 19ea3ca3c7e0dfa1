"""Lightning: a mixin for a module of two towers, and the stall alarm as a callback."""

import sys
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import needs
from selhn.integrations.pairs import Listener, PairLoss
from selhn.losses import AbstractLoss

# The package has two names, and a callback belongs to one of them: the one that the program uses.
with needs("lightning"):
    if "pytorch_lightning" in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback


class PairModuleMixin:
    """`class MyModule(PairModuleMixin, LightningModule)` with `encode(batch)`: trains it with a loss of selhn.

    `encode` returns `image_emb, text_emb`, or these and `image_ids`. The loss is `self.pair_loss`: its parameters, if
    it has any, are among `self.parameters()`. Embeddings of other processes come from `across_ranks`, whose gradients
    are those of `self.all_gather(embeddings, sync_grads=True)`; do not gather before.
    """

    def __init__(self, *arguments: Any, pair_loss: AbstractLoss | str = "selhn", **settings: Any):
        super().__init__(*arguments, **settings)
        self.pair_loss = PairLoss(pair_loss)

    def encode(self, batch: Any) -> tuple[Tensor, ...]:
        """Both embeddings of a batch of pairs."""
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Float[Tensor, ""]:
        return self._step(batch, "train_loss")

    def validation_step(self, batch: Any, batch_idx: int) -> Float[Tensor, ""]:
        return self._step(batch, "val_loss")

    def _step(self, batch: Any, name: str) -> Float[Tensor, ""]:
        embeddings = self.encode(batch)
        value = self.pair_loss(*embeddings)
        self.log(name, value, prog_bar=True, batch_size=len(embeddings[0]))  # type: ignore[attr-defined]
        return value


class StallCallback(Listener, Callback):
    """Warns when training stalls: `Trainer(callbacks=[StallCallback()])`.

    Without a `PairLoss` in the module, `training_step` returns a dictionary with "loss" and with "scores" or both
    embeddings (see `Listener`). The loggers that can alert do so.
    """

    def on_train_start(self, trainer: Any, pl_module: torch.nn.Module) -> None:
        batches = trainer.num_training_batches
        steps = int(batches) if batches < float("inf") else 0
        self.start(pl_module, steps, [getattr(logger, "experiment", None) for logger in trainer.loggers])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.hear(outputs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.stop()
