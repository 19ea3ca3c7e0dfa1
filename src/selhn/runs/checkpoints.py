"""The checkpoints of a run on disk: `checkpoints/step_00000300_epoch_0002.pt`, one dictionary each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import refuse_links, write_whole
from selhn.base.sealed import digest_file
from selhn.base.tensor_files import read_checkpoint


class StoredCheckpoint(NamedTuple):
    """An undamaged checkpoint."""

    path: Path
    content: dict[str, Any]
    skipped: str
    """Why newer checkpoints could not be read; empty if this is the newest."""


class Checkpoints:
    """The last two whole checkpoints are kept. The archive of each has checksums, and it holds that of the log."""

    def __init__(self, run: Path):
        self.folder, self._log = run / "checkpoints", run / "log.jsonl"
        self._last: Path | None = None  # the last one known to be whole

    @property
    def paths(self) -> list[Path]:
        """The newest first."""
        refuse_links(self.folder.parent, [self.folder.name])
        return sorted(self.folder.glob("step_*.pt"), reverse=True)

    @property
    def are_older(self) -> bool:
        """Whether they were written by selhn 0.2.0, as folders."""
        return not self.paths and any(self.folder.glob("step_*"))

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one, read it back, and remove all others but the last whole one before it."""
        refuse_links(self.folder.parent, [self.folder.name])
        self.folder.mkdir(exist_ok=True)
        path, log = self.folder / f"{name}.pt", self._log
        of_log = [size := log.stat().st_size, digest_file(log, size)] if log.exists() else None
        try:
            write_whole(path, lambda file: torch.save({**content, "log": of_log}, file))
        except (OSError, RuntimeError) as error:  # torch raises the second while it handles the first
            raise OSError(
                f"the checkpoint {path} could not be written ({error.__context__ or error}): free some disk space "
                "and resume; the checkpoint before it is untouched"
            ) from error
        read_checkpoint(path)
        self._remove_others({path, self._last})
        self._last = path

    def tidy(self) -> None:
        """Remove what a killed process left beside the newest two and the last whole one."""
        self._remove_others({*self.paths[:2], self._last})

    def _remove_others(self, kept: set[Path | None]) -> None:
        for path in self.paths:
            if path not in kept:
                path.unlink(missing_ok=True)

    def read(self) -> Iterator[StoredCheckpoint]:
        """The undamaged ones, the newest first. If there are none, raises Damaged, with the reasons."""
        skipped: list[str] = []
        for path in self.paths:
            try:
                content = self._content(path)
            except SelhnError as wrong:
                skipped.append(str(wrong))
            else:
                self._last = self._last or path
                yield StoredCheckpoint(path, content, "; ".join(skipped))
        if len(skipped) == len(self.paths):
            raise Damaged("; ".join(skipped) or f"{self.folder} has no checkpoint: start the run again")

    def _content(self, path: Path) -> dict[str, Any]:
        content = read_checkpoint(path)
        try:
            of_log = content["log"]
            same = not of_log or not self._log.exists() or of_log[1] == digest_file(self._log, int(of_log[0]))
        except (LookupError, TypeError, ValueError):
            raise Damaged(f"{path} was not written by selhn: start the run again") from None
        if not same:
            raise Damaged(
                f"{self._log} is not what it was when {path.name} was written: restore it, "
                "or remove it to continue with a new log"
            )
        return content
