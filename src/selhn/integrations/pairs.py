"""Shared by the adapters: the loss on two batches of embeddings, and the stall alarm's input."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from selhn.base.errors import SelhnError
from selhn.base.types import Products
from selhn.diagnose import Watch
from selhn.losses import AbstractLoss, across_ranks, create_loss
from selhn.losses.base import as_ours, learnt_by
from selhn.losses.checks import ImageIds

NAMES = (("image_embeds", "text_embeds"), ("image_features", "text_features"), ("image_emb", "text_emb"))
"""Names of the two embeddings in the outputs of models."""


class PairLoss(nn.Module):
    """A loss of selhn on the embeddings of B pairs: normalised, and over the batches of all processes.

    Without `torch.distributed` it is `loss.from_embeddings` of the normalised embeddings. With it, negatives come
    from all processes and the gradients are exact (`selhn.losses.across_ranks`), so nothing may be gathered before.

    Args:
        loss: a loss or its name, such as "selhn".
    """

    def __init__(self, loss: "AbstractLoss | PairLoss | str" = "selhn"):
        super().__init__()
        loss = (
            loss.loss if isinstance(loss, PairLoss) else create_loss(loss) if isinstance(loss, str) else loss
        )
        name = type(loss).__name__
        self.across_ranks = across_ranks(loss)
        if loss.phase is not None:
            raise SelhnError(
                f"{name} changes by epoch, which is not known here: use selhn, which needs no schedule"
            )
        if len(list(loss.parameters())) > len(learnt_by(loss)):
            raise SelhnError(
                f"{name} learns in steps of its own, which only selhn.train makes: use it there, or selhn"
            )
        self.watch: Watch | None = None
        """The alarm that listens to the training steps; `StallCallback` sets it."""

    @property
    def loss(self) -> AbstractLoss:
        return self.across_ranks.loss

    def forward(
        self, image_emb: Float[Tensor, "B d"], text_emb: Float[Tensor, "B d"], image_ids: ImageIds = None
    ) -> Float[Tensor, ""]:
        """The loss; pairs with equal `image_ids` are not negatives of each other."""
        image_emb, text_emb = normalize(image_emb, dim=1), normalize(text_emb, dim=1)
        value = self.across_ranks(image_emb, text_emb, image_ids)
        if self.watch is not None and self.training and torch.is_grad_enabled():
            self.watch(Products(image_emb.detach(), text_emb.detach()), value.detach(), image_ids)
        return value

    def require_trained(self, parameters: Iterable[nn.Parameter]) -> None:
        """Refuse a loss whose own parameters, such as a temperature, are not among those that are trained."""
        trained = {id(parameter) for parameter in parameters}
        if any(id(parameter) not in trained for parameter in learnt_by(self.loss)):
            name = type(self.loss).__name__
            raise SelhnError(
                f"{name} learns parameters of its own, and the optimiser does not have them: make the loss a part of "
                "the model first (model.pair_loss = loss), or choose settings that learn nothing"
            )


class Listener:
    """The base of every `StallCallback`: a `Watch` over the training steps of another library's loop.

    It listens to the `PairLoss` that it is given or that is a part of the model, else to what each step returns.

    Args:
        loss: the adapter with the `PairLoss`; or, if the scores come from `scores`, the loss of selhn or its name.
            For a loss from elsewhere leave it out: the scores alone decide.
        scores: from the outputs of a step to `scores[image, text]`. By default "scores", or both embeddings, whose
            cosines are then the scores, are looked up there by their names (`NAMES`).
        every, trackers: as in `selhn.diagnose.Watch`.
    """

    def __init__(
        self,
        loss: nn.Module | str | None = None,
        *,
        scores: Callable[[Any], Tensor | Products] | None = None,
        every: int = 10,
        trackers: Sequence[Any] = (),
    ):
        self.loss, self.scores = loss, scores or scores_of
        self.every, self.trackers = every, trackers
        self.watch: Watch | None = None
        self.parts: list[PairLoss] = []

    def start(self, model: nn.Module, steps_per_epoch: int, trackers: Iterable[Any] = ()) -> None:
        """Training begins."""
        named = self.loss if isinstance(self.loss, str) else as_ours(self.loss)
        source = self.loss if isinstance(self.loss, nn.Module) and named is None else model
        self.parts = [part for part in source.modules() if isinstance(part, PairLoss)]
        trackers = [*self.trackers, *able_to_alert(trackers)]
        loss = self.parts[0].loss if self.parts else named
        self.watch = Watch(loss, every=self.every, steps_per_epoch=steps_per_epoch, trackers=trackers)
        for part in self.parts:
            part.watch = self.watch

    def hear(self, outputs: Any) -> None:
        """Take the outputs of one step, unless a `PairLoss` has already reported it."""
        if self.watch is not None and not self.parts:
            self.watch(self.scores(outputs), outputs.get("loss") if isinstance(outputs, Mapping) else None)

    def stop(self) -> None:
        """Training has ended."""
        for part in self.parts:
            part.watch = None


def able_to_alert(trackers: Iterable[Any]) -> list[Any]:
    """The trackers with an `alert(title=, text=)`."""
    return [one for one in trackers if callable(getattr(one, "alert", None))]


def scores_of(outputs: Any) -> Float[Tensor, "B B"] | Products:
    """The scores among the outputs of a step, found by their names."""
    if isinstance(outputs, Mapping) and outputs.get("scores") is not None:
        return outputs["scores"].detach()
    images, texts = (normalize(one.detach().float(), dim=1) for one in embeddings_of(outputs))
    return Products(images, texts)


def embeddings_of(outputs: Any) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d"]]:
    """Both embeddings among the outputs of a model, found by their names."""
    found = dict(outputs) if isinstance(outputs, Mapping) else {}
    for image, text in NAMES:
        if found.get(image) is not None and found.get(text) is not None:
            return found[image], found[text]
    raise SelhnError(
        f"no embeddings of images and texts among the outputs ({', '.join(found) or type(outputs).__name__}): return "
        f"them in a dictionary as {NAMES[0][0]} and {NAMES[0][1]}; or tell StallCallback where to listen, "
        "StallCallback(loss) with the adapter, or StallCallback(scores=lambda outputs: ...)"
    )
