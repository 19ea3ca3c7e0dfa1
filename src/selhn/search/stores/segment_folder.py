"""An index on disk: segments that are only ever added, and one manifest that says which of them count.

manifest.json       what the index is and which segments it has; replaced in one step
segments/000007/    items that were written together, see `segment.py`
deleted/000009.npy  rows of a segment that are deleted
models/DIGEST/      the towers, or the model that is in their place, as their `save` writes them
approximate/        FAISS indices, see `faiss_candidates.py`
lock                held by the one process that writes

What the manifest does not name was left by a process that was killed; the next writer removes it.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import LOCK_FILE, private_folder, refuse_links, sync_folder, writing
from selhn.search.stores.checked_files import check_content, write_rows
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.segment import Segment, write_segment
from selhn.search.stores.snapshot import MANIFEST, OtherVersion, Snapshot
from selhn.towers import AbstractTowers

FOLDERS = ("segments", "deleted", "models", "approximate")
OLD_FORMAT_FILE = "embeddings.safetensors"
ATTEMPTS = 5
_SEGMENT = re.compile(r"\d{6,}")
_MODEL = r"\.?[0-9a-f]{24}(\.\w{8})?(\.previous|\.partial)?"
_NAMES = {
    "segments": _SEGMENT,
    "deleted": re.compile(r"\d{6,}\.npy"),
    "models": re.compile(_MODEL),
    "approximate": re.compile(r"\d{6,}_(image|text)\.faiss"),
}
"""How everything in these folders is named; anything else was put there by somebody else, and stays."""
_BEGUN = re.compile(
    rf"{'|'.join(FOLDERS)}|{LOCK_FILE}|\.{re.escape(MANIFEST)}(\.[0-9a-f]{{16}})?\.partial|models/{_MODEL}"
)
"""What a process may leave behind if it is killed before it has written the first manifest."""


def is_index(path: str | Path) -> bool:
    """Whether a folder holds an index, of this format or of an older one."""
    return any((Path(path) / name).is_file() for name in (MANIFEST, OLD_FORMAT_FILE))


class IndexFolder:
    """The folder of an index."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def open(self) -> Snapshot:
        """The index now, without reading its FAISS indices; nothing half-written is ever read."""
        if not self.path.exists():
            raise NotFound(f"{self.path} does not exist: check the path, or build an index there")
        self._refuse_links()
        if not is_index(self.path) and not self._has_segments():
            raise NotFound(f"{self.path} is not an index (no {MANIFEST}): check the path, or build an index")
        if not (self.path / MANIFEST).is_file() and (self.path / OLD_FORMAT_FILE).is_file():
            raise Damaged(f"{self.path} was written by selhn before 0.2: remove it and build it again")
        for _ in range(ATTEMPTS):  # another process may replace what is being opened
            try:
                return Snapshot.read(self.path)
            except OtherVersion:
                raise
            except (Damaged, FileNotFoundError) as wrong:
                reason = str(wrong)
        raise self._damaged(reason)

    def open_with_faiss(self) -> Snapshot:
        """The index with its FAISS indices, if there are some and FAISS is installed."""
        opened, folder = self.open(), self.path / "approximate"
        found = {kind: one.read(folder, opened.segments) for kind, one in opened.candidates.items()}
        return replace(opened, candidates=found)

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the lock of the folder, creating it if needed. A folder with other things in it is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise SelhnError(f"{self.path} is a file: an index is a folder, choose another name")
        self._refuse_links()
        if self.path.exists() and not is_index(self.path):
            if self._has_segments():
                raise self._damaged(f"it has segments but no {MANIFEST}")  # which is written before them
            inside = [f"{name}/{path.name}" for name in FOLDERS for path in (self.path / name).glob("*")]
            for name in sorted([*os.listdir(self.path), *inside]):
                if not _BEGUN.fullmatch(name):
                    raise SelhnError(f"{self.path} is not an index (it has {name!r}): choose another name")
        with self._errors_explained():
            private_folder(self.path)
        with writing(self.path, "; searching works meanwhile", wait):
            yield

    def _refuse_links(self) -> None:
        """Refuse an index with a link inside. Any other folder is left to the errors that say what it is not."""
        if any(os.path.lexists(self.path / name) for name in (MANIFEST, OLD_FORMAT_FILE, *FOLDERS)):
            refuse_links(self.path)

    def _has_segments(self) -> bool:
        return any(_SEGMENT.fullmatch(path.name) for path in (self.path / "segments").glob("*"))

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"the index {self.path} could not be written ({error.strerror or error}): "
                "its earlier content is untouched; free some space and try again"
            ) from error

    def commit(
        self,
        before: Snapshot,
        after: Snapshot,
        drafts: Iterable[Sequence[Segment]] = (),
        towers: AbstractTowers | None = None,
    ) -> Snapshot:
        """Write `after` with new segments: first the files, then the manifest. Call it while `writing`.

        `before` is what the folder has now: its numbering continues. For each draft, what is left of its
        segments is written as one. `towers` are saved too if given, unless the index names them.
        """
        towers = None if towers is None or towers.source is not None else towers
        numbers, manifest = count(before.next_name), self.path / MANIFEST
        was = manifest.stat().st_ino if manifest.exists() else None
        try:
            with self._errors_explained():
                segments = [self._with_deleted(segment, numbers) for segment in after.segments]
            for draft in drafts:  # this may encode items, and errors there are not about this folder
                with self._errors_explained():
                    folder = self.path / "segments" / f"{next(numbers):06}"
                    entry = write_segment(folder, draft, after.identity)
                    sync_folder(folder)
                    segments.append(Segment.open(self.path, entry, after.identity))
            same_model = before.identity.model == after.identity.model
            now = replace(
                after,
                segments=segments,
                generation=before.generation + 1,
                next_name=next(numbers),
                model_kept=towers is not None or (before.model_kept and same_model),
                born=before.born or uuid.uuid4().hex,
            )
            with self._errors_explained():
                if towers is not None:
                    towers.save(self.path / "models" / now.identity.model)
                for name in FOLDERS:
                    if (self.path / name).is_dir():
                        sync_folder(self.path / name)
                now.write(self.path)
        except BaseException:
            # Not if the new manifest is there and only syncing it has failed: it names the new files.
            if was == (manifest.stat().st_ino if manifest.exists() else None):
                self.sweep(before)
            raise
        self.sweep(now)
        return now

    def _with_deleted(self, segment: Segment, numbers: Iterator[int]) -> Segment:
        """An existing segment; its deleted rows are written if there are new ones."""
        rows, known = segment.deleted.int(), segment.entry["deleted"]
        if len(rows) == (known[1] if known else 0):
            return segment
        (self.path / "deleted").mkdir(exist_ok=True)
        name = f"{next(numbers):06}.npy"
        written = write_rows(self.path / "deleted" / name, torch.int32, (len(rows),), [rows])
        return replace(segment, entry={**segment.entry, "deleted": [name, len(rows), written]})

    def sweep(self, snapshot: Snapshot) -> None:
        """Remove what killed processes left: files of ours that the manifest of a snapshot does not name."""
        entries = [segment.entry for segment in snapshot.segments]
        named = {
            "segments": {entry["name"] for entry in entries},
            "deleted": {entry["deleted"][0] for entry in entries if entry["deleted"]},
            "models": {snapshot.identity.model},
            "approximate": {one.file for one in snapshot.candidates.values()},
        }
        for folder, names in named.items():
            for path in (self.path / folder).glob("*"):
                if path.name not in names and _NAMES[folder].fullmatch(path.name):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)

    def check(self, segments: Iterable[Segment], candidates: Iterable[FaissCandidates] = ()) -> None:
        """Read every byte of some segments and FAISS indices, and refuse what is not what was written."""
        try:
            for entry in (segment.entry for segment in segments):
                for name, written in entry["files"].items():
                    check_content(self.path / "segments" / entry["name"] / name, written)
            for one in candidates:
                check_content(self.path / "approximate" / one.file, one.written)
        except Damaged as wrong:
            raise self._damaged(str(wrong)) from None

    def _damaged(self, reason: str) -> Damaged:
        what_to_do = "restore a copy, or remove it and build it again"
        return Damaged(f"{self.path} is damaged ({reason[:300]}): {what_to_do}")
