"""The folder of a run, and what happens when a person presses Ctrl-C."""

import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.files import writing
from selhn.base.version import __version__
from selhn.models import AbstractMatcher, load_model
from selhn.training.checkpoint import load_weights, save_weights

if TYPE_CHECKING:
    from selhn.training.loop import Run


class RunFolder:
    """`config.yaml`, `env.json`, `log.jsonl`, `checkpoints/`, `best/`, `results.json`; or nothing, without a path.

    `identity` is what must be the same when the run is resumed. `config` is the text of `config.yaml`, which a run that
    was started from objects and not from a configuration does not have.
    """

    def __init__(self, path: str | Path | None, resume: bool, identity: Mapping[str, str], config: str | None = None):
        self.identity = dict(identity)
        self.path = None if path is None else Path(path)
        self._config = config
        self._best: dict[str, Tensor] = {}
        if self.path is None:
            if resume:
                raise SelhnError("nothing to resume: name the run's folder with out=")
            return
        if self.path.exists() and not self.path.is_dir():
            raise SelhnError(f"{self.path} is a file: choose a folder for out=")
        # A run that died before its first checkpoint has nothing to resume; it may begin again.
        if (self.path / "checkpoints" / "latest").exists() and not resume:
            raise SelhnError(
                f"{self.path} already holds a run: go on with it by resume=True, or choose another folder for out="
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def held(self) -> AbstractContextManager[None]:
        """No other process trains in this folder meanwhile: two would write one log."""
        return nullcontext() if self.path is None else writing(self.path)

    def describe(self, finished: bool = False) -> None:
        """Write down what the run is; on resume, only once the checkpoint has been found to be of the same run.

        Unless it has finished already, what it reached with fewer epochs is no result of it.
        """
        if self.path is None:
            return
        if not finished:
            (self.path / "results.json").unlink(missing_ok=True)
        if self._config is not None:
            _write(self.path / "config.yaml", self._config)
        _write(self.path / "identity.json", json.dumps(self.identity, indent=1) + "\n")
        _write(self.path / "env.json", json.dumps(environment(), indent=1) + "\n")

    @property
    def log(self) -> Path | None:
        """The log, where there is a folder."""
        return self.path and self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path | None:
        """The checkpoints, where there is a folder."""
        return self.path and self.path / "checkpoints"

    def keep_best(self, model: AbstractMatcher) -> None:
        """These weights are the best so far; a model of someone's own, which is in no table, keeps only weights."""
        if self.path is None:
            self._best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        elif model.name is not None:
            model.save(self.path / "best")
        else:
            save_weights(model, self.path / "best" / "model.safetensors")

    def restore_best(self, model: AbstractMatcher) -> None:
        """Give the model the best weights back."""
        if self.path is None:
            model.load_state_dict(self._best)
        elif model.name is not None:
            model.load_state_dict(load_model(self.path / "best").state_dict())
        else:
            load_weights(model, self.path / "best" / "model.safetensors")

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
        _write(self.path / "results.json", json.dumps(results, indent=1) + "\n")

    def how_to_go_on(self, step: int) -> str:
        """What to say after Ctrl-C."""
        if self.path is None:
            return f"Stopped after {step} steps; nothing was saved, because the run has no folder (out=)."
        how = (
            f"selhn train --resume {self.path}"
            if self._config is not None
            else f'train(..., out="{self.path}", resume=True)'
        )
        return f"Stopped after {step} steps; all of it is saved. Go on with: {how}"


def _write(path: Path, text: str) -> None:
    """Replace a small file in one step: whoever reads it finds all of the old or all of the new."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def environment() -> dict[str, Any]:
    """What a result depends on beside the settings."""
    return {
        "selhn": __version__,
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
