"""What happened in a run: measurements per step, the stall alarm, verdicts on logs, figures."""

from selhn.diagnose.diagnosis import Diagnosis, diagnose
from selhn.diagnose.formats import read_foreign
from selhn.diagnose.held_out import how_it_ended
from selhn.diagnose.logs import Log, from_rows
from selhn.diagnose.plots import attention_figure, training_figure, verdict_figure
from selhn.diagnose.probe import (
    Norms,
    gradient_norms,
    parameter_norms,
    probe_embeddings,
    probe_scores,
    probe_split,
    total_norm,
)
from selhn.diagnose.stall import (
    Plateau,
    StallAlarm,
    epsilon_of,
    make_alarm,
    patience,
    plateaus,
    watched_plateau,
)
from selhn.diagnose.verdict import Verdict, judge
from selhn.diagnose.watch import Probe, Watch

__all__ = [
    "Diagnosis",
    "Log",
    "Norms",
    "Plateau",
    "Probe",
    "StallAlarm",
    "Verdict",
    "Watch",
    "attention_figure",
]
__all__ += ["diagnose", "epsilon_of", "from_rows", "gradient_norms", "how_it_ended", "judge", "make_alarm"]
__all__ += ["parameter_norms", "patience", "plateaus", "probe_embeddings", "probe_scores", "probe_split"]
__all__ += ["read_foreign", "total_norm", "training_figure", "verdict_figure", "watched_plateau"]
