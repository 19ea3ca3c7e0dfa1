"""The losses and the stall alarm in other libraries' training loops; a file per library, imported when it is used."""

from selhn.integrations.pairs import PairLoss

__all__ = ["PairLoss"]
