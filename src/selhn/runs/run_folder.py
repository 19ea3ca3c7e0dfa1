"""The folder of a run: its settings, log, checkpoints, best model, results and verdict."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import LOCK_FILE, refuse_links, writing
from selhn.base.folders import new_folder, settle, whole_folder
from selhn.base.plain_yaml import parse_yaml
from selhn.base.sealed import (
    CHECKSUMS_FILE,
    read_sealed_json,
    read_sealed_text,
    seal,
    verify,
    write_sealed_json,
    write_sealed_text,
)
from selhn.base.version import __version__
from selhn.models import AbstractMatcher, load_model
from selhn.models.saved import BEST_FOLDER, OURS, read_model_config
from selhn.runs.checkpoints import Checkpoints
from selhn.runs.run_log import LogPart, read_log, read_log_part
from selhn.runs.weights import load_weights, save_weights
from selhn.text import TOKENIZER_FILES, Tokenizer, has_tokenizer, load_tokenizer

WEIGHTS = "model.safetensors"
LOG, RESULTS = "log.jsonl", "results.json"
_FILES = (
    "config.yaml", "identity.json", "env.json", LOG, RESULTS, "verdict.json", "config.json", *TOKENIZER_FILES,
    CHECKSUMS_FILE, LOCK_FILE, "checkpoints", BEST_FOLDER, f".{BEST_FOLDER}.partial",
)  # fmt: skip
"""All that is opened in a run folder, where people may keep other things. Tokenizers look for a `config.json`."""
OWN = "own:"
"""Prefix in `config.yaml` of a model, loss or data set that is not registered: only Python can make it."""


@dataclass(frozen=True)
class Results:
    """The results of a finished run in its best epoch on dev, as `Metrics.from_dict` reads them."""

    dev: Mapping[str, Any]
    test: Mapping[str, Any]
    best_epoch: int
    """Counted from 0."""
    stalled: str | None
    """The stall alarm's message, if training stalled and has not left the plateau since."""


class RunFolder:
    """The only reader and writer of a run's files.

    `config.yaml` (model, loss, data and settings by name), the tokenizer, `identity.json` (what a resumed run
    must have in common with this one), `env.json`, `log.jsonl`, `checkpoints/`, `best/` (a saved model),
    `results.json`, `verdict.json`. Opening one reads nothing, and refuses links among these. With
    `path=None` nothing is written, and the best weights are kept in memory.
    """

    def __init__(self, path: str | Path | None):
        self.path = None if path is None else Path(path)
        self._best: dict[str, Tensor] = {}
        if self.path is not None:
            refuse_links(self.path, _FILES)

    def file(self, name: str) -> Path:
        """The path of one of the run's files, whether it exists or not."""
        if self.path is None:
            raise SelhnError("this run has no folder, so it has no files: train it with out=")
        return self.path / name

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.file("."))

    # Reading

    @property
    def log_path(self) -> Path:
        return self.file(LOG)

    def log(self) -> list[dict[str, Any]]:
        """All rows of the log so far; a last line that was cut off in the middle is left out."""
        if not self.log_path.is_file():
            raise NotFound(f"{self.path} holds no run: it has no {LOG}")
        return read_log(self.log_path)

    def log_since(self, after: int = 0, most_bytes: int = 4 * 2**20) -> LogPart:
        """Rows logged from byte `after` on, in parts of bounded size, to follow a growing log."""
        return read_log_part(self.log_path, after, most_bytes)

    @property
    def config(self) -> dict[str, Any] | None:
        """The content of `config.yaml`; None if there is none."""
        return self._read("config.yaml")

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with this one; empty if it is not known."""
        return self._read("identity.json") or {}

    @property
    def environment(self) -> dict[str, Any]:
        """The versions and the device it was trained with; empty if unknown."""
        return self._read("env.json") or {}

    @property
    def finished(self) -> bool:
        return self.file(RESULTS).is_file()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return bool(self.checkpoints.paths) or self.checkpoints.are_older

    @property
    def results(self) -> Results | None:
        content = self._read(RESULTS)
        if content is None:
            return None
        try:
            return Results(
                content["dev"], content["test"], int(content["best_epoch"]), content.get("stalled")
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Damaged(f"{self.file(RESULTS)} cannot be read ({error!r}): start the run again") from None

    @property
    def verdict(self) -> dict[str, Any] | None:
        """What `selhn diagnose` says about the run, written when training ends; None if there is none."""
        return self._read("verdict.json")

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that it is trained with; None if it has none."""
        here = self.file(".")
        if not has_tokenizer(here) and not (here / CHECKSUMS_FILE).exists():
            return None
        verify(here, TOKENIZER_FILES, "restore it, or start the run again")
        return load_tokenizer(here)

    @property
    def best(self) -> Path:
        """Where the best model is: in `best/`, or beside it if the last write was interrupted."""
        return whole_folder(self.file(BEST_FOLDER))

    def best_model(self) -> AbstractMatcher:
        return load_model(self.file("."))

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.file(name)
        what_to_do = "restore it, or start the run again"
        if not path.exists():
            return None
        if path.suffix == ".json":
            return read_sealed_json(path, what_to_do)
        return parse_yaml(read_sealed_text(path, what_to_do), str(path))

    # Writing

    def check(self, resume: bool) -> None:
        """Refuse a folder that holds another run or, on resume, no run. Nothing is written."""
        if self.path is None:
            if resume:
                raise SelhnError("nothing to resume: name the run's folder with out=")
            return
        if self.path.exists() and not self.path.is_dir():
            raise SelhnError(f"{self.path} is a file: choose a folder for out=")
        # A run that died before its first checkpoint has nothing to resume; it may start again.
        if self.started and not resume:
            raise SelhnError(
                f"{self.path} already holds a run: continue it with --resume {self.path} (in Python resume=True), "
                "or choose another folder with --out (out=)"
            )
        if self.checkpoints.are_older:
            raise SelhnError(
                f"{self.path} was trained by selhn 0.2.0, and this version cannot continue it: finish it with 0.2.0, "
                "or start again in another folder; its best model and results can be read"
            )
        if resume and not self.started:
            raise SelhnError(f"{self.path} has no checkpoint to resume from: start the run without resume")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the folder, keep other processes from training in it (two would write one log), and finish or remove
        what a killed process left while it wrote the best model.
        """
        if self.path is None:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with writing(self.path):
            settle(self.file(BEST_FOLDER), OURS)
            yield

    def describe(
        self,
        config: Mapping[str, Any],
        identity: Mapping[str, str],
        tokenizer: Tokenizer | None = None,
        finished: bool = False,
    ) -> None:
        """Write the run's description; on resume, only after its checkpoint was found to match.

        Unless it has already `finished`, results of fewer epochs are removed.
        """
        if self.path is None:
            return
        self.checkpoints.tidy()
        if not finished:
            self.file(RESULTS).unlink(missing_ok=True)
            self.file("verdict.json").unlink(missing_ok=True)
        write_sealed_text(self.file("config.yaml"), yaml.safe_dump(dict(config), sort_keys=False))
        if tokenizer is not None and not (self.started and has_tokenizer(self.path)):
            tokenizer.save(self.path)
            seal(self.path, TOKENIZER_FILES)
        self._write("identity.json", dict(identity))
        self._write("env.json", environment())

    def write_results(self, results: Results) -> None:
        self._write(RESULTS, asdict(results))

    def write_verdict(self, verdict: Mapping[str, Any]) -> None:
        self._write("verdict.json", dict(verdict))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self.path is not None:
            write_sealed_json(self.file(name), content)

    def keep_best(self, model: AbstractMatcher) -> None:
        """Keep the weights as the best so far; for an unregistered model only the weights are saved."""
        if self.path is None:
            self._best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        elif model.name is not None:
            model.save(self.file(BEST_FOLDER))
        else:
            best = self.file(BEST_FOLDER)
            try:
                with new_folder(best, replace=(WEIGHTS, CHECKSUMS_FILE)) as partial:
                    save_weights(model, partial / WEIGHTS)
                    seal(partial, [WEIGHTS])
            except SafetensorError as error:  # how safetensors reports a full disk
                raise OSError(
                    f"{best} could not be written ({error}); what was there before is untouched"
                ) from None

    def verify_best(self, model: AbstractMatcher) -> None:
        """Refuse a best model that is not what was written, or is missing."""
        if self.path is None:
            return
        folder = self.best
        if not folder.exists():
            raise NotFound(f"{folder} is missing")
        if model.name is not None:
            read_model_config(folder)
        else:
            verify(folder, [WEIGHTS], "restore a copy")

    def restore_best(self, model: AbstractMatcher) -> None:
        if self.path is None:
            model.load_state_dict(self._best)
        elif model.name is not None:
            model.load_state_dict(self.best_model().state_dict())
        else:
            self.verify_best(model)
            load_weights(model, self.best / WEIGHTS)


def find_runs(path: str | Path, deepest: int = 4, most: int = 500) -> list[Path]:
    """Run folders in or below `path`, found by their logs, sorted by name.

    Hidden folders and links are left out.
    """
    root = Path(path).resolve()
    found: list[Path] = []
    for place, folders, files in os.walk(root):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if LOG in files and not (here / LOG).is_symlink():
            found.append(here)
            folders[:] = []
        if len(here.relative_to(root).parts) >= deepest:
            folders[:] = []
        if len(found) >= most:
            break
    return found


def environment() -> dict[str, Any]:
    """What a result depends on besides the settings."""
    return {
        "selhn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }
