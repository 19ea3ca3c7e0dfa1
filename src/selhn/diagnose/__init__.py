"""Why a run and a model do what they do: numbers of a step, the stall alarm, pictures of attention."""

from selhn.diagnose.attention import attention_figure
from selhn.diagnose.figures import training_figure
from selhn.diagnose.probes import Norms, gradient_norms, parameter_norms, probe_scores, total_norm
from selhn.diagnose.stall import StallAlarm

__all__ = [
    "Norms",
    "StallAlarm",
    "attention_figure",
    "gradient_norms",
    "parameter_norms",
    "probe_scores",
    "total_norm",
    "training_figure",
]
