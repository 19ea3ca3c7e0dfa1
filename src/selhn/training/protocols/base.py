"""What a loss may need in training beyond the scores of a batch, in one small protocol."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Int
from torch import Tensor

from selhn.base.types import Batch, Match
from selhn.data import Batches, Data, Pairs
from selhn.models import AbstractMatcher
from selhn.training.config import TrainConfig
from selhn.training.two_pass import match_in_two_passes


@dataclass(eq=False)
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
