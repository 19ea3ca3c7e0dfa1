"""The stall alarm: one plain sentence when hardest-negative mining has brought training to a stop."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NEW_SHARE = 0.05
"""Of a new number in a running mean: about the last 20 steps count."""


@dataclass
class StallAlarm:
    """Watches the numbers of every step and speaks once, when the loss sits still at its margin.

    A stall is, without a break for `patience` steps: loss per anchor within 2 % of the margin, delta_s below epsilon,
    and scores that do not spread. The first says that a negative scores like the positive for every anchor, the
    second that the hardest one does, the third that it is not getting better. All three are running means: single
    batches differ by more than a stall does.
    """

    margin: float
    epsilon: float = 0.01
    patience: int = 300
    remedy: str = "train with TripletSelHN (loss=selhn), which averages over the negatives until they are told apart"
    means: dict[str, float] = field(default_factory=dict)
    """The running means of the three numbers."""
    since: int | None = None
    """The step at which the present still stretch began."""
    least_spread: float = 0.0
    """The smallest spread of the scores in that stretch."""
    said: str | None = None
    """What the alarm said, once it has gone off."""

    def update(self, step: int, row: Mapping[str, float]) -> str | None:
        """Take the numbers of one step; a sentence the moment the alarm goes off, else None."""
        for name in ("loss_per_anchor", "delta_s", "spread"):
            before = self.means.get(name, row[name])
            self.means[name] = before + NEW_SHARE * (row[name] - before)
        loss, delta_s, spread = self.means.values()
        if abs(loss - self.margin) > 0.02 * self.margin or delta_s >= self.epsilon:
            self.since = None
            return None
        if self.since is None or spread > 1.5 * self.least_spread:
            self.since, self.least_spread = step, spread
        self.least_spread = min(self.least_spread, spread)
        if self.said is not None or step - self.since < self.patience:
            return None
        self.said = (
            f"Training has stalled: for {step - self.since} steps the loss per anchor has sat at its margin "
            f"({loss:.4f}, margin {self.margin:g}): the hardest negative scores within "
            f"{delta_s:.4f} of the positive, and the scores do not spread. What helps: {self.remedy}."
        )
        return self.said
