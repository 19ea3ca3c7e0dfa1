"""What only a few losses have, and inherit: a schedule, learnt parameters, an input beyond the scores."""

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from selhn.losses.checks import require_number


class Scheduled:
    """A loss that differs in its first epochs: call `set_epoch` at the start of every epoch."""

    warmup_epochs: int
    _epoch = 0

    def warm_up_for(self, epochs: int) -> None:
        """Set the number of epochs; 0 for no warm-up."""
        require_number("warmup_epochs", epochs)
        self.warmup_epochs = epochs

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss that epoch number `epoch` (from 0) begins."""
        self._epoch = epoch

    @property
    def warming_up(self) -> bool:
        """Whether this is one of the first `warmup_epochs` epochs."""
        return self._epoch < self.warmup_epochs

    @property
    def phase(self) -> Hashable:
        """What the loss computes now: steps recorded in one phase are not replayed in another."""
        return self.warming_up if self.warmup_epochs else None


class Learns:
    """A loss with parameters that are trained with the model, by the same optimiser."""

    @abstractmethod
    def learnt(self) -> list[nn.Parameter]:
        """The parameters that the optimiser of the model trains too."""

    def numbers(self) -> dict[str, Tensor]:
        """What a log records of them after each step."""
        return {}


class TakesGiven:
    """A loss that may be `given` more than scores; it sees what its `check_given` returns."""

    @abstractmethod
    def check_given(self, given: Any, batch: int) -> Any:
        """Refuse what does not fit a batch of that many pairs."""
