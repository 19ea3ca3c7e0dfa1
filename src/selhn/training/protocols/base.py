"""What a loss may need in training beyond the scores of a batch; this one needs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.tensor_files import check_fits
from selhn.base.types import Batch, Match, Products
from selhn.data import Batches, Data, Pairs
from selhn.losses.base import as_ours
from selhn.models import AbstractMatcher
from selhn.training.average import WeightAverage
from selhn.training.config import TrainConfig
from selhn.training.protocols.shares import each_tensor, encode_in_chunks, instead
from selhn.training.protocols.two_pass import match_in_two_passes


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
    """The pairs of a step are rows of `data.train`; the generator is seeded for every step. Its `shares` say how
    processes that train together divide a batch."""
    config: TrainConfig
    average: WeightAverage | None = None
    """The average of the model's weights, if the settings ask for one (`ema`); the loop updates it."""
    tables: dict[str, Tensor] = field(default_factory=dict, init=False)

    @classmethod
    def require_shareable(cls, loss: object, config: TrainConfig, ranks: int) -> None:
        """Refuse a loss and settings that are not the same if the parts of a batch are encoded apart."""
        if ranks == 1 and not config.chunk:
            return
        if not cls.in_parts:
            raise SelhnError(
                f"{type(loss).__name__} is trained by {cls.__name__}, which needs whole batches in one process: "
                f"{instead(ranks)}, or use another loss"
            )
        if config.capture == "always":
            raise SelhnError(
                "capture=always records steps of one process and without chunk: leave capture=auto"
            )

    def __post_init__(self) -> None:
        """Refuse what cannot be trained in this way, and make the tables."""

    def begin_epoch(self, epoch: int) -> None:
        """Before the first step of an epoch; not if a run is resumed in the middle of one."""

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, Any]:
        """The scores of a batch, whose rows of the training set are `pairs`, and what the loss is `given`."""
        if self.config.two_pass and self.loss.mines:
            ids, shares = self.image_ids(batch), self.batches.shares
            return match_in_two_passes(self.model, batch, self.loss, ids, shares), None
        return self.scored(self.model, batch), None

    def scored(self, model: AbstractMatcher, batch: Batch) -> Match:
        """A model's scores of a batch; with several processes, each scores its own images with all texts."""
        shares, chunk = self.batches.shares, self.config.chunk
        if shares is None and not chunk:
            return model(batch)
        sizes = [len(batch.tokens)] if shares is None else shares.sizes
        images, texts = encode_in_chunks(model, batch, chunk, sizes)
        if model.is_embedding and as_ours(self.loss) is not None and not self.needs_matrix:
            return Match(Products(images, texts, shares))
        if shares is None:
            return Match(model.score(images, texts))
        rows = model.score(images, each_tensor(texts, lambda own: shares.gathered(own, same=False)))
        return Match(shares.gathered(rows.movedim(-2, 0), same=True).movedim(0, -2))

    def image_ids(self, batch: Batch) -> Int[Tensor, " B"] | None:
        """Images of all pairs, whose other captions are not negatives; None if the settings allow them."""
        if not self.config.mask_same_image:
            return None
        shares = self.batches.shares
        return batch.image_ids if shares is None else shares.gather(batch.image_ids)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model, the loss and their optimiser."""
        return dict(self.tables)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_fits(self.tables, state, f"{type(self).__name__} in the checkpoint")
        for name, table in self.tables.items():
            table.copy_(state[name])
