"""What a loss may need in training beyond the scores of a batch; and a batch scored in two passes.

In two passes all pairs are scored without a gradient, and then again only those that have a gradient. A loss
of hardest negatives has gradients for the positives and for one negative per anchor: B of the B^2 pairs, and
2B for each maximum that it needs. It sees the whole matrix of the first pass, in which these pairs carry the
gradients of the second. Value and gradients are those of one pass. This does not hold for a loss with
gradients for all negatives, nor for a model whose scores depend on other pairs.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selhn.base.errors import SelhnError, warn
from selhn.base.ranks import Ranks, Shares
from selhn.base.tensor_files import check_fits
from selhn.base.types import Batch, Match, Products
from selhn.data import Batches, Data, Pairs
from selhn.kernels import MAXIMA, STATISTICS, Terms
from selhn.losses import AbstractLoss, Scheduled
from selhn.models import AbstractMatcher, CrossAttention, Twins, encode_batch
from selhn.models.matcher import trains_on_more
from selhn.ops import Fragments, remembering_nothing
from selhn.training.average import WeightAverage
from selhn.training.config import TrainConfig


@dataclass(eq=False, repr=False)
class Protocol:
    """How a loss is trained; this is the ordinary way, which needs nothing but scores.

    The loop calls `begin_epoch` before an epoch and `match` in every step, and keeps `state_dict` in checkpoints.
    A protocol does its work over the training set (labels, negatives) in `begin_epoch` and leaves the result
    in `tables`, with a row per text or image, on the device; `match` gathers from them for its pairs. Tables
    are filled in place, never replaced: a recorded step keeps reading where it was recorded.
    """

    networks = 1
    """How many networks the authors of the loss train together; `model.networks` changes it."""
    in_parts = True
    """Whether the parts of a batch may be encoded apart: by several processes, or one after the other."""
    needs_matrix = False
    """Whether `match` needs all scores of a batch at once, which losses of embeddings do not."""
    capturable = True
    """Whether `match` does the same work whatever the values are, so that a GPU can record the step."""

    model: AbstractMatcher
    loss: Any
    data: Data
    batches: Batches
    """The pairs of a step are rows of `data.train`; the generator is seeded for every step."""
    config: TrainConfig
    average: WeightAverage | None = None
    """The average of the model's weights, if the settings ask for one (`ema`); the loop updates it."""
    ranks: Ranks | None = None
    """The processes that train together; each has its part of every batch. None if this one is alone."""
    tables: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be trained in this way, and make the tables."""

    def begin_epoch(self, epoch: int) -> None:
        """Before the first step of an epoch; not if a run is resumed in the middle of one."""

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, Any]:
        """The scores of a batch, whose rows of the training set are `pairs`, and what the loss is `given`."""
        if self.config.two_pass and self.loss.mines:
            return match_in_two_passes(self.model, batch, self.loss, self.image_ids(batch), self.shares), None
        return self.scored(self.model, batch), None

    def scored(self, model: AbstractMatcher, batch: Batch) -> Match:
        """A model's scores of a batch; with several processes, each scores its own images with all texts."""
        shares = self.shares
        if shares is None and not self.config.chunk:
            return model(batch)
        images, texts = self.encoded(model, batch)
        if model.is_embedding and isinstance(self.loss, AbstractLoss) and not self.needs_matrix:
            return Match(Products(images, texts, shares))
        if shares is None:
            return Match(model.score(images, texts))
        rows = model.score(images, each_tensor(texts, lambda own: shares.gathered(own, same=False)))
        return Match(shares.gathered(rows.movedim(-2, 0), same=True).movedim(0, -2))

    def encoded(self, model: AbstractMatcher, batch: Batch) -> tuple[Any, Any]:
        """The images and texts of a batch, with `chunk` of so many pairs at a time.

        What is between the regions and tokens of a chunk and its embeddings is not kept: the backward pass,
        which starts at the embeddings, encodes each chunk again, with the same random numbers.
        """
        sizes = [len(batch.tokens)] if self.shares is None else self.shares.sizes
        # All processes make the same number of chunks: a batch norm needs the same chunk of each.
        number = min(-(-max(sizes) // self.config.chunk), *sizes, max(sizes)) if self.config.chunk else 1
        if number == 1:
            return encode_batch(model, batch)
        found = [
            checkpoint(encode_batch, model, batch.each(partial(_piece, number, at)), use_reentrant=False,
                       context_fn=lambda: (nullcontext(), remembering_nothing(model)))
            for at in range(number)
        ]  # fmt: skip
        images, texts = zip(*found)
        return torch.cat(images), torch.cat(texts)

    @property
    def shares(self) -> Shares | None:
        """How a batch is divided among processes."""
        return None if self.ranks is None else self.ranks.shares(self.batches.batch_size)

    def image_ids(self, batch: Batch) -> Int[Tensor, " B"] | None:
        """Images of all pairs, whose other captions are not negatives; None if the settings allow them."""
        if not self.config.mask_same_image:
            return None
        return batch.image_ids if self.shares is None else self.shares.gather(batch.image_ids)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model, the loss and their optimiser."""
        return dict(self.tables)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_fits(self.tables, state, f"{type(self).__name__} in the checkpoint")
        for name, table in self.tables.items():
            table.copy_(state[name])


def _piece(number: int, at: int, rows: Shaped[Tensor, "B *n"]) -> Shaped[Tensor, "b *n"]:
    return rows.tensor_split(number)[at]


def each_tensor(encoded: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a model has encoded, vectors or fragments, with every tensor changed."""
    return encoded.each(change) if isinstance(encoded, Fragments) else change(encoded)


def require_shareable(kind: type[Protocol], loss: object, config: TrainConfig, ranks: int) -> None:
    """Refuse a loss and settings that are not the same if the parts of a batch are encoded apart."""
    if ranks == 1 and not config.chunk:
        return
    if not kind.in_parts:
        raise SelhnError(
            f"{type(loss).__name__} is trained by {kind.__name__}, which needs whole batches in one process: "
            f"{_instead(ranks)}, or use another loss"
        )
    if config.capture == "always":
        raise SelhnError("capture=always records steps of one process and without chunk: leave capture=auto")


def require_shareable_model(model: AbstractMatcher, config: TrainConfig, ranks: int) -> None:
    """Refuse a model that is not the same if the parts of a batch are encoded apart, by processes or as chunks."""
    if ranks == 1 and not config.chunk:
        return
    name = model.name or type(model).__name__
    if trains_on_more(model):
        what = "has two networks" if isinstance(model, Twins) else "trains on more than its scores"
        raise SelhnError(f"{name} {what}, for which a batch must be whole: {_instead(ranks)}")
    if isinstance(model, CrossAttention) and not model.images_apart:
        raise SelhnError(
            f"the scores of {name} depend on the other pairs of a whole batch: {_instead(ranks)}"
        )
    if config.chunk and not model.is_embedding:
        raise SelhnError(
            f"chunk={config.chunk} saves the memory of encoders, and {name} needs most of it to "
            "compare regions with words: leave chunk=0, or use an embedding model such as rvse"
        )
    if config.chunk and any(isinstance(part, nn.BatchNorm1d) for part in model.modules()):
        warn(
            f"{name} has batch norms: with chunk={config.chunk} each takes its statistics from a "
            "chunk, and not from the whole batch"
        )


def _instead(ranks: int) -> str:
    return "start it without torchrun" if ranks > 1 else "leave chunk=0"


def require_two_pass(model: AbstractMatcher, loss: Callable[..., Tensor]) -> None:
    """Refuse a model or a loss for which two passes are not the same step."""
    if not (isinstance(model, CrossAttention) and model.pairs_apart) or trains_on_more(model):
        raise SelhnError(
            "two_pass=true scores some pairs again, apart from the others, and "
            f"{model.name or type(model).__name__} cannot: its scores are cheap, or depend on other pairs "
            "(as with the batch norm of saf); leave two_pass=false"
        )
    if not isinstance(loss, AbstractLoss):
        raise SelhnError(
            "two_pass=true must know which pairs get a gradient, which a function from outside does not "
            "tell: use a loss of selhn, or leave two_pass=false"
        )
    # A scheduled loss may come to need nothing but maxima; until then its steps are of one pass.
    changes = isinstance(loss, Scheduled) and loss.phase is not None
    if not changes and not loss.mines:
        sums = ", ".join(name for name in loss.needs if name not in MAXIMA)
        raise SelhnError(
            f"two_pass=true is for losses of hardest negatives, and {type(loss).__name__} has gradients for "
            f"all of them ({sums}): use hn, shn, sct or warmup, or leave two_pass=false"
        )


def match_in_two_passes(
    model: AbstractMatcher,
    batch: Batch,
    loss: AbstractLoss,
    image_ids: Int[Tensor, " B"] | None,
    shares: Shares | None = None,
) -> Match:
    """What `model(batch)` gives, as far as this loss can tell: all scores, and the gradients it needs.

    With several processes, each scores its own images with all texts, in both passes.
    """
    images, texts = encode_batch(model, batch)
    if shares is not None:
        texts = each_tensor(texts, partial(shares.gathered, same=False))
    with torch.no_grad():
        scores = model.score(images, texts)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        whole = scores if shares is None else shares.gather(scores)
        pairs = pulled_pairs(whole, image_ids, loss.needs)
        # A pair that is there twice, such as two that are each other's hardest negatives, must count once.
        counts = pairs.diff(prepend=pairs.new_full((1,), -1)) != 0
        if shares is not None:  # those of the own images, which are together
            pairs = pairs - shares.rows.start * len(whole)
            own = (pairs >= 0) & (pairs < scores.numel())
            pairs, counts = pairs[own], counts[own]
        image, text = pairs // len(whole), pairs % len(whole)
    # Otherwise the weights that autocast rounded above would be used below, where they need a gradient.
    torch.clear_autocast_cache()
    if isinstance(images, Fragments):
        # Once per item, not once per pair that the item is in.
        images, texts = images.with_gram(), texts.with_gram()
    again = model.activation(model.logits(images[image], texts[text], aligned=True))
    # The value stays that of the first pass to the last bit, so that the loss finds the same maxima.
    leads = (again - again.detach()).to(scores.dtype) * counts
    scores = scores.flatten().index_add(0, pairs, leads).view_as(scores)
    if shares is not None:
        scores = shares.gathered(scores, same=True)
    return Match(scores)


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
