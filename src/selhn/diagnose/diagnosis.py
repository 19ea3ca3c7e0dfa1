"""A verdict on a run of selhn, or on the log of any other program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import refuse_links
from selhn.diagnose.formats import read_foreign
from selhn.diagnose.logs import Log
from selhn.diagnose.stall import Plateau, StallAlarm, epsilon_of, make_alarm, plateaus
from selhn.diagnose.verdict import Verdict, judge
from selhn.losses import create_loss
from selhn.runs import OWN, RunFolder


class Diagnosis(NamedTuple):
    """A verdict, and what it was made from."""

    verdict: Verdict
    log: Log
    plateau: float | None
    """The value of the loss when all scores are equal, if known."""
    epsilon: float
    """The delta_s above which an anchor counts as separated, such as SelHN's epsilon."""


def diagnose(
    path: str | Path,
    *,
    column: str | None = None,
    margin: float | None = None,
    batch: int | None = None,
    reduction: str | None = None,
) -> Diagnosis:
    """The verdict on a run folder, a log file, or a log on standard input (`-`).

    A run of selhn names its loss in `config.yaml`. For all other logs give `margin`, `batch` and
    `reduction`; otherwise they are guessed.
    """
    path = Path(path)
    described = any(value is not None for value in (margin, batch, reduction))
    config = RunFolder(path).config if (path / "log.jsonl").exists() else None
    if config is not None and not str(config.get("loss")).startswith(OWN):
        if described:
            raise SelhnError(
                f"{path}/config.yaml already names the loss: leave out margin, batch and reduction"
            )
        return _of_run(RunFolder(path), config, column)
    if path.is_dir():
        known = (".jsonl", ".csv", ".log", "trainer_state.json")
        found = sorted(one for one in path.iterdir() if "tfevents" in one.name or one.name.endswith(known))
        found = [one for one in found if one.name == "log.jsonl"] or found
        if len(found) != 1:
            names = ", ".join(one.name for one in found)
            what = f"several logs ({names}): name one" if found else "no run and no log: name a file"
            raise SelhnError(f"{path} has {what}")
        refuse_links(path, [found[0].name])
        path = found[0]
    log = read_foreign(path, column)
    # Measured scores say more than a guess about the loss.
    guess = "delta_s" not in log.columns or described
    ways = list(plateaus(margin, batch, reduction)) if guess else []
    verdict = judge(log, ways)
    here = min((way.value for way in ways), key=lambda value: abs(value - log.loss[-1]), default=None)
    return Diagnosis(verdict, log, here if verdict.kind == "stalled" else None, StallAlarm.epsilon)


def _of_run(run: RunFolder, config: Mapping[str, Any], column: str | None) -> Diagnosis:
    name, settings, training = (config.get(key) for key in ("loss", "loss_settings", "train"))
    batch = training.get("batch_size") if isinstance(training, dict) else None
    if not (isinstance(name, str) and isinstance(settings, dict) and isinstance(batch, int)):
        path = run.file("config.yaml")
        raise Damaged(f"{path} has no loss, loss_settings or batch_size: restore it, or start the run again")
    loss = create_loss(name, **settings)
    log = read_foreign(run.log_path, column)
    epochs = log.columns.get("epoch")
    last = 0 if epochs is None or not epochs[-1] > 0 else int(min(epochs[-1], 1e9))
    loss.set_epoch(last)
    alarm = make_alarm(loss, round(log.steps[-1] / (last + 1)))
    assert alarm is not None
    ways, value = [], loss.plateau(batch)
    if value is not None and log.loss_name == "loss" and loss.reduction == "sum":
        ways = [Plateau(2 * batch * value, f"{value:.4g} for each of {2 * batch} anchors")]
    elif value is not None and log.loss_name in ("loss", "loss_per_anchor"):
        ways = [Plateau(value, f"{value:.4g} per anchor")]
    epsilon, patience = alarm.epsilon, alarm.patience
    verdict = judge(log, ways, epsilon=epsilon, patience=patience, mines=loss.mines, remedy=alarm.remedy)
    return Diagnosis(verdict, log, ways[0].value if ways else None, epsilon_of(loss))
