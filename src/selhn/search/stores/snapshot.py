"""An index at one moment: its segments, and which of their items exist. Never changed, only replaced.

In a folder the manifest says the same: what the index is, and which files count.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, get_args

import numpy as np
import torch

from selhn.base.errors import Damaged, SelhnError
from selhn.base.types import StoredPrecision
from selhn.base.version import __version__
from selhn.search.items import PLURAL, Hit, Kind, Order, by_date, whole
from selhn.search.stores.checked_files import read_checked_json, write_checked_json
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.segment import Segment
from selhn.search.stores.store import Identity

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
    """The segments of an index in order; rows are numbered through all of them, deleted items included."""

    identity: Identity
    segments: Sequence[Segment] = ()
    generation: int = 0
    unfinished: str | None = None
    """Digest of what `Index.build` was indexing when it was stopped."""
    candidates: Mapping[Kind, FaissCandidates] = field(default_factory=dict)
    next_name: int = 1
    """A number that no file of the folder has used yet."""
    model_kept: bool = False
    born: str = ""
    """Distinguishes the index from a later one in its place, whose generations begin again."""
    _sorted: dict[Order, list[tuple[int, int]]] = field(default_factory=dict, init=False)

    @classmethod
    def read(cls, folder: Path) -> "Snapshot":
        """Read what the manifest of a folder names, except the FAISS indices."""
        content = read_manifest(folder)
        model, of_vectors = content["model"], (content["width"], content["precision"], content["about"])
        identity = Identity(model["digest"], model["name"], *of_vectors)
        known = [{name: one[name] for name in _OF_FAISS} for one in content["approximate"]]
        return cls(
            identity,
            [Segment.open(folder, entry, identity) for entry in content["segments"]],
            content["generation"],
            content["unfinished"],
            {one["side"]: FaissCandidates(**one) for one in known if one["side"] in PLURAL},
            content["next"],
            model["kept"],
            str(content.get("born", "")),
        )

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder, in which all files are written, in one step."""
        identity, candidates = self.identity, self.candidates.values()
        content = {
            "format": FORMAT,
            "version": VERSION,
            "selhn": __version__,
            "generation": self.generation,
            "born": self.born,
            "model": {"digest": identity.model, "name": identity.model_name, "kept": self.model_kept},
            "width": identity.width,
            "precision": identity.precision,
            "about": dict(identity.about),
            "unfinished": self.unfinished,
            "next": self.next_name,
            "segments": [dict(segment.entry) for segment in self.segments],
            "approximate": [{name: getattr(one, name) for name in _OF_FAISS} for one in candidates],
        }
        write_checked_json(folder / MANIFEST, content)

    def is_in(self, folder: Path) -> bool:
        """Whether a folder has this snapshot; False if it cannot be read."""
        try:
            content = read_manifest(folder)
        except (SelhnError, OSError):
            return False
        known = content["model"]["digest"], content["generation"], content.get("born", "")
        return known == (self.identity.model, self.generation, self.born)

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def find(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Number of the segment, and row in it, of the items that exist."""
        asked = list(names)
        digests = np.fromiter(map(hash, asked), np.int64, len(asked))
        found = {}
        for number, segment in enumerate(self.segments):
            for name, row in segment.lines.find(asked, digests):
                if segment.alive[row]:
                    found[name] = number, row
        return found

    @cached_property
    def has_moments(self) -> bool:
        return any(whole(name) != name for segment in self.segments for name in segment.ids())

    def places(self, order: Order | None = None) -> list[tuple[int, int]]:
        """Number of the segment, and row in it, of every item, by date or in the order of adding."""
        places = ((number, row) for number, segment in enumerate(self.segments) for row in segment.rows())
        if order is None:
            return list(places)
        if order not in self._sorted:
            lines = [segment.lines for segment in self.segments]
            dated = ((lines[at].dates[row], lines[at].ids[row], (at, row)) for at, row in places)
            self._sorted[order] = by_date(dated, order)
        return self._sorted[order]

    @cached_property
    def first_rows(self) -> dict[Kind, list[int]]:
        """For images and texts the first row of each segment, followed by the number of rows."""
        return {kind: [0, *accumulate(len(one.vectors[kind]) for one in self.segments)] for kind in PLURAL}

    def without(self, ids: Iterable[str]) -> list[Segment]:
        """The segments without the items of these ids; unknown ids are ignored."""
        segments = list(self.segments)
        gone: dict[int, list[int]] = {}
        for number, row in self.find(ids).values():
            gone.setdefault(number, []).append(row)
        for number, rows in gone.items():
            deleted = torch.cat([segments[number].deleted, torch.tensor(rows)]).sort().values
            segments[number] = replace(segments[number], deleted=deleted)
        return segments

    def hit(self, kind: Kind, row: int, score: float) -> Hit:
        """The image or caption of a row as an answer."""
        first = self.first_rows[kind]
        number = bisect_right(first, row) - 1
        segment, local = self.segments[number], row - first[number]
        if kind == "image":
            return segment.lines[local].hit(score)
        item = segment.item_of_text[local]
        record = segment.lines[int(item)]
        place = local - int(torch.searchsorted(segment.item_of_text, item))
        if place >= len(record.captions):
            raise Damaged(f"{record.id!r} has more vectors than captions: build the index again")
        return record.hit(score, record.captions[place])


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
    if content["precision"] not in get_args(StoredPrecision):
        raise Damaged(f"it has vectors in {content['precision']!r}")
    _require(content["model"], _OF_MODEL)
    _require_plain(content["model"]["digest"])
    for entry in content["segments"]:
        _require(entry, _OF_SEGMENT)
        for name in (entry["name"], *entry["files"]):
            _require_plain(name)
        if entry["deleted"] is not None:
            if len(entry["deleted"]) != 3 or type(entry["deleted"][1]) is not int or entry["deleted"][1] < 1:
                raise Damaged("it does not say which items were deleted")
            _require_plain(entry["deleted"][0])
    for entry in content["approximate"]:
        _require(entry, _OF_FAISS)
        _require_plain(entry["file"])
    return content


def _require(content: Any, fields: _Fields) -> None:
    for name, kind in fields.items():
        value = content.get(name) if isinstance(content, dict) else None
        is_number = kind is not int or (type(value) is int and 0 <= value < 2**40)
        if not isinstance(content, dict) or not isinstance(value, kind) or not is_number:
            raise Damaged(f"{name!r} in {MANIFEST} is missing or wrong")


def _require_plain(name: Any) -> None:
    """Refuse the name of a file that could lead out of its folder."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise Damaged(f"it names the file {name!r}, which is not allowed")
