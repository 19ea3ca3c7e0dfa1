"""An index on disk: segments that are only ever added, and one manifest that says which of them count.

manifest.json       what the index is and which segments it has; replaced in one step, so it is old or new, never half
segments/000007/    items that were written together, see `segment.py`
deleted/000009.npy  rows of a segment that no longer count
models/DIGEST/      the model, as `model.save` writes it
approximate/        FAISS indices, see `faiss_candidates.py`
lock                held by the one process that writes

What the manifest does not name was left by a process that was killed; the next writer removes it.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import LOCK_FILE, writing
from selhn.base.version import __version__
from selhn.models import AbstractMatcher
from selhn.search.items import Kind
from selhn.search.stores.checked_files import (
    array_chunks,
    check_content,
    open_rows,
    sync_folder,
    write_checked_json,
    write_file,
)
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.manifest import FORMAT, MANIFEST, VERSION, OtherVersion, read_manifest, require_plain
from selhn.search.stores.segment import Draft, Part, Segment, check_files
from selhn.search.stores.snapshot import Snapshot
from selhn.search.stores.store import Identity

FOLDERS = ("segments", "deleted", "models", "approximate")
OLD_FORMAT_FILE = "embeddings.safetensors"
ATTEMPTS = 5
_SEGMENT = re.compile(r"\d{6,}")
_BEGUN = re.compile(
    rf"{'|'.join(FOLDERS)}|{LOCK_FILE}|{re.escape(f'.{MANIFEST}.partial')}|models/\.?[0-9a-f]{{24}}(\.[0-9a-f]{{8}})?(\.previous)?"
)
"""What a process may leave that was killed before it wrote the first manifest."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A snapshot and what the manifest says of it."""

    snapshot: Snapshot
    segments: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Entries of the manifest by the names of segments."""
    next_name: int = 1
    model_kept: bool = False
    approximate: list[dict[str, Any]] = field(default_factory=list)
    """Entries of the FAISS indices."""
    candidates: Mapping[Kind, FaissCandidates] = field(default_factory=dict)
    """The same, read."""
    born: str = ""
    """Distinguishes the index from another that was built in its place, whose generations begin again."""


def is_index(path: str | Path) -> bool:
    """Whether a folder holds an index, of this format or of an older one."""
    return any((Path(path) / name).is_file() for name in (MANIFEST, OLD_FORMAT_FILE))


class _Names:
    """Hands out names that no file of the folder has had."""

    def __init__(self, following: int):
        self.following = following

    def take(self) -> str:
        self.following += 1
        return f"{self.following - 1:06}"


class IndexFolder:
    """The folder of an index."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def open(self) -> Opened:
        """The index as it is now; nothing half-written is ever read."""
        if not self.path.exists():
            raise NotFound(f"{self.path} does not exist: check the path, or build an index there")
        if not is_index(self.path) and not self._has_segments():
            raise NotFound(f"{self.path} is not an index, it has no {MANIFEST}: check the path, or build an index")
        if not (self.path / MANIFEST).is_file() and (self.path / OLD_FORMAT_FILE).is_file():
            raise Damaged(
                f"{self.path} was written by selhn before 0.2, without segments: remove it and build it again"
            )
        for attempt in range(1, ATTEMPTS + 1):
            manifest = self._manifest_bytes()
            try:
                return self._open()
            except OtherVersion:
                raise
            except (Damaged, FileNotFoundError) as wrong:
                replaced = manifest != self._manifest_bytes()  # by another process, while it was being opened
                if not replaced or attempt == ATTEMPTS:
                    raise self._damaged(wrong) from None
        raise AssertionError("the last attempt returns or raises")

    def open_with_candidates(self) -> Opened:
        """The index with its FAISS indices, if there are some and FAISS is installed."""
        opened = self.open()
        found = FaissCandidates.read(self.path / "approximate", opened.approximate, opened.snapshot)
        return replace(opened, candidates=found)

    def holds(self, opened: Opened) -> bool:
        """Whether the folder is still what was opened; not if it cannot be read."""
        try:
            content = read_manifest(self.path)
        except (SelhnError, OSError):
            return False
        known = content["model"]["digest"], content["generation"], content.get("born", "")
        return known == (opened.snapshot.identity.model, opened.snapshot.generation, opened.born)

    def _manifest_bytes(self) -> bytes | None:
        try:
            return (self.path / MANIFEST).read_bytes()
        except OSError:
            return None

    def _open(self) -> Opened:
        content = read_manifest(self.path)
        model = content["model"]
        identity = Identity(model["digest"], model["name"], content["width"], content["precision"], content["about"])
        entries = {entry["name"]: entry for entry in content["segments"]}
        parts = [self._open_part(entry, identity) for entry in content["segments"]]
        snapshot = Snapshot(identity, parts, content["generation"], content["unfinished"])
        born = str(content.get("born", ""))
        return Opened(snapshot, entries, content["next"], model["kept"], content["approximate"], born=born)

    def _open_part(self, entry: dict[str, Any], identity: Identity) -> Part:
        segment = Segment.open(self.path / "segments" / entry["name"], entry, identity.precision, identity.width)
        alive = torch.ones(len(segment), dtype=torch.bool)
        if entry["deleted"] is not None:
            if len(entry["deleted"]) != 3:
                raise Damaged("it does not say which items were deleted")
            name, number, written = entry["deleted"]
            path = self.path / "deleted" / require_plain(name)
            check_content(path, written)
            rows = open_rows(path, torch.int32, (number,)).long()
            if not 0 <= int(rows.min()) <= int(rows.max()) < len(segment):
                raise Damaged(f"{name} deletes items that do not exist")
            alive[rows] = False
        return Part(segment, alive)

    @property
    def model_folder(self) -> Path:
        """Parent folder of saved models."""
        return self.path / "models"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the folder, which is created if needed; a folder with anything else in it is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise SelhnError(f"{self.path} is a file: an index is a folder, choose another name")
        if self.path.exists() and not is_index(self.path):
            if self._has_segments():
                raise self._damaged(f"it has segments but no {MANIFEST}")  # which is written before them
            foreign = [name for name in self._names() if not _BEGUN.fullmatch(name)]
            if foreign:
                raise SelhnError(f"{self.path} exists and is not an index (it has {foreign[0]!r}): choose another name")
        with self._errors_explained():
            self.path.mkdir(parents=True, exist_ok=True)
        with writing(self.path, "; searching works meanwhile"):
            yield

    def _has_segments(self) -> bool:
        return any(_SEGMENT.fullmatch(path.name) for path in (self.path / "segments").glob("*"))

    def _names(self) -> list[str]:
        """What is in the folder, and in its folders that are named like ours."""
        inside = [f"{name}/{path.name}" for name in FOLDERS for path in (self.path / name).glob("*")]
        return sorted([*os.listdir(self.path), *inside])

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"the index {self.path} could not be written ({error.strerror or error}): "
                "its content before is untouched; free some space and try again"
            ) from error

    def commit(
        self,
        before: Opened,
        parts: Sequence[Part],
        drafts: Iterable[Draft] = (),
        *,
        snapshot: Snapshot | None = None,
        model: AbstractMatcher | None = None,
        approximate: Sequence[dict[str, Any]] = (),
    ) -> Opened:
        """Write new segments, then in one step a manifest of `parts` and of them; call it while `writing`.

        `snapshot` has what else changes of the index. `model` is saved with it if given.
        """
        base = before.snapshot if snapshot is None else snapshot
        names, new_parts = _Names(before.next_name), list(parts)
        try:
            with self._errors_explained():
                entries = [self._entry(before.segments[part.segment.name], part, names) for part in parts]
            for draft in drafts:  # items may be encoded only now, and those errors are not about this folder
                with self._errors_explained():
                    entries.append({**draft.write(self.path / "segments" / names.take()), "deleted": None})
                    new_parts.append(self._open_part(entries[-1], base.identity))
            same_model = before.snapshot.identity.model == base.identity.model
            opened = Opened(
                replace(base, parts=new_parts, generation=before.snapshot.generation + 1),
                {entry["name"]: entry for entry in entries},
                names.following,
                model is not None or (before.model_kept and same_model),
                list(approximate),
                born=before.born or uuid.uuid4().hex,
            )
            with self._errors_explained():
                if model is not None:
                    model.save(self.model_folder / base.identity.model)
                self._write_manifest(opened)
        except BaseException:
            self.sweep(before)
            raise
        self.sweep(opened)
        return opened

    def _entry(self, entry: dict[str, Any], part: Part, names: _Names) -> dict[str, Any]:
        """What the manifest says of an existing segment; its deleted rows are written if there are more of them."""
        rows = (~part.alive).nonzero()[:, 0].int()
        known = entry["deleted"]
        if len(rows) == (known[1] if known else 0):
            return entry
        (self.path / "deleted").mkdir(exist_ok=True)
        name = f"{names.take()}.npy"
        written = write_file(self.path / "deleted" / name, array_chunks((len(rows),), torch.int32, [rows]))
        return {**entry, "deleted": [name, len(rows), written]}

    def _write_manifest(self, opened: Opened) -> None:
        """Replace the manifest, once everything that it names is on the disk."""
        for name in FOLDERS:
            if (self.path / name).is_dir():
                sync_folder(self.path / name)
        snapshot, identity = opened.snapshot, opened.snapshot.identity
        content = {
            "format": FORMAT,
            "version": VERSION,
            "selhn": __version__,
            "generation": snapshot.generation,
            "born": opened.born,
            "model": {"digest": identity.model, "name": identity.model_name, "kept": opened.model_kept},
            "width": identity.width,
            "precision": identity.precision,
            "about": dict(identity.about),
            "unfinished": snapshot.unfinished,
            "next": opened.next_name,
            "segments": list(opened.segments.values()),
            "approximate": opened.approximate,
        }
        write_checked_json(self.path / MANIFEST, content)

    def sweep(self, opened: Opened) -> None:
        """Remove what the manifest does not name."""
        named = {
            "segments": set(opened.segments),
            "deleted": {entry["deleted"][0] for entry in opened.segments.values() if entry["deleted"]},
            "models": {opened.snapshot.identity.model},
            "approximate": {entry["file"] for entry in opened.approximate},
        }
        for folder, names in named.items():
            for path in (self.path / folder).glob("*"):
                if path.name not in names:
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)

    def check(self) -> None:
        """Read every byte of the index, and refuse it if it is not what was written."""
        opened = self.open()
        self.check_segments(opened, opened.segments)
        try:
            for entry in opened.approximate:
                check_content(self.path / "approximate" / entry["file"], entry["written"])
        except Damaged as wrong:
            raise self._damaged(wrong) from None

    def check_segments(self, opened: Opened, names: Iterable[str]) -> None:
        """Read every byte of some segments."""
        try:
            for name in names:
                check_files(self.path / "segments" / name, opened.segments[name])
        except Damaged as wrong:
            raise self._damaged(wrong) from None

    def _damaged(self, reason: object) -> Damaged:
        what_to_do = "restore a copy, or remove it and build it again"
        return Damaged(f"{self.path} is damaged ({str(reason)[:300]}): {what_to_do}")
