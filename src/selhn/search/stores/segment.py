"""A segment: some items that were written together and never change. An index is a list of them.

images.npy         (items, d)   float32, float16 or int8         images_scale.npy  (items)  float32, for int8
texts.npy          (texts, d)   the captions of all items         texts_scale.npy   (texts)  float32, for int8
item_of_text.npy   (texts)      int32: the item of each caption
items.jsonl        {"id", "captions", "metadata"}   one item per line
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import Damaged
from selhn.base.types import StoredPrecision
from selhn.search.filters import Filter, OneOf
from selhn.search.items import PLURAL, Kind, Record, date_of, whole
from selhn.search.stores.checked_files import check_content, check_length, open_rows, write_file, write_rows
from selhn.search.stores.store import Encoded, Identity
from selhn.search.stores.vectors import Vectors

LINES_FILE = "items.jsonl"
CHECKED_AT_ONCE = 16 * 2**20
"""Files up to this many bytes have their checksum compared at every opening, which takes milliseconds."""
FILTERS_KEPT = 32


def layout(identity: Identity, items: int, texts: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The arrays of a segment with their types and shapes; empty ones have no file."""
    arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, number in (("images", items), ("texts", texts)):
        arrays[name] = getattr(torch, identity.precision), (number, identity.width)
        if identity.precision == "int8":
            arrays[f"{name}_scale"] = torch.float32, (number,)
    arrays["item_of_text"] = torch.int32, (texts,)
    return arrays


class Lines:
    """The records of a segment, in memory or mapped; each is parsed when it is used."""

    def __init__(self, content: bytes | npt.NDArray[np.uint8]):
        self.content = np.frombuffer(content, np.uint8)  # slices of a memmap are slow to make
        self.ends = np.flatnonzero(self.content == ord("\n")) + 1

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, row: int) -> bytes:
        return self.content[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()

    def __getitem__(self, row: int) -> Record:
        return Record.from_line(self.raw(row))

    @property
    def ids(self) -> list[str]:
        return self._heads[0]

    @property
    def dates(self) -> list[str]:
        """The date of each record; see `date_of`."""
        return self._heads[1]

    def find(self, names: Sequence[str], digests: Int[np.ndarray, " n"]) -> Iterator[tuple[str, int]]:
        """The ids that are here, with their rows; `digests` has the hash of each."""
        known, rows = self._by_digest
        first, last = np.searchsorted(known, digests), np.searchsorted(known, digests, "right")
        for at in np.flatnonzero(first < last).tolist():
            same = (row for row in rows[first[at] : last[at]].tolist() if self[row].id == names[at])
            yield from ((names[at], row) for row in same)

    @cached_property
    def _by_digest(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Hashes of all ids in order, and the row of each: takes less memory than the ids."""
        digests = np.fromiter((hash(self[row].id) for row in range(len(self))), np.int64, len(self))
        order = digests.argsort().astype(np.int32)
        return digests[order], order

    @cached_property
    def _heads(self) -> tuple[list[str], list[str]]:
        records = [(record.id, date_of(record)) for record in map(self.__getitem__, range(len(self)))]
        return [name for name, _ in records], [date for _, date in records]


@dataclass(frozen=True, eq=False)
class Segment:
    """n items with t captions, and which items are deleted; its length does not count those."""

    vectors: Mapping[Kind, Vectors]
    item_of_text: Int[Tensor, " t"]
    lines: Lines
    deleted: Int[Tensor, " r"] = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    entry: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says about it; empty if it is in memory."""
    _chosen: dict[str, Bool[Tensor, " n"]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[Encoded], precision: StoredPrecision) -> "Segment":
        _, records, images, texts, _ = zip(*items)
        owners = torch.arange(len(records)).repeat_interleave(torch.tensor(list(map(len, texts))))
        together: dict[Kind, Tensor] = {"image": torch.stack(images), "text": torch.cat(texts)}
        vectors = {kind: Vectors.of(own, precision) for kind, own in together.items()}
        return cls(vectors, owners, Lines(b"".join(record.to_line() for record in records)))

    @classmethod
    def open(cls, index: Path, entry: Mapping[str, Any], identity: Identity) -> "Segment":
        """Open what `write_segment` wrote, with the vectors memory-mapped.

        All checksums are compared; of vector files above `CHECKED_AT_ONCE` bytes only the lengths, so
        that opening a large index does not read it.
        """
        folder, items, files = index / "segments" / entry["name"], entry["items"], entry["files"]
        always = {LINES_FILE, *(["item_of_text.npy"] if entry["texts"] else [])}
        for name in {*files, *always}:
            check_length(folder / name, files.get(name))
            if name in always or (folder / name).stat().st_size <= CHECKED_AT_ONCE:
                check_content(folder / name, files[name])
        if files[LINES_FILE][0] == 0:
            raise Damaged(f"{LINES_FILE} is empty")
        lines = Lines(np.memmap(folder / LINES_FILE, np.uint8, "r"))
        if len(lines) != items:
            raise Damaged(f"{LINES_FILE} has {len(lines)} lines, not {items}")
        arrays = layout(identity, items, entry["texts"])
        opened = {name: open_rows(folder / f"{name}.npy", *array) for name, array in arrays.items()}
        vectors = {kind: Vectors(opened[name], opened.get(f"{name}_scale")) for kind, name in PLURAL.items()}
        owners, deleted = opened["item_of_text"].long(), torch.empty(0, dtype=torch.int64)
        outside = len(owners) and not 0 <= int(owners[0]) <= int(owners[-1]) < items
        if outside or bool((owners.diff() < 0).any()):
            raise Damaged("item_of_text.npy names items that do not exist")
        if entry["deleted"] is not None:
            name, number, written = entry["deleted"]
            check_content(index / "deleted" / name, written)
            deleted = open_rows(index / "deleted" / name, torch.int32, (number,)).long()
            if not 0 <= int(deleted.min()) <= int(deleted.max()) < items:
                raise Damaged(f"{name} deletes items that do not exist")
        return cls(vectors, owners, lines, deleted, entry)

    def __len__(self) -> int:
        return len(self.lines) - len(self.deleted)

    @cached_property
    def alive(self) -> Bool[Tensor, " n"]:
        return torch.ones(len(self.lines), dtype=torch.bool).index_fill(0, self.deleted, False)

    def chosen(self, filter: Filter) -> Bool[Tensor, " n"]:
        """The items that match a filter, deleted ones too; computed once, because records never change."""
        name = repr(filter)
        if name not in self._chosen:
            if len(self._chosen) >= FILTERS_KEPT:
                self._chosen.pop(next(iter(self._chosen)), None)
            if isinstance(filter, OneOf):  # known without reading the records
                found = [whole(name) in filter.ids for name in self.lines.ids]
            else:
                found = [filter(self.lines[row]) for row in range(len(self.lines))]
            self._chosen[name] = torch.tensor(found, dtype=torch.bool)
        return self._chosen[name]

    def mask(self, kind: Kind, filter: Filter | None = None) -> Bool[Tensor, " rows"] | None:
        """Which images or captions are not deleted and match a filter; None for all."""
        if filter is None and len(self.deleted) == 0:
            return None
        chosen = self.alive if filter is None else self.alive & self.chosen(filter)
        return chosen if kind == "image" else chosen[self.item_of_text]

    def ids(self) -> list[str]:
        """The ids of the items that are not deleted."""
        return [self.lines.ids[row] for row in self.rows()]

    def rows(self, filter: Filter | None = None) -> list[int]:
        """The rows of the items that are not deleted and match a filter."""
        mask = self.mask("image", filter)
        return list(range(len(self))) if mask is None else mask.nonzero()[:, 0].tolist()

    def to(self, device: torch.device) -> "Segment":
        return replace(self, vectors={kind: own.to(device) for kind, own in self.vectors.items()})


def merged(segments: Sequence[Segment]) -> Segment:
    """What is left of some segments, as one segment in memory."""
    vectors: dict[Kind, Vectors] = {}
    for kind in PLURAL:
        vectors[kind] = Vectors.joined([segments[0].vectors[kind][:0], *_left(segments, kind)])
    return Segment(vectors, _item_of_text(segments), Lines(b"".join(_left_lines(segments))))


def write_segment(folder: Path, segments: Sequence[Segment], identity: Identity) -> dict[str, Any]:
    """Merge segments into a new folder, block by block, never all in memory. Returns its `entry`."""
    folder.mkdir(parents=True)
    owners, items = _item_of_text(segments), sum(map(len, segments))
    files = {LINES_FILE: write_file(folder / LINES_FILE, _left_lines(segments))}
    for name, (dtype, shape) in layout(identity, items, len(owners)).items():
        if shape[0]:
            chunks = [owners.int()] if name == "item_of_text" else _left_array(segments, name)
            files[f"{name}.npy"] = write_rows(folder / f"{name}.npy", dtype, shape, chunks)
    return {"name": folder.name, "items": items, "texts": len(owners), "files": files, "deleted": None}


def _left(segments: Sequence[Segment], kind: Kind) -> Iterator[Vectors]:
    for segment in segments:
        vectors, mask = segment.vectors[kind], segment.mask(kind)
        for block in vectors.blocks():
            yield vectors[block] if mask is None else vectors[block][mask[block].nonzero()[:, 0]]


def _left_array(segments: Sequence[Segment], name: str) -> Iterator[Tensor]:
    """The rows or the scales of images or texts."""
    for some in _left(segments, "image" if name.startswith("images") else "text"):
        yield some.scale if name.endswith("_scale") and some.scale is not None else some.rows


def _left_lines(segments: Sequence[Segment]) -> Iterator[bytes]:
    return (segment.lines.raw(row) for segment in segments for row in segment.rows())


def _item_of_text(segments: Sequence[Segment]) -> Int[Tensor, " t"]:
    """The item of each caption, numbered among the items that are left."""
    owners, first = [torch.empty(0, dtype=torch.int64)], 0
    for segment in segments:
        new_row = segment.alive.cumsum(0) - 1 + first
        owner = segment.item_of_text
        owners.append(new_row[owner[segment.alive[owner]]])
        first += len(segment)
    return torch.cat(owners)
