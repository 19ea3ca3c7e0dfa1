"""The folder of a run, and what happens when a person presses Ctrl-C."""

import json
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import yaml
from torch import Tensor

import selhn
from selhn.models import AbstractMatcher, load_model

if TYPE_CHECKING:
    from selhn.train.loop import Run


class RunFolder:
    """`config.yaml`, `env.json`, `log.jsonl`, `checkpoints/`, `best/`, `results.json`; or nothing, without a path."""

    def __init__(self, path: str | Path | None, resume: bool, identity: Mapping[str, str]):
        self.identity = dict(identity)
        self.path = None if path is None else Path(path)
        self._best: dict[str, Tensor] = {}
        if self.path is None:
            if resume:
                raise ValueError("nothing to resume: name the run's folder with out=")
            return
        if (self.path / "log.jsonl").exists() and not resume:
            raise ValueError(
                f"{self.path} already holds a run: go on with it by resume=True, or choose another folder for out="
            )
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "config.yaml").exists():
            (self.path / "config.yaml").write_text(yaml.safe_dump(self.identity, sort_keys=False))
        (self.path / "env.json").write_text(json.dumps(environment(), indent=1) + "\n")

    @property
    def log(self) -> Path | None:
        """The log, where there is a folder."""
        return self.path and self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path | None:
        """The checkpoints, where there is a folder."""
        return self.path and self.path / "checkpoints"

    def keep_best(self, model: AbstractMatcher) -> None:
        """These weights are the best so far."""
        if self.path is not None:
            model.save(self.path / "best")
        else:
            self._best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def restore_best(self, model: AbstractMatcher) -> None:
        """Give the model the best weights back."""
        best = self._best or load_model(self.path / "best").state_dict() if self.path else self._best
        model.load_state_dict(best)

    def write_results(self, run: "Run") -> None:
        """What came out, as data."""
        if self.path is None:
            return
        results = {
            "dev": run.dev.to_dict(),
            "test": run.test.to_dict(),
            "best_epoch": run.best_epoch,
            "stalled": run.stalled,
        }
        (self.path / "results.json").write_text(json.dumps(results, indent=1) + "\n")

    def stop(self, step: int) -> NoReturn:
        """After Ctrl-C: say where the run stands and how to go on."""
        if self.path is None:
            raise KeyboardInterrupt(
                f"stopped after {step} steps; nothing was saved, because the run has no folder (out=)"
            )
        raise KeyboardInterrupt(
            f"stopped after {step} steps; all of it is saved. Go on with: selhn train --resume {self.path}"
        )


def environment() -> dict[str, Any]:
    """What a result depends on beside the settings."""
    return {
        "selhn": selhn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let the step in hand finish when Ctrl-C is pressed; a second Ctrl-C stops at once."""
    pressed = threading.Event()

    def remember(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
