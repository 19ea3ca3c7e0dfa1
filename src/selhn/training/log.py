"""What a run writes to its log: one JSON object per line."""

import io
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.disk_errors import naming
from selhn.base.errors import SelhnError
from selhn.base.files import open_in_place
from selhn.diagnose import StallAlarm
from selhn.training.trackers import Trackers

READ_EVERY = 20
"""Steps between two reads from the device, since reading waits for the device."""


class Numbers(NamedTuple):
    """The measurements of a step: one vector on the device, and the names of its entries."""

    names: tuple[str, ...]
    values: Float[Tensor, " numbers"]

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> "Numbers":
        device = next(iter(named.values())).device
        return cls(tuple(named), torch.stack([value.to(device).float() for value in named.values()]))


def is_fatal(name: str, value: float) -> bool:
    """Whether this number of a step means that its update made weights NaN or infinite."""
    return (name == "loss" or name.startswith("grad_")) and not math.isfinite(value)


class Meter:
    """Collects the numbers of every step, writes them to `log.jsonl`, and passes on the stall alarm.

    A checkpoint stores the position in the file, so a resumed log has no line twice.
    """

    def __init__(
        self,
        path: Path | None,
        position: int,
        alarm: StallAlarm | None,
        say: Callable[[str], None] = print,
        trackers: Trackers | None = None,
    ):
        self.alarm, self._say, self._trackers = alarm, say, trackers or Trackers()
        self.summary = ""
        """The last numbers read, as readable text."""
        self._unread: list[tuple[int, int, Numbers]] = []
        self._path, self._file = path or Path(), None if path is None else _opened(path, position)

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *exception: object) -> None:
        # Write the last steps before an error, which explain it; only a broken device can prevent that.
        with suppress(RuntimeError) if exception[0] is not None else nullcontext():
            self._read()
        if self._file is not None:
            with naming(self._path):
                self._file.close()

    def add(self, step: int, epoch: int, numbers: Numbers, read: bool) -> None:
        """Take the numbers of one step; they are read from the device every few steps, or now with `read`."""
        self._unread.append((step, epoch, numbers))
        if read or len(self._unread) >= READ_EVERY:
            self._read()

    def _read(self) -> None:
        if not self._unread:
            return
        broken: list[tuple[int, str]] = []
        values = iter(torch.cat([numbers.values for *_, numbers in self._unread]).tolist())
        for step, epoch, numbers in self._unread:
            row = dict(zip(numbers.names, values))  # a model may have an extra loss in some steps only
            self.write({"step": step, "epoch": epoch, **row})
            said = self.alarm.update(step, row) if self.alarm is not None else None
            if said:
                self._say(said)
                self._trackers.alert(said, step)
            broken += [(step, name) for name, value in row.items() if is_fatal(name, value)]
        self._unread = []
        self.summary = f"loss/anchor {row['loss_per_anchor']:.4f}  delta_s {row['delta_s']:.4f}"
        if broken:  # stop before a checkpoint with NaN weights is written
            step, name = broken[0]
            raise SelhnError(
                f"{name} is not a finite number in step {step}, and so the weights are not: "
                "lower lr, or clip gradients (clip=2), and start again"
            )

    def write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            with naming(self._path):
                self._file.write(json.dumps(row) + "\n")
        self._trackers.log(row)

    def flush(self) -> int:
        """Flush everything to the disk; returns the position in the file."""
        self._read()
        if self._file is None:
            return 0
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()


def _opened(path: Path, position: int) -> io.TextIOWrapper:
    """The log without what was written after `position`, to continue there."""
    if position and (not path.exists() or path.stat().st_size < position):
        raise SelhnError(
            f"{path} is shorter than when its checkpoint was written: remove the run, start again"
        )
    file = open_in_place(path)
    file.truncate(position)
    file.seek(position)
    return io.TextIOWrapper(file, encoding="utf-8")
