"""A log as columns of numbers, from any program."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import did_you_mean

Column = npt.NDArray[np.float64]
Clock = Literal["step", "row"]
MOST_ROWS = 2_000_000
DEEPEST = 8
"""Depth to which nested objects of a row are read."""
LOSS = (
    "loss_per_anchor",
    "loss",
    "train_loss",
    "training_loss",
    "loss_train",
    "batch_loss",
    "total_loss",
    "le",
)
STEP = ("step", "global_step", "iteration", "iter", "eiters", "eit", "batch", "steps")
SCORES = ("delta_s", "s_p", "s_n", "spread")
"""What is measured of the scores of a step."""
EPOCH = ("epoch", "epochs")
DEV_RSUM = ("dev_rsum", "rsum", "val_rsum", "valid_rsum", "test_rsum", "r_sum")
DEV_LOSS = ("dev_loss", "val_loss", "valid_loss", "validation_loss", "loss_val", "eval_loss", "test_loss")
HELD_OUT = re.compile("(?<![a-z])(?:val|dev|test|eval)")
STEPS_A_ROW = 100
"""Steps that a row stands for in a log without steps: such logs have few rows for many steps."""


@dataclass(frozen=True)
class Log:
    """What a verdict is made from."""

    source: str
    steps: Column
    """The step of every row of `columns`."""
    columns: Mapping[str, Column]
    """`loss`, and `delta_s`, `spread`, gradient norms and others if logged; NaN if a row has none."""
    evaluated: Mapping[str, Column] = field(default_factory=dict)
    """Columns found only in rows without a loss, such as those of `probe_split` at the end of an epoch."""
    loss_name: str = "loss"
    """What the log calls its loss."""
    dev: Sequence[tuple[float, float]] = field(default=())
    """Step and RSUM of every evaluation."""
    dev_loss: Sequence[tuple[float, float]] = field(default=())
    """Step and loss of every evaluation, if the log has it."""
    unfit: Mapping[str, Column] = field(default_factory=dict)
    """Steps at which a number of the scores is given that is not a finite number."""
    clock: Clock = "step"
    """What the log counts: "row" if it does not say at which step a row was written."""
    steps_a_row: int = 1
    """Steps that a row then stands for."""

    @property
    def loss(self) -> Column:
        return self.columns["loss"]

    def place(self, step: float) -> int:
        """A number of `steps` as the log counts it."""
        return int(step) // self.steps_a_row

    def when(self, step: float) -> str:
        return f"{self.clock} {self.place(step):,}"

    def where(self, kept: npt.NDArray[np.bool_]) -> "Log":
        columns = {name: column[kept] for name, column in self.columns.items()}
        return replace(self, steps=self.steps[kept], columns=columns)

    def thinned(self, most: int) -> "Log":
        """At most this many rows; neighbouring rows are merged, keeping each column's first number."""
        every = -(-len(self.steps) // most)
        if every == 1:
            return self
        short = -len(self.steps) % every

        def thin(column: Column) -> Column:
            rows = np.pad(column, (0, short), constant_values=np.nan).reshape(-1, every)
            return rows[np.arange(len(rows)), np.isfinite(rows).argmax(axis=1)]

        columns = {name: thin(column) for name, column in self.columns.items()}
        return replace(self, steps=self.steps[::every], columns=columns)


def from_rows(rows: Iterable[Mapping[str, Any]], source: str = "log", column: str | None = None) -> Log:
    """A log from its rows; nested names are joined by a dot, and what is not a number is left out."""
    table = _Table(rows, source)
    loss = table.loss_name(column)
    at, counter, steps_a_row = table.clock()
    trained = table.has(loss)
    with_loss = {name for row in table.rows if loss in row for name in row} - {counter, "loss"} | {loss}
    shown = {"loss" if name == loss else name: name for name in table.names if name in with_loss}
    evaluated = [name for name in table.names if name not in {*with_loss, counter, "loss"}]

    def pairs(wanted: Sequence[str]) -> list[tuple[float, float]]:
        values = table.column(table.find(wanted))
        finite = np.isfinite(values)
        return list(zip(at[finite].tolist(), values[finite].tolist()))

    return Log(
        source,
        at[trained],
        {ours: table.column(name)[trained] for ours, name in shown.items()},
        {name.removeprefix("probe."): table.column(name)[table.has(name)] for name in evaluated},
        loss,
        pairs(DEV_RSUM),
        pairs(DEV_LOSS),
        {name: at[table.has(name) & ~np.isfinite(table.column(name))] for name in SCORES if name in shown},
        "step" if steps_a_row is None else "row",
        steps_a_row or 1,
    )


class _Table:
    """Rows of numbers, read by name."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], source: str):
        self.source = source
        self.rows = [dict(_numbers(row)) for row in islice(rows, MOST_ROWS + 1)]
        if len(self.rows) > MOST_ROWS:
            raise SelhnError(f"{source} has more than {MOST_ROWS:,} rows: keep every tenth")
        self.names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.plain: dict[str, list[str]] = {}
        """Normalised names: `train/loss` and `a run - train/loss` (wandb) become `train_loss`."""
        for name in self.names:
            self.plain.setdefault(re.sub(r"[/. -]", "_", name.lower().rpartition(" - ")[2]), []).append(name)

    def column(self, name: str | None) -> Column:
        """NaN in the rows that do not have it."""
        return np.array([row.get(name, math.nan) if name else math.nan for row in self.rows])

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """Which rows have it, even as NaN."""
        return np.array([name in row for row in self.rows], dtype=bool)

    def find(self, wanted: Sequence[str]) -> str | None:
        """The first of the wanted names, unless several columns have it."""
        found = next((self.plain[name] for name in wanted if name in self.plain), [])
        return found[0] if len(found) == 1 else None

    def clock(self) -> tuple[Column, str | None, int | None]:
        """The step of each row, the column that says so, and what a row stands for if no column does."""
        step = self.find(STEP)
        told = self.column(step)
        known = told[np.isfinite(told)]
        # A counter that starts again with every epoch does not tell the step.
        if len(known) and (np.diff(known) >= 0).all() and (known[-1] > known[0] or len(known) == 1):
            at = np.maximum.accumulate(np.where(np.isfinite(told), told, -np.inf))
            return np.where(np.isfinite(at), at, 0.0), step, None
        counts_for = 1 if len(self.rows) > 2 * STEPS_A_ROW else STEPS_A_ROW
        return np.arange(1.0, len(self.rows) + 1) * counts_for, step or self.find(EPOCH), counts_for

    def loss_name(self, column: str | None) -> str:
        names = self.names
        if not names:
            raise SelhnError(
                f"{self.source} contains no numbers that could be a loss: name the log of a training run"
            )
        if column is not None and column not in names:
            raise NotFound(
                f"{self.source} has no column {column!r} with numbers: {did_you_mean(column, names)}"
            )
        likely = [one for one in names if "loss" in one.lower() and not HELD_OUT.search(one.lower())]
        found = column or self.find(LOSS) or (likely[0] if len(likely) == 1 else None)
        if found is None:
            listed = ", ".join(names[:20])
            what = "give the probe loss= as well" if "delta_s" in names else "name it with --column"
            raise SelhnError(
                f"{self.source} has no column that is clearly the training loss (it has {listed}): {what}"
            )
        return found


def running_means(column: Column, size: int) -> Column:
    """The mean of every `size` neighbouring values."""
    return np.convolve(column, np.ones(size), mode="valid") / size


def smoothed(column: Column) -> Column:
    """The mean over the last twentieth of the log, at every row; one without a finite number repeats the row before."""
    finite = np.isfinite(column)
    if not finite.any():
        return column
    held = column[np.maximum.accumulate(np.where(finite, np.arange(len(column)), finite.argmax()))]
    size = max(1, len(column) // 20)
    return running_means(np.pad(held, (size - 1, 0), mode="edge"), size)


def _numbers(row: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            if depth < DEEPEST:
                yield from _numbers(value, f"{prefix}{name}.", depth + 1)
        elif str(name).endswith(("__MIN", "__MAX")):  # wandb: the same number again where rows were merged
            continue
        elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
            full = f"{prefix}{name}"
            try:
                # A whole number too large for a float is read as infinite.
                number = float(str(value) if isinstance(value, int) else value)
                yield full.strip() if isinstance(value, str) else full, number
            except ValueError:  # words
                continue
