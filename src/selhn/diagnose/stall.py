"""The stall alarm: one plain sentence when hardest-negative mining has brought training to a stop."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class StallAlarm:
    """Watches the numbers of every step and speaks once, when the loss sits still at its margin.

    A stall is, without a break for `patience` steps: loss per anchor within 2 % of the margin, delta_s below epsilon,
    and scores that do not spread. The first says that a negative scores like the positive for every anchor, the
    second that the hardest one does, the third that it is not getting better.
    """

    margin: float
    epsilon: float = 0.01
    patience: int = 300
    remedy: str = "train with TripletSelHN (loss=selhn), which averages over the negatives until they are told apart"
    since: int | None = None
    """The step at which the present still stretch began."""
    least_spread: float = 0.0
    """The smallest spread of the scores in that stretch."""
    said: str | None = None
    """What the alarm said, once it has gone off."""

    def update(self, step: int, row: Mapping[str, float]) -> str | None:
        """Take the numbers of one step; a sentence the moment the alarm goes off, else None."""
        still = abs(row["loss_per_anchor"] - self.margin) <= 0.02 * self.margin and row["delta_s"] < self.epsilon
        if not still:
            self.since = None
            return None
        if self.since is None or row["spread"] > 1.5 * self.least_spread:
            self.since, self.least_spread = step, row["spread"]
        self.least_spread = min(self.least_spread, row["spread"])
        if self.said is not None or step - self.since < self.patience:
            return None
        self.said = (
            f"Training has stalled: for {step - self.since} steps the loss per anchor has sat at its margin "
            f"({row['loss_per_anchor']:.4f}, margin {self.margin:g}): the hardest negative scores within "
            f"{row['delta_s']:.4f} of the positive, and the scores do not spread. What helps: {self.remedy}."
        )
        return self.said
