"""What a loss may need in training beyond the scores of a batch; and a batch scored in two passes.

In two passes all pairs are scored without a gradient, and then again only those that have a gradient. A loss
of hardest negatives has gradients for the positives and for one negative per anchor: B of the B^2 pairs, and
2B for each maximum that it needs. It sees the whole matrix of the first pass, in which these pairs carry the
gradients of the second. Value and gradients are those of one pass. This does not hold for a loss with
gradients for all negatives, nor for a model whose scores depend on other pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Batches, Data, Pairs
from selhn.kernels import MAXIMA, STATISTICS, Terms
from selhn.layers import Fragments
from selhn.losses import AbstractLoss, Scheduled
from selhn.models import AbstractMatcher, CrossAttention, encode_batch
from selhn.training.average import WeightAverage
from selhn.training.config import TrainConfig


@dataclass(eq=False, repr=False)
class Protocol:
    """How a loss is trained; this is the ordinary way, which needs nothing but scores.

    The loop calls `begin_epoch` before an epoch and `match` in every step, and keeps `state` in checkpoints.
    A protocol does its work over the training set (labels, negatives) in `begin_epoch` and leaves the result
    in `tables`, with a row per text or image, on the device; `match` gathers from them for its pairs. Tables
    are filled in place, never replaced: a recorded step keeps reading where it was recorded.
    """

    networks = 1
    """How many networks the authors of the loss train together; `model.networks` changes it."""
    capturable = True
    """Whether `match` does the same work whatever the values are, so that a GPU can record the step."""

    model: AbstractMatcher
    loss: Any
    data: Data
    batches: Batches
    """The pairs of a step are rows of `data.train`; the generator is seeded for every step."""
    config: TrainConfig
    average: WeightAverage | None = None
    """Of the weights of the model, if the settings ask for it (`ema`); the loop keeps it."""
    tables: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be trained in this way, and make the tables."""

    def begin_epoch(self, epoch: int) -> None:
        """Before the first step of an epoch; not if a run is resumed in the middle of one."""

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, Any]:
        """The scores of a batch, whose rows of the training set are `pairs`, and what the loss is `given`."""
        if self.config.two_pass:
            return match_in_two_passes(self.model, batch, self.loss, self.image_ids(batch)), None
        return self.model(batch), None

    def image_ids(self, batch: Batch) -> Int[Tensor, " B"] | None:
        """Images of the pairs, whose other captions are no negatives; None if the settings allow them."""
        return batch.image_ids if self.config.mask_same_image else None

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the model, the loss and their optimiser."""
        return dict(self.tables)

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name, table in self.tables.items():
            table.copy_(state[name])


def require_two_pass(model: AbstractMatcher, loss: Callable[..., Tensor]) -> None:
    """Refuse a model or a loss for which two passes are not the same step."""
    if not (isinstance(model, CrossAttention) and model.pairs_apart):
        raise SelhnError(
            f"two_pass=true scores some pairs again, apart from the others, and {model.name or type(model).__name__} "
            "cannot: its scores are cheap, or depend on other pairs (as with the batch norm of saf); "
            "leave two_pass=false"
        )
    if not isinstance(loss, AbstractLoss):
        raise SelhnError(
            "two_pass=true must know which pairs get a gradient, which a function from outside does not tell: "
            "use a loss of selhn, or leave two_pass=false"
        )
    # A scheduled loss may come to need nothing but maxima; until then its steps are of one pass.
    changes = isinstance(loss, Scheduled) and loss.phase is not None
    if not changes and not loss.mines:
        sums = ", ".join(name for name in loss.needs if name not in MAXIMA)
        raise SelhnError(
            f"two_pass=true is for losses of hardest negatives, and {type(loss).__name__} has gradients for all of "
            f"them ({sums}): use hn, shn, sct or warmup, or leave two_pass=false"
        )


def match_in_two_passes(
    model: AbstractMatcher, batch: Batch, loss: Callable[..., Tensor], image_ids: Int[Tensor, " B"] | None
) -> Match:
    """What `model(batch)` gives, as far as this loss can tell: all scores, and the gradients it needs."""
    if not isinstance(loss, AbstractLoss) or not loss.mines:
        return model(batch)
    images, texts = encode_batch(model, batch)
    with torch.no_grad():
        scores = model.score(images, texts)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        pairs = pulled_pairs(scores, image_ids, loss.needs)
        image, text = pairs // len(scores), pairs % len(scores)
        # A pair that is there twice, such as two that are each other's hardest negatives, must count once.
        counts = pairs.diff(prepend=pairs.new_full((1,), -1)) != 0
    # Weights that autocast has rounded above would else be taken below, where they need a gradient.
    torch.clear_autocast_cache()
    if isinstance(images, Fragments):
        # Once for every item, and not for every pair that it is in.
        images, texts = images.with_gram(), texts.with_gram()
    again = model.activation(model.logits(images[image], texts[text], aligned=True))
    # The value stays that of the first pass to the last bit, so that the loss takes the same maxima as were
    # taken here.
    leads = (again - again.detach()).to(scores.dtype) * counts
    return Match(scores.flatten().index_add(0, pairs, leads).view_as(scores), model.auxiliary(batch, images, texts))


def pulled_pairs(
    scores: Float[Tensor, "B B"], image_ids: Int[Tensor, " B"] | None, maxima: tuple[str, ...]
) -> Int[Tensor, " P"]:
    """`image * B + text` of the positives and of all anchors' maxima, in order, some perhaps more than once.

    P = B + 2B len(maxima) whatever the scores are, and nothing waits for the device.
    """
    batch = len(scores)
    here = torch.arange(batch, device=scores.device)
    images = here if image_ids is None else image_ids
    negatives = scores.masked_fill(images[:, None] == images, -torch.inf)
    positive = scores.diagonal()[:, None]
    pairs = [here * batch + here]
    for name in maxima:
        term = STATISTICS[name].term
        pairs.append(here * batch + term(negatives, positive, Terms()).max(dim=1).indices)
        pairs.append(term(negatives.mT, positive, Terms()).max(dim=1).indices * batch + here)
    return torch.cat(pairs).sort().values
