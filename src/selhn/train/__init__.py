"""Training: the one loop, its settings, recipes for the paper's runs, checkpoints and the log."""

import sys
from types import ModuleType
from typing import Any

from selhn.train.config import RunConfig, TrainConfig, override
from selhn.train.log import read_log
from selhn.train.loop import Run, train
from selhn.train.measure import measure_runs, run_names
from selhn.train.recipes import RECIPES, describe_recipes, get_recipe, list_recipes
from selhn.train.run import open_run, resume_run, run_config, run_seeds

__all__ = [
    "RECIPES",
    "Run",
    "RunConfig",
    "TrainConfig",
    "describe_recipes",
    "get_recipe",
    "list_recipes",
    "measure_runs",
    "open_run",
    "override",
    "read_log",
    "resume_run",
    "run_config",
    "run_names",
    "run_seeds",
    "train",
]


class _CallableFolder(ModuleType):
    """`selhn.train(model, data, loss)` and `from selhn.train import get_recipe` are both natural, so both work."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableFolder
