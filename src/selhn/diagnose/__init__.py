"""Why a training run does what it does: numbers of a step, and the stall alarm."""

from selhn.diagnose.figures import training_figure
from selhn.diagnose.probes import Norms, gradient_norms, parameter_norms, probe_scores, total_norm
from selhn.diagnose.stall import StallAlarm

__all__ = [
    "Norms",
    "StallAlarm",
    "gradient_norms",
    "parameter_norms",
    "probe_scores",
    "total_norm",
    "training_figure",
]
