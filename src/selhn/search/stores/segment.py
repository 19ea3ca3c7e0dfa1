"""A segment: some items that were written together and never change. An index is a list of them.

images.npy         (items, d)   float32, float16 or int8         images_scale.npy  (items)  float32, for int8
texts.npy          (texts, d)   the captions of all items         texts_scale.npy   (texts)  float32, for int8
item_of_text.npy   (texts)      int32: the item of each caption
items.jsonl        {"id", "captions", "metadata"}   one item a line
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from selhn.base.errors import Damaged
from selhn.base.types import StoredPrecision
from selhn.search.items import Kind, Record
from selhn.search.stores.checked_files import (
    array_chunks,
    check_content,
    check_length,
    open_rows,
    sync_folder,
    write_file,
)
from selhn.search.stores.vectors import DTYPES, Vectors
from selhn.search.where import Filter

LINES_FILE = "items.jsonl"
NEW_LINE = 10
FILTERS_KEPT = 32


class Lines:
    """The records of a segment, in memory or mapped; each is read when it is asked for."""

    def __init__(self, content: npt.NDArray[np.uint8]):
        self.content = content.view(np.ndarray)  # slices of a memmap are slow to make
        self.ends = np.flatnonzero(content == NEW_LINE) + 1

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, row: int) -> bytes:
        """A line as it was written."""
        return self.content[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()

    def __getitem__(self, row: int) -> Record:
        return Record.from_line(self.raw(row))

    @cached_property
    def ids(self) -> list[str]:
        """The ids of all items; read once."""
        return [record.id for record in self]

    def __iter__(self) -> Iterator[Record]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True, eq=False)
class Segment:
    """n items with t captions."""

    name: str
    images: Vectors
    texts: Vectors
    item_of_text: Int[Tensor, " t"]
    lines: Lines
    _chosen: dict[str, Bool[Tensor, " n"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def chosen(self, filter: Filter) -> Bool[Tensor, " n"]:
        """The items for which a filter holds; found once, for a segment never changes."""
        name = repr(filter)
        if name not in self._chosen:
            if len(self._chosen) >= FILTERS_KEPT:
                self._chosen.pop(next(iter(self._chosen)), None)
            self._chosen[name] = torch.tensor([filter(record) for record in self.lines], dtype=torch.bool)
        return self._chosen[name]

    def vectors(self, kind: Kind) -> Vectors:
        """Those of the images or of the captions."""
        return self.images if kind == "image" else self.texts

    def items_of(self, kind: Kind, mask: Bool[Tensor, " n"]) -> Bool[Tensor, " rows"]:
        """A choice of items as a choice of images or of captions."""
        return mask if kind == "image" else mask[self.item_of_text]

    def to(self, device: torch.device | str) -> "Segment":
        """The same with its vectors on a device."""
        images, texts = self.images.to(device), self.texts.to(device)
        return Segment(self.name, images, texts, self.item_of_text, self.lines, self._chosen)

    @classmethod
    def open(cls, folder: Path, entry: dict[str, Any], precision: StoredPrecision, width: int) -> "Segment":
        """One that `Draft.write` wrote, with its vectors mapped.

        The records are read and their checksum compared; of the vectors only the lengths, so that opening a large
        index does not read it. `check_files` reads all.
        """
        items, texts, files = entry["items"], entry["texts"], entry["files"]
        for name in files:
            check_length(folder / name, files[name])
        check_content(folder / LINES_FILE, files[LINES_FILE])
        lines = Lines(np.memmap(folder / LINES_FILE, np.uint8, "r"))
        if len(lines) != items:
            raise Damaged(f"{LINES_FILE} has {len(lines)} lines and not {items}")

        def rows(kind: str, number: int) -> Vectors:
            dtype = DTYPES[precision]
            if number == 0:
                return Vectors(torch.empty(0, width, dtype=dtype), torch.empty(0) if precision == "int8" else None)
            vectors = open_rows(folder / f"{kind}.npy", dtype, (number, width))
            scale = open_rows(folder / f"{kind}_scale.npy", torch.float32, (number,)) if precision == "int8" else None
            return Vectors(vectors, scale)

        item_of_text = torch.empty(0, dtype=torch.int64)
        if texts:
            check_content(folder / "item_of_text.npy", files["item_of_text.npy"])
            item_of_text = open_rows(folder / "item_of_text.npy", torch.int32, (texts,)).long()
            if not 0 <= int(item_of_text[0]) <= int(item_of_text[-1]) < items or bool((item_of_text.diff() < 0).any()):
                raise Damaged("item_of_text.npy names items that are not there")
        return cls(entry["name"], rows("images", items), rows("texts", texts), item_of_text, lines)


@dataclass(frozen=True, eq=False)
class Part:
    """A segment and which of its items are still there."""

    segment: Segment
    alive: Bool[Tensor, " n"]

    def __len__(self) -> int:
        return self._number

    @cached_property
    def _number(self) -> int:
        return int(self.alive.sum())

    @cached_property
    def _is_whole(self) -> bool:
        return self._number == len(self.alive)

    def mask(self, kind: Kind) -> Bool[Tensor, " rows"] | None:
        """Which images or captions are there; None where all are."""
        return None if self._is_whole else self.segment.items_of(kind, self.alive)

    def chosen(self, kind: Kind, filter: Filter | None) -> Bool[Tensor, " rows"] | None:
        """Which images or captions are there and match a filter; None for all."""
        if filter is None:
            return self.mask(kind)
        return self.segment.items_of(kind, self.alive & self.segment.chosen(filter))


class Draft:
    """The content of a segment to be, block by block, so that a large one is never in memory."""

    def __init__(self, parts: Sequence[Part]):
        self.parts = [part for part in parts if len(part)]

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        images: Float[Tensor, "n d"],
        texts: Float[Tensor, "t d"],
        precision: StoredPrecision,
    ) -> "Draft":
        """Items with the vectors of their images, and of all their captions in order."""
        content = np.frombuffer(b"".join(record.to_line() for record in records), np.uint8)
        numbers = torch.tensor([len(record.captions) for record in records], dtype=torch.int64)
        owner = torch.arange(len(records)).repeat_interleave(numbers)
        segment = Segment("", Vectors.of(images, precision), Vectors.of(texts, precision), owner, Lines(content))
        return cls([Part(segment, torch.ones(len(records), dtype=torch.bool))])

    @property
    def num_items(self) -> int:
        """n."""
        return sum(map(len, self.parts))

    def chunks(self, kind: Kind) -> Iterator[Vectors]:
        """The vectors of what is there."""
        for part in self.parts:
            vectors, mask = part.segment.vectors(kind), part.mask(kind)
            for block in vectors.blocks():
                yield vectors[block] if mask is None else vectors[block][mask[block].nonzero()[:, 0]]

    def item_of_text(self) -> Int[Tensor, " t"]:
        """The item of each caption, counted among those that are there."""
        owners, first = [torch.empty(0, dtype=torch.int64)], 0
        for part in self.parts:
            new_row = part.alive.cumsum(0) - 1 + first
            owner = part.segment.item_of_text
            owners.append(new_row[owner[part.alive[owner]]])
            first += len(part)
        return torch.cat(owners)

    def line_chunks(self) -> Iterator[bytes]:
        """The records of what is there."""
        for part in self.parts:
            for row in part.alive.nonzero()[:, 0].tolist():
                yield part.segment.lines.raw(row)

    def in_memory(self, name: str) -> Segment:
        """The segment, on no disk."""
        kinds: tuple[Kind, ...] = ("image", "text")
        images, texts = (Vectors.joined([self._none(kind), *self.chunks(kind)]) for kind in kinds)
        lines = Lines(np.frombuffer(b"".join(self.line_chunks()), np.uint8))
        return Segment(name, images, texts, self.item_of_text(), lines)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the segment into a new folder; gives what the manifest says of it."""
        folder.mkdir(parents=True)
        owner = self.item_of_text()
        files = {LINES_FILE: write_file(folder / LINES_FILE, self.line_chunks())}
        sides: tuple[tuple[Kind, str, int], ...] = (("image", "images", self.num_items), ("text", "texts", len(owner)))
        for kind, name, number in sides:
            rows = self._none(kind).rows
            if number == 0:
                continue
            shape = (number, rows.shape[1])
            chunks = array_chunks(shape, rows.dtype, (some.rows for some in self.chunks(kind)))
            files[f"{name}.npy"] = write_file(folder / f"{name}.npy", chunks)
            if rows.dtype == torch.int8:
                scales = (some.scale for some in self.chunks(kind) if some.scale is not None)
                chunks = array_chunks((number,), torch.float32, scales)
                files[f"{name}_scale.npy"] = write_file(folder / f"{name}_scale.npy", chunks)
        if len(owner):
            chunks = array_chunks((len(owner),), torch.int32, [owner.int()])
            files["item_of_text.npy"] = write_file(folder / "item_of_text.npy", chunks)
        sync_folder(folder)
        return {"name": folder.name, "items": self.num_items, "texts": len(owner), "files": files}

    def _none(self, kind: Kind) -> Vectors:
        return self.parts[0].segment.vectors(kind)[:0]


def check_files(folder: Path, entry: dict[str, Any]) -> None:
    """Read every file of a segment and refuse one that is not what was written."""
    for name, written in entry["files"].items():
        check_content(folder / name, written)
