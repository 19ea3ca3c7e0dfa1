"""An index at one moment: its segments, and which items of them are there. Never changed, only replaced.

In a folder the manifest says the same: what the index is, and which files count.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

import torch

from selhn.base.errors import Damaged
from selhn.base.version import __version__
from selhn.search.items import Hit, Kind
from selhn.search.stores.checked_files import read_checked_json
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.segment import Part
from selhn.search.stores.store import Identity
from selhn.search.stores.vectors import DTYPES

FORMAT, VERSION = "selhn-index", 2
MANIFEST = "manifest.json"
_Fields: TypeAlias = Mapping[str, type | tuple[type, ...]]
_OF_MANIFEST: _Fields = {
    "format": str, "version": int, "selhn": str, "generation": int, "model": dict, "width": int,
    "precision": str, "about": dict, "unfinished": (str, NoneType), "next": int, "segments": list,
    "approximate": list,
}  # fmt: skip
_OF_MODEL = {"digest": str, "name": str, "kept": bool}
_OF_SEGMENT: _Fields = {"name": str, "items": int, "texts": int, "files": dict, "deleted": (list, NoneType)}
_OF_FAISS = {"file": str, "kind": str, "side": str, "parts": int, "written": list}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The parts of an index in order; rows are numbered through all of them, with those of deleted items."""

    identity: Identity
    parts: Sequence[Part] = ()
    generation: int = 0
    unfinished: str | None = None
    """Digest of what `Index.build` was indexing when it was stopped."""
    candidates: Mapping[Kind, FaissCandidates] = field(default_factory=dict)
    next_name: int = 1
    """A number that no file of the folder has had."""
    model_kept: bool = False
    born: str = ""
    """Distinguishes the index from another that was built in its place, whose generations begin again."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @cached_property
    def row_of_id(self) -> dict[str, tuple[int, int]]:
        """Part and row of every item that is there."""
        found = {}
        for number, part in enumerate(self.parts):
            ids = part.segment.lines.ids
            found.update({ids[row]: (number, row) for row in part.rows()})
        return found

    @cached_property
    def first_rows(self) -> dict[Kind, list[int]]:
        """For images and texts the first row of each part, and after the last part the number of rows."""
        segments = [part.segment for part in self.parts]
        return {
            "image": [0, *accumulate(len(segment.images) for segment in segments)],
            "text": [0, *accumulate(len(segment.texts) for segment in segments)],
        }

    def without(self, places: Sequence[tuple[int, int]]) -> list[Part]:
        alive = {number: self.parts[number].alive.clone() for number, _ in places}
        for number, row in places:
            alive[number][row] = False
        return [Part(part.segment, alive.get(n, part.alive), part.entry) for n, part in enumerate(self.parts)]

    def hit(self, kind: Kind, row: int, score: float) -> Hit:
        """The image or caption of a row as an answer."""
        first = self.first_rows[kind]
        number = bisect_right(first, row) - 1
        segment, local = self.parts[number].segment, row - first[number]
        if kind == "image":
            record = segment.lines[local]
            return Hit(score, kind, record.id, record.captions, record.id, record.metadata)
        item = segment.item_of_text[local]
        record = segment.lines[int(item)]
        place = local - int(torch.searchsorted(segment.item_of_text, item))
        if place >= len(record.captions):
            raise Damaged(f"{record.id!r} has more vectors than captions: build the index again")
        return Hit(score, kind, record.captions[place], (), record.id, record.metadata)


class OtherVersion(Damaged):
    """An index that another version of selhn wrote."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; every field has the type that was written."""
    if not (folder / MANIFEST).is_file():
        raise Damaged(f"it has no {MANIFEST}")
    content = read_checked_json(folder / MANIFEST)
    _require(content, _OF_MANIFEST)
    if content["format"] != FORMAT or content["version"] != VERSION:
        raise OtherVersion(
            f"{folder} has version {content['version']} of {content['format']} (selhn {content['selhn']}), "
            f"this selhn reads version {VERSION}: install another selhn, or remove it and build it again"
        )
    if content["precision"] not in DTYPES:
        raise Damaged(f"it has vectors in {content['precision']!r}")
    _require(content["model"], _OF_MODEL)
    for entry in content["segments"]:
        _require(entry, _OF_SEGMENT)
        _require_plain(entry["name"])
        if entry["deleted"] is not None:
            if len(entry["deleted"]) != 3:
                raise Damaged("it does not say which items were deleted")
            _require_plain(entry["deleted"][0])
    for entry in content["approximate"]:
        _require(entry, _OF_FAISS)
        _require_plain(entry["file"])
    return content


def manifest_of(snapshot: Snapshot) -> dict[str, Any]:
    """The manifest of a snapshot whose files are written."""
    identity = snapshot.identity
    return {
        "format": FORMAT,
        "version": VERSION,
        "selhn": __version__,
        "generation": snapshot.generation,
        "born": snapshot.born,
        "model": {"digest": identity.model, "name": identity.model_name, "kept": snapshot.model_kept},
        "width": identity.width,
        "precision": identity.precision,
        "about": dict(identity.about),
        "unfinished": snapshot.unfinished,
        "next": snapshot.next_name,
        "segments": [dict(part.entry) for part in snapshot.parts],
        "approximate": [one.entry for one in snapshot.candidates.values()],
    }


def _require(content: Any, fields: _Fields) -> None:
    for name, kind in fields.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise Damaged(f"{MANIFEST} has no {name!r} that could have been written")


def _require_plain(name: Any) -> None:
    """Refuse the name of a file that could lead out of its folder."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise Damaged(f"it names the file {name!r}")
