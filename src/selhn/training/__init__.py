"""Training: the loop, its settings, recipes for the paper's runs, checkpoints and the log."""

from selhn.training.config import RunConfig, TrainConfig, override
from selhn.training.loop import Run, train
from selhn.training.recipes import RECIPES, describe_recipes, get_recipe, list_recipes
from selhn.training.run import (
    measure_runs,
    open_run,
    resume_run,
    run_config,
    run_names,
    run_seeds,
    score_runs,
)

__all__ = ["RECIPES", "Run", "RunConfig", "TrainConfig", "describe_recipes", "get_recipe", "list_recipes"]
__all__ += ["measure_runs", "open_run", "override", "resume_run", "run_config", "run_names", "run_seeds"]
__all__ += ["score_runs", "train"]
