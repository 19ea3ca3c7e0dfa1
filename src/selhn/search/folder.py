"""An index on disk: segments that are only ever added, and one manifest that says which of them count.

manifest.json       what the index is and which segments it has; replaced in one step, so it is old or new, never half
segments/000007/    items that were written together, see `segment.py`
deleted/000009.npy  rows of a segment that no longer count
models/DIGEST/      the model, as `model.save` writes it
approximate/        FAISS indices, see `faiss_index.py`
lock                held by the one process that writes

What the manifest does not name is what a process left that was killed; the next that writes removes it.
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

from selhn.base.errors import SelhnError
from selhn.base.files import LOCK_FILE, writing
from selhn.base.version import __version__
from selhn.models import AbstractMatcher
from selhn.search.answering import Candidates
from selhn.search.files import (
    array_chunks,
    check_content,
    open_rows,
    read_checked_json,
    sync_folder,
    write_checked_json,
    write_file,
)
from selhn.search.items import Kind
from selhn.search.segment import Draft, Part, Segment, check_files
from selhn.search.snapshot import Identity, Snapshot
from selhn.search.vectors import check_precision

FORMAT, VERSION = "selhn-index", 2
MANIFEST, PARTIAL_MANIFEST = "manifest.json", ".manifest.json.partial"
FOLDERS = ("segments", "deleted", "models", "approximate")
OLD_FORMAT_FILE = "embeddings.safetensors"
ATTEMPTS = 5
_SEGMENT = re.compile(r"\d{6,}")
_BEGUN = re.compile(
    rf"{'|'.join(FOLDERS)}|{LOCK_FILE}|{re.escape(PARTIAL_MANIFEST)}|models/\.?[0-9a-f]{{24}}(\.[0-9a-f]{{8}})?(\.previous)?"
)
"""What a process may leave that was killed before it wrote the first manifest."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A snapshot and what the manifest says of it."""

    snapshot: Snapshot
    segments: dict[str, dict[str, Any]]
    """Entries of the manifest by the names of segments."""
    next_name: int = 1
    model_kept: bool = False
    approximate: list[dict[str, Any]] = field(default_factory=list)
    """Entries of the FAISS indices."""
    candidates: Mapping[Kind, Candidates] = field(default_factory=dict)
    """The same, read."""
    born: str = ""
    """What tells the index from another that was built in its place: generations begin anew there."""


def is_index(path: str | Path) -> bool:
    """Whether a folder holds an index, of this format or of an older one."""
    return any((Path(path) / name).is_file() for name in (MANIFEST, OLD_FORMAT_FILE))


class IndexFolder:
    """The folder of an index."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def open(self) -> Opened:
        """The index as it is now; nothing half-written is ever read."""
        if (self.path / OLD_FORMAT_FILE).is_file() and not (self.path / MANIFEST).is_file():
            raise SelhnError(
                f"{self.path} was written by selhn before 0.2, which kept no segments: remove it and build it again"
            )
        for _ in range(ATTEMPTS):
            manifest = self._manifest_bytes()
            try:
                return self._open()
            except _OtherVersion as other:
                raise SelhnError(str(other)) from None
            except (ValueError, OSError, LookupError, TypeError, AttributeError, OverflowError) as wrong:
                reason = str(wrong) or type(wrong).__name__
                if manifest == self._manifest_bytes():  # else another process replaced what was being opened
                    break
        raise SelhnError(self._damaged(reason))

    def open_or(self, empty: Opened) -> Opened:
        """The index, or `empty` where there is none; one that cannot be opened is refused, and so never replaced."""
        return self.open() if is_index(self.path) else empty

    def holds(self, opened: Opened) -> bool:
        """Whether the folder is still what was opened; one that cannot be read is not."""
        try:
            content = read_checked_json(self.path / MANIFEST)
            known = content["model"]["digest"], content["generation"], content.get("born", "")
        except (ValueError, OSError, LookupError, TypeError):
            return False
        return known == (opened.snapshot.identity.model, opened.snapshot.generation, opened.born)

    def _manifest_bytes(self) -> bytes | None:
        try:
            return (self.path / MANIFEST).read_bytes()
        except OSError:
            return None

    def _open(self) -> Opened:
        if not (self.path / MANIFEST).is_file():
            raise SelhnError(f"it has no {MANIFEST}")
        content = read_checked_json(self.path / MANIFEST)
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise _OtherVersion(
                f"{self.path} has version {content['version']} of {content['format']} (selhn {content['selhn']}), this "
                f"selhn reads version {VERSION}: install another selhn, or remove the index and build it again"
            )
        check_precision(content["precision"])
        model = content["model"]
        identity = Identity(model["digest"], model["name"], content["width"], content["precision"], content["about"])
        entries = {entry["name"]: entry for entry in content["segments"]}
        parts = [self._open_part(entry, identity) for entry in content["segments"]]
        snapshot = Snapshot(identity, parts, content["generation"], content["unfinished"])
        born = str(content.get("born", ""))
        return Opened(snapshot, entries, content["next"], model["kept"], content["approximate"], born=born)

    def _open_part(self, entry: dict[str, Any], identity: Identity) -> Part:
        folder = self.path / "segments" / _plain(entry["name"])
        segment = Segment.open(folder, entry, identity.precision, identity.width)
        alive = torch.ones(len(segment), dtype=torch.bool)
        if entry["deleted"] is not None:
            name, number, written = entry["deleted"]
            path = self.path / "deleted" / _plain(name)
            check_content(path, written)
            rows = open_rows(path, torch.int32, (number,)).long()
            if not 0 <= int(rows.min()) <= int(rows.max()) < len(segment):
                raise SelhnError(f"{name} deletes items that are not there")
            alive[rows] = False
        return Part(segment, alive)

    @property
    def model_folder(self) -> Path:
        """Where models are kept."""
        return self.path / "models"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made where it is not there; never one that holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise SelhnError(f"{self.path} is a file: an index is a folder, choose another name")
        if self.path.exists() and not is_index(self.path):
            if any(_SEGMENT.fullmatch(path.name) for path in (self.path / "segments").glob("*")):
                raise SelhnError(self._damaged(f"it has segments and no {MANIFEST}"))  # which is written before them
            foreign = [name for name in self._names() if not _BEGUN.fullmatch(name)]
            if foreign:
                raise SelhnError(f"{self.path} exists and is no index (it holds {foreign[0]!r}): choose another name")
        with self._errors_explained():
            self.path.mkdir(parents=True, exist_ok=True)
        with writing(self.path, "; searching goes on meanwhile"):
            yield

    def _names(self) -> list[str]:
        """What is in the folder, and in those in it that are called like ours."""
        inside = [f"{name}/{path.name}" for name in FOLDERS for path in (self.path / name).glob("*")]
        return sorted([*os.listdir(self.path), *inside])

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"the index {self.path} could not be written ({error.strerror or error}): "
                "what it held before is untouched; make room and go on"
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
        """Write new segments, then in one step a manifest with `parts` and them; call it while `writing`.

        `snapshot` says what else changes of the index, and `model` is saved with it where it is given.
        """
        base = before.snapshot if snapshot is None else snapshot
        number, entries, new_parts = before.next_name, [], list(parts)
        try:
            with self._errors_explained():
                for part in parts:
                    entries.append(self._entry(before, part, f"{number:06}.npy"))
                    number += entries[-1] is not before.segments[part.segment.name]
            for draft in drafts:  # which may encode what it holds only now
                with self._errors_explained():
                    entries.append({**draft.write(self.path / "segments" / f"{number:06}"), "deleted": None})
                    number += 1
                    new_parts.append(self._open_part(entries[-1], base.identity))
            with self._errors_explained():
                if model is not None:
                    model.save(self.model_folder / base.identity.model)
                for name in FOLDERS:
                    if (self.path / name).is_dir():
                        sync_folder(self.path / name)
                kept = model is not None or (
                    before.model_kept and before.snapshot.identity.model == base.identity.model
                )
                after = replace(base, parts=new_parts, generation=before.snapshot.generation + 1)
                named, born = {entry["name"]: entry for entry in entries}, before.born or uuid.uuid4().hex
                opened = Opened(after, named, number, kept, list(approximate), born=born)
                write_checked_json(self.path / MANIFEST, self._manifest(opened))
        except BaseException:
            self.sweep(before)
            raise
        self.sweep(opened)
        return opened

    def _entry(self, before: Opened, part: Part, file_name: str) -> dict[str, Any]:
        """What the manifest says of a segment that is there already; deleted rows are written where they changed."""
        entry = before.segments[part.segment.name]
        rows = (~part.alive).nonzero()[:, 0].int()
        known = entry["deleted"]
        if len(rows) == (known[1] if known else 0):
            return entry
        (self.path / "deleted").mkdir(exist_ok=True)
        written = write_file(self.path / "deleted" / file_name, array_chunks((len(rows),), torch.int32, [rows]))
        return {**entry, "deleted": [file_name, len(rows), written]}

    def _manifest(self, opened: Opened) -> dict[str, Any]:
        snapshot, identity = opened.snapshot, opened.snapshot.identity
        return {
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
        """Read every byte of the index and refuse one that is not what was written."""
        opened = self.open()
        self.check_segments(opened, opened.segments)
        try:
            for entry in opened.approximate:
                check_content(self.path / "approximate" / _plain(entry["file"]), entry["written"])
        except (ValueError, OSError) as wrong:
            raise SelhnError(self._damaged(str(wrong))) from None

    def check_segments(self, opened: Opened, names: Iterable[str]) -> None:
        """Read every byte of some segments: before they are copied, so that no damage gets a checksum of its own."""
        try:
            for name in names:
                check_files(self.path / "segments" / name, opened.segments[name])
        except (ValueError, OSError) as wrong:
            raise SelhnError(self._damaged(str(wrong))) from None

    def _damaged(self, reason: str) -> str:
        what_to_do = "restore a copy, or remove it and build it again"
        return f"{self.path} is no index, or a damaged one ({reason[:300]}): {what_to_do}"


class _OtherVersion(ValueError):
    pass


def _plain(name: Any) -> str:
    """A name that leads nowhere else."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise SelhnError(f"it names the file {name!r}")
    return name
