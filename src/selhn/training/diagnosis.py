"""A verdict on a run of ours, or on anyone's log."""

from pathlib import Path
from typing import Any, NamedTuple

from selhn.base.errors import SelhnError
from selhn.diagnose import StallAlarm, Verdict, judge, make_alarm, read_foreign
from selhn.diagnose.logs import Log
from selhn.diagnose.plateau import Plateau, plateaus
from selhn.losses import AbstractLoss
from selhn.training.run import make_loss, read_config


class Diagnosis(NamedTuple):
    """A verdict, and what it was made from."""

    verdict: Verdict
    log: Log
    plateau: float | None
    """Where the loss of the log sits when all scores are equal, if that is known."""
    epsilon: float
    """The delta_s below which scores are held to be equal."""


def diagnose(
    path: str | Path,
    *,
    column: str | None = None,
    margin: float | None = None,
    batch: int | None = None,
    reduction: str | None = None,
) -> Diagnosis:
    """The verdict on a run's folder or a log's file.

    A run of ours says in its `config.yaml` what loss it has. For all other logs `margin`, `batch` and `reduction` may
    be given, and are guessed where they are not.
    """
    path = Path(path)
    if (path / "config.yaml").exists() and (path / "log.jsonl").exists():
        if margin or batch or reduction:
            raise SelhnError(f"{path} says in config.yaml what loss it has: leave margin, batch and reduction out")
        return _of_run(path, column)
    if path.is_dir():
        path = _log_in(path)
    log = read_foreign(path, column)
    # Numbers of the scores say more than any guess at the loss.
    guess = "delta_s" not in log.columns or margin or batch or reduction
    ways = list(plateaus(margin, batch, reduction)) if guess else []
    verdict = judge(log, ways)
    here = min((way.value for way in ways), key=lambda value: abs(value - log.loss[-1]), default=None)
    return Diagnosis(verdict, log, here if verdict.kind == "stalled" else None, StallAlarm.epsilon)


def _of_run(run: Path, column: str | None) -> Diagnosis:
    log = read_foreign(run / "log.jsonl", column)
    settings: dict[str, Any] = {}
    config = read_config(run)
    loss = make_loss(config)
    epochs = log.columns.get("epoch")
    last = 0 if epochs is None else int(epochs[-1])
    loss.set_epoch(last)
    alarm = make_alarm(loss, round(log.steps[-1] / (last + 1)))
    plateau = _plateau(loss, config.train.batch_size, log.loss_name)
    if alarm is not None:
        settings = {"epsilon": alarm.epsilon, "patience": alarm.patience, "remedy": alarm.remedy}
        settings["mines"] = loss.mines
    ways = [] if plateau is None else [Plateau(*plateau)]
    verdict = judge(log, ways, **settings)
    return Diagnosis(verdict, log, plateau and plateau[0], settings.get("epsilon", StallAlarm.epsilon))


def _plateau(loss: AbstractLoss, batch: int, column: str) -> tuple[float, str] | None:
    """The plateau of a column of our log, and its name."""
    value = loss.plateau(batch)
    if value is None or column not in ("loss", "loss_per_anchor"):
        return None
    if column == "loss" and loss.reduction == "sum":
        return 2 * batch * value, f"{value:.4g} for each of {2 * batch} anchors"
    return value, f"{value:.4g} an anchor"


def _log_in(folder: Path) -> Path:
    """The one log in a folder without a configuration."""
    if (folder / "log.jsonl").exists():
        return folder / "log.jsonl"
    found = sorted(one for one in folder.iterdir() if "tfevents" in one.name or one.suffix in (".jsonl", ".csv"))
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise SelhnError(f"{folder} holds no run, and not one log ({names}): name the file")
    return found[0]
