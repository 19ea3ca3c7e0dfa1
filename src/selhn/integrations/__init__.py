"""The losses and the stall alarm in other libraries' training loops; one file per library, loaded on use."""

from selhn.integrations.pairs import PairLoss

__all__ = ["PairLoss"]
