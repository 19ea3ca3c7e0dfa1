"""Checkpoints on disk: the last two are kept, with checksums, and the newest undamaged one is read.

step_00000300_epoch_0002/   model.safetensors, training.safetensors, training.json, checksums.json
latest                      the name of the newest
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from selhn.base.errors import Damaged
from selhn.base.files import new_folder, write_whole
from selhn.base.sealed import CHECKSUMS_FILE, FORMAT, digest_file, seal, verify
from selhn.base.tensor_files import read_tensors
from selhn.base.untrusted import read_json
from selhn.runs.weights import save_weights

WEIGHTS, TENSORS, CONTENT = FILES = ("model.safetensors", "training.safetensors", "training.json")


class StoredCheckpoint(NamedTuple):
    """An undamaged checkpoint."""

    path: Path
    tensors: dict[str, Tensor]
    """Everything but the weights, which `load_weights` reads into the model."""
    content: dict[str, Any]
    skipped: str
    """Why newer checkpoints could not be read; empty if this is the newest."""


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    found = sorted((path for path in folder.glob("step_*") if path.is_dir()), reverse=True)
    latest = folder / "latest"
    name = latest.read_text(encoding="utf-8", errors="replace").strip() if latest.is_file() else ""
    return sorted(found, key=lambda path: path.name != name)


def write_checkpoint(
    folder: Path,
    name: str,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
    log: Path,
) -> Path:
    """Write `folder/name`, flush it to the disk, and verify it."""
    path = folder / name
    try:
        with new_folder(path, replace=(*FILES, CHECKSUMS_FILE)) as partial:
            save_weights(model, partial / WEIGHTS)
            save_file(dict(tensors), partial / TENSORS)
            of_log = [size := log.stat().st_size, digest_file(log, size)] if log.exists() else None
            text = json.dumps({"format": FORMAT, **content, "log": of_log}, indent=1)
            (partial / CONTENT).write_text(text, encoding="utf-8")
            seal(partial, FILES)
        verify(path, FILES, "reading it back gave other data than was written")
        write_whole(folder / "latest", f"{name}\n")
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"the checkpoint {path} could not be written ({error}): free some disk space and resume; "
            "the checkpoint before it is untouched"
        ) from error
    return path


def remove_others(folder: Path, kept: set[Path]) -> None:
    """Remove all checkpoints but these, and what killed processes left behind."""
    (folder / ".latest.partial").unlink(missing_ok=True)
    for path in (*folder.glob("step_*"), *folder.glob(".step_*")):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoints(folder: Path, log: Path) -> Iterator[StoredCheckpoint]:
    """The undamaged checkpoints, newest first. If there are none, raises Damaged, with the reasons."""
    skipped: list[str] = []
    readable = 0
    for path in checkpoint_paths(folder):
        try:
            checkpoint = StoredCheckpoint(path, *_read(path, log), "; ".join(skipped))
        except Damaged as wrong:
            skipped.append(str(wrong))
        else:
            readable += 1
            yield checkpoint
    if not readable:
        raise Damaged("; ".join(skipped) or f"{folder} has no checkpoint: start the run again")


def _read(path: Path, log: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    what_to_do = "restore it, or start the run again"
    try:
        content = read_json(path / CONTENT)
        verify(path, FILES, what_to_do, required=content.get("format") == FORMAT)
        tensors = read_tensors(path / TENSORS, what_to_do)
    except (OSError, ValueError) as error:
        raise Damaged(f"the checkpoint {path} is damaged ({error})") from None
    of_log = content.get("log")
    if of_log is not None and log.exists() and of_log != [of_log[0], digest_file(log, int(of_log[0]))]:
        raise Damaged(
            f"{log} is not what it was when {path.name} was written: restore it, "
            "or remove it to continue with a new log"
        )
    return tensors, content
