"""The files of a training run: the only place that reads and writes them, independent of the loop."""

from selhn.runs.run_folder import OWN, Results, RunFolder, environment, find_runs
from selhn.runs.run_log import LogPart, read_log
from selhn.runs.weights import load_weights, save_weights

__all__ = ["OWN", "LogPart", "Results", "RunFolder", "environment", "find_runs"]
__all__ += ["load_weights", "read_log", "save_weights"]
