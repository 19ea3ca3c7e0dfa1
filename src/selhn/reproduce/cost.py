"""How long runs take beside one another: only for the order in which they are started."""

from collections.abc import Mapping

from selhn.training import RunConfig

STEP_COST: Mapping[str, float] = {"vse": 1, "rvse": 1, "rvsepp": 3, "scan": 3, "bfan": 6, "saf": 6, "sgr": 8}
"""Roughly, a step of a family of models."""
LOSS_COST: Mapping[str, float] = {"ncr": 2.5, "aoq": 3, "meta_spn": 10}
"""How much longer it takes with a loss that does more than score a batch."""


def cost(config: RunConfig) -> float:
    """Roughly how long a run takes beside others, so that the long ones begin first."""
    step = STEP_COST.get(config.model.partition("_")[0], 1) * LOSS_COST.get(config.loss, 1)
    return step * config.train.epochs * max(1.0, 128 / config.train.batch_size)
