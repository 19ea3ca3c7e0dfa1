"""A verdict on a run of ours, or on anyone's log."""

from pathlib import Path
from typing import Any

from selhn.diagnose import Verdict, judge, read_foreign
from selhn.diagnose.plateau import Plateau, plateaus
from selhn.diagnose.reading import Log
from selhn.train.loop import make_alarm
from selhn.train.run import make_loss, read_config


def diagnose(
    path: str | Path,
    *,
    column: str | None = None,
    margin: float | None = None,
    batch: int | None = None,
    reduction: str | None = None,
) -> tuple[Verdict, Log, float | None]:
    """The verdict on a run's folder or a log's file, the log it was read from, and the plateau of its loss.

    A run of ours says what loss it has. For all other logs `margin`, `batch` and `reduction` may be given, and are
    guessed where they are not.
    """
    path = Path(path)
    if (path / "log.jsonl").exists():
        return _of_run(path, column)
    if path.is_dir():
        path = _log_in(path)
    log = read_foreign(path, column)
    # Numbers of the scores say more than any guess at the loss.
    guess = "delta_s" not in log.columns or margin or batch or reduction
    ways = list(plateaus(margin, batch, reduction)) if guess else []
    verdict = judge(log, ways)
    here = min((way.value for way in ways), key=lambda value: abs(value - log.loss[-1]), default=None)
    return verdict, log, here if verdict.kind == "stalled" else None


def _of_run(run: Path, column: str | None) -> tuple[Verdict, Log, float | None]:
    log = read_foreign(run / "log.jsonl", column)
    settings: dict[str, Any] = {}
    plateau = None
    if (run / "config.yaml").exists():
        config = read_config(run)
        loss = make_loss(config)
        epochs = log.columns.get("epoch")
        last = 0 if epochs is None else int(epochs[-1])
        loss.set_epoch(last)
        alarm = make_alarm(loss, round(log.steps[-1] / (last + 1)))
        plateau = loss.plateau(config.train.batch_size)
        if alarm is not None:
            settings = {"epsilon": alarm.epsilon, "patience": alarm.patience, "remedy": alarm.remedy}
            settings["mines"] = loss.mines
    ways = [] if plateau is None else [Plateau(plateau, f"{plateau:.4g} an anchor")]
    return judge(log, ways, **settings), log, plateau


def _log_in(folder: Path) -> Path:
    """The one log in a folder that is not a run of ours."""
    found = sorted(one for one in folder.iterdir() if "tfevents" in one.name or one.suffix in (".jsonl", ".csv"))
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise ValueError(f"{folder} holds no run, and not one log ({names}): name the file")
    return found[0]
