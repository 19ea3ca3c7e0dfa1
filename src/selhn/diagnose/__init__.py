"""Why a training run does what it does: numbers of a step, and the stall alarm."""

from selhn.diagnose.figures import training_figure
from selhn.diagnose.probes import gradient_norms, probe_scores
from selhn.diagnose.stall import StallAlarm

__all__ = ["StallAlarm", "gradient_norms", "probe_scores", "training_figure"]
