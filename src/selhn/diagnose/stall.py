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
    spread_then: float = 0.0
    rung: bool = False

    def update(self, step: int, row: Mapping[str, float]) -> str | None:
        """Take the numbers of one step; a sentence the moment the alarm goes off, else None."""
        still = abs(row["loss_per_anchor"] - self.margin) <= 0.02 * self.margin and row["delta_s"] < self.epsilon
        if not still:
            self.since = None
            return None
        if self.since is None or row["spread"] > 1.5 * self.spread_then:
            self.since, self.spread_then = step, row["spread"]
        if self.rung or step - self.since < self.patience:
            return None
        self.rung = True
        return (
            f"Training has stalled: for {step - self.since} steps the loss per anchor has been "
            f"{row['loss_per_anchor']:.4f}, its margin ({self.margin:g}), and the hardest negative scores within "
            f"{row['delta_s']:.4f} of the positive, so all embeddings have fallen together. "
            f"What helps: {self.remedy}."
        )
