"""sentence-transformers: a loss of selhn over pairs, plain and with cached gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError, needs
from selhn.integrations.pairs import PairLoss
from selhn.losses import AbstractLoss, loss_settings

with needs("sentence-transformers>=6"):
    from sentence_transformers.base.losses.gradcache import CachedLossMixin


class SentencePairLoss(CachedLossMixin, torch.nn.Module):
    """A loss of selhn over (anchor, positive) pairs: images and captions, or two texts.

    A column of whole-number labels says which pairs belong together: those with one label are not negatives of each
    other. Negatives come from all processes; no setting is needed.

    Args:
        model: the SentenceTransformer that is trained.
        loss: a loss of selhn or its name.
        mini_batch_size: embed this many at a time, twice, and keep only their gradients: memory of a small
            batch, with the loss and the gradients of the large one. None embeds all at once.

    Example:
        >>> trainer = SentenceTransformerTrainer(model, train_dataset=pairs, loss=SentencePairLoss(model))
    """

    def __init__(
        self, model: torch.nn.Module, loss: AbstractLoss | str = "selhn", mini_batch_size: int | None = None
    ):
        super().__init__()
        if mini_batch_size is not None and mini_batch_size < 1:
            raise SelhnError(
                f"mini_batch_size must be at least 1, got {mini_batch_size}: None embeds all at once"
            )
        self.model, self.pair_loss = model, PairLoss(loss)
        self.uses_gradient_cache = mini_batch_size is not None
        self.mini_batch_size = mini_batch_size or 0

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, ""]:
        """The loss of a batch of two columns."""
        columns = list(sentence_features)
        if len(columns) != 2:
            raise SelhnError(
                f"this loss takes (anchor, positive) pairs, two columns, and the data set has {len(columns)}: it finds "
                "negatives in the batch; remove the columns of negatives"
            )
        if self.uses_gradient_cache:
            return CachedLossMixin.forward_cached(self, columns, labels)
        return self.pair_loss(*(self.model(column)["sentence_embedding"] for column in columns), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Float[Tensor, ""]:
        """The loss of the embeddings of all mini-batches."""
        value = self.pair_loss(torch.cat(reps[0]), torch.cat(reps[1]), labels)
        if with_backward:
            value.backward()
        return value.detach() if with_backward else value

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        loss = self.pair_loss.loss
        return {
            "loss": type(loss).__name__,
            **loss_settings(loss),
            "mini_batch_size": self.mini_batch_size or None,
        }
