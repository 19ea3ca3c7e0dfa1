"""Trackers for the curves of a run: TensorBoard, Weights & Biases, trackio, MLflow, or your own object."""

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from selhn.base.errors import SelhnError, needs
from selhn.base.files import refuse_links
from selhn.base.names import did_you_mean, flat
from selhn.runs import RunFolder

Rows = Sequence[Mapping[str, Any]]


class Tracker:
    """An object with `log(dict, step=)` and optionally `alert(title=, text=)`."""

    def __init__(self, run: Any):
        self.run = run

    @classmethod
    def start(cls, folder: RunFolder, name: str) -> "Tracker":
        """A new run of this tracker."""
        raise NotImplementedError

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Record the run's settings; an object that only logs gets neither settings nor a table."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def alert(self, title: str, text: str, step: int) -> None:
        if callable(getattr(self.run, "alert", None)):
            self.run.alert(title=title, text=text)

    def table(self, name: str, rows: Rows, step: int) -> None:
        """Record a table of results."""

    def flush(self) -> None:
        """Send what is still queued."""

    def close(self, finished: bool) -> None:
        self.run.finish()


class TensorBoard(Tracker):
    """TensorBoard's `SummaryWriter`, which writes into the folder of the run."""

    @classmethod
    def start(cls, folder: RunFolder, name: str) -> "Tracker":
        with needs("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        return cls(SummaryWriter(None if folder.path is None else str(folder.path)))

    def describe(self, settings: Mapping[str, Any]) -> None:
        self.table("settings", [{"setting": key, "value": value} for key, value in settings.items()], 0)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.run.add_scalar(name, value, step)

    def alert(self, title: str, text: str, step: int) -> None:
        self.run.add_text("alarm", text, step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        cells = [list(rows[0]), ["---"] * len(rows[0]), *([str(one) for one in row.values()] for row in rows)]
        self.run.add_text(name, "\n".join(f"| {' | '.join(row)} |" for row in cells), step)

    def close(self, finished: bool) -> None:
        self.run.close()


class WandB(Tracker):
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on the disk, in the folder of the run."""

    library = "wandb"

    @classmethod
    def start(cls, folder: RunFolder, name: str) -> "Tracker":
        with needs("wandb"):
            import wandb
        if folder.path is not None:  # in which wandb makes one of these, and links of its own within it
            refuse_links(folder.path, ["wandb", ".wandb"], deep=False)
        where = {} if folder.path is None else {"dir": str(folder.path)}
        return cls(wandb.init(project="selhn", name=name, **where))

    def describe(self, settings: Mapping[str, Any]) -> None:
        self.run.config.update(dict(settings), allow_val_change=True)

    def table(self, name: str, rows: Rows, step: int) -> None:
        table = importlib.import_module(self.library).Table
        self.run.log(
            {name: table(columns=list(rows[0]), data=[list(row.values()) for row in rows])}, step=step
        )


class Trackio(WandB):
    """A run of trackio, on this machine."""

    library = "trackio"

    @classmethod
    def start(cls, folder: RunFolder, name: str) -> "Tracker":
        with needs("trackio"):
            import trackio
        return cls(trackio.init(project="selhn", name=name, embed=False))

    def describe(self, settings: Mapping[str, Any]) -> None:
        self.run.config.update(settings)


class MLflow(Tracker):
    """A run of MLflow, where `MLFLOW_TRACKING_URI` says; without it in `mlflow.db`, an SQLite file."""

    EXPERIMENT, MOST = "selhn", 1000

    def __init__(self, run: Any):
        super().__init__(run)
        from mlflow import MlflowClient

        self.client, self.id, self.waiting = MlflowClient(), run.info.run_id, list[Any]()

    @classmethod
    def start(cls, folder: RunFolder, name: str) -> "Tracker":
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with needs("mlflow"):
            import mlflow
        client = mlflow.MlflowClient()
        found = client.get_experiment_by_name(cls.EXPERIMENT)
        experiment = client.create_experiment(cls.EXPERIMENT) if found is None else found.experiment_id
        return cls(client.create_run(experiment, run_name=name))

    def describe(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        self.client.log_batch(self.id, params=[Param(key, str(value)) for key, value in settings.items()])

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        allowed = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in numbers.items()}
        self.waiting += [Metric(name, value, now, step) for name, value in allowed.items()]
        if len(self.waiting) >= self.MOST:  # a transaction for each step would take longer than the step
            self.flush()

    def flush(self) -> None:
        for first in range(0, len(self.waiting), self.MOST):
            self.client.log_batch(self.id, metrics=self.waiting[first : first + self.MOST])
        self.waiting = []

    def alert(self, title: str, text: str, step: int) -> None:
        self.client.set_tag(self.id, "alarm", text)

    def table(self, name: str, rows: Rows, step: int) -> None:
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
        self.client.log_dict(self.id, table, f"{name}.json")
        if len(rows) == 1:
            for key, value in rows[0].items():
                self.client.set_tag(self.id, f"{name}.{key}", value)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "FAILED")


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio, "mlflow": MLflow
}  # fmt: skip


class Trackers:
    """All trackers of a run."""

    def __init__(self, each: Sequence[Tracker] = ()):
        self.each = each

    def log(self, row: Mapping[str, Any]) -> None:
        """A row of the log; nested names are joined by a dot, and what is not a number is left out."""
        step = row["step"]
        numbers = {name: value for name, value in flat(row).items() if isinstance(value, (int, float))}
        for tracker in self.each:
            tracker.log(
                {name: value for name, value in numbers.items() if name not in ("step", "epoch")}, step
            )

    def alert(self, said: str, step: int) -> None:
        for tracker in self.each:
            tracker.alert(said.split(":")[0], said, step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        rows = [flat(row) for row in rows]
        for tracker in self.each:
            tracker.table(name, rows, step)


def known_trackers(track: Any, folder: RunFolder) -> list[Any]:
    """The trackers that `track` names or holds; None: TensorBoard, if installed and the run has a folder."""
    if track is None:
        return ["tensorboard"] if folder.path and importlib.util.find_spec("tensorboard") else []
    wanted = (
        track.split(",") if isinstance(track, str) else track if isinstance(track, (list, tuple)) else [track]
    )
    for one in wanted:
        if isinstance(one, str) and one not in TRACKERS:
            raise SelhnError(f"track={one!r} is not a known tracker: {did_you_mean(one, TRACKERS)}")
        if not isinstance(one, str) and kind_of(one) is Tracker and not callable(getattr(one, "log", None)):
            raise SelhnError(
                f"track={one!r} has no log(dict, step=): give an object that has, or one of {[*TRACKERS]}"
            )
    return list(wanted)


@contextmanager
def tracked(
    wanted: Sequence[Any], folder: RunFolder, model: str, settings: Mapping[str, Any]
) -> Iterator[Trackers]:
    """The trackers of a run; named ones are started here and closed at the end."""
    name = model if folder.path is None else "-".join(folder.path.parts[-2:]).strip("-/")
    each: list[Tracker] = []
    finished = False
    try:
        for one in wanted:
            each.append(TRACKERS[one].start(folder, name) if isinstance(one, str) else kind_of(one)(one))
            each[-1].describe(flat(settings))
        yield Trackers(each)
        finished = True
    finally:
        for one, tracker in zip(wanted, each, strict=False):
            tracker.flush()
            if isinstance(one, str):
                tracker.close(finished)


def kind_of(run: object) -> type[Tracker]:
    """The tracker class for a run object that was started elsewhere."""
    package = type(run).__module__
    return TensorBoard if "tensorboard" in package else TRACKERS.get(package.partition(".")[0], Tracker)
