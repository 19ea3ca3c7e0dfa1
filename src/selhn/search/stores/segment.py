"""A segment: some items that were written together and never change. An index is a list of them.

images.npy         (items, d)   float32, float16 or int8         images_scale.npy  (items)  float32, for int8
texts.npy          (texts, d)   the captions of all items         texts_scale.npy   (texts)  float32, for int8
item_of_text.npy   (texts)      int32: the item of each caption
items.jsonl        {"id", "captions", "metadata"}   one item per line
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
FILTERS_KEPT = 32


def layout(
    precision: StoredPrecision, items: int, texts: int, width: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The arrays of a segment with their types and shapes; empty ones have no file."""
    arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, number in (("images", items), ("texts", texts)):
        arrays[name] = DTYPES[precision], (number, width)
        if precision == "int8":
            arrays[f"{name}_scale"] = torch.float32, (number,)
    arrays["item_of_text"] = torch.int32, (texts,)
    return {name: array for name, array in arrays.items() if array[1][0]}


class Lines:
    """The records of a segment, in memory or mapped; each is parsed when it is used."""

    def __init__(self, content: npt.NDArray[np.uint8]):
        self.content = content.view(np.ndarray)  # slices of a memmap are slow to make
        self.ends = np.flatnonzero(content == ord("\n")) + 1

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, row: int) -> bytes:
        return self.content[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()

    def __getitem__(self, row: int) -> Record:
        return Record.from_line(self.raw(row))

    @cached_property
    def ids(self) -> list[str]:
        return [record.id for record in self]

    def __iter__(self) -> Iterator[Record]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True, eq=False)
class Segment:
    """n items with t captions."""

    images: Vectors
    texts: Vectors
    item_of_text: Int[Tensor, " t"]
    lines: Lines
    _chosen: dict[str, Bool[Tensor, " n"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def chosen(self, filter: Filter) -> Bool[Tensor, " n"]:
        """The items that match a filter; computed once, because a segment never changes."""
        name = repr(filter)
        if name not in self._chosen:
            if len(self._chosen) >= FILTERS_KEPT:
                self._chosen.pop(next(iter(self._chosen)), None)
            self._chosen[name] = torch.tensor([filter(record) for record in self.lines], dtype=torch.bool)
        return self._chosen[name]

    def vectors(self, kind: Kind) -> Vectors:
        return self.images if kind == "image" else self.texts

    @classmethod
    def open(cls, folder: Path, entry: Mapping[str, Any], precision: StoredPrecision, width: int) -> "Segment":
        """One that `Draft.write` wrote, with its vectors mapped.

        The records are read and their checksum compared; of the vectors only the lengths, so that opening a
        large index does not read it. `check_files` reads all.
        """
        items, texts, files = entry["items"], entry["texts"], entry["files"]
        for name in files:
            check_length(folder / name, files[name])
        check_content(folder / LINES_FILE, files.get(LINES_FILE))
        lines = Lines(np.memmap(folder / LINES_FILE, np.uint8, "r"))
        if len(lines) != items:
            raise Damaged(f"{LINES_FILE} has {len(lines)} lines and not {items}")
        arrays = layout(precision, items, texts, width)
        opened = {name: open_rows(folder / f"{name}.npy", *array) for name, array in arrays.items()}
        images = Vectors(opened["images"], opened.get("images_scale"))
        if not texts:
            return cls(images, images[:0], torch.empty(0, dtype=torch.int64), lines)
        check_content(folder / "item_of_text.npy", files.get("item_of_text.npy"))
        owners = opened["item_of_text"].long()
        if not 0 <= int(owners[0]) <= int(owners[-1]) < items or bool((owners.diff() < 0).any()):
            raise Damaged("item_of_text.npy names items that do not exist")
        return cls(images, Vectors(opened["texts"], opened.get("texts_scale")), owners, lines)


@dataclass(frozen=True, eq=False)
class Part:
    """A segment and which of its items are still there."""

    segment: Segment
    alive: Bool[Tensor, " n"]
    entry: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of it; nothing if it is in memory."""

    @classmethod
    def whole(cls, segment: Segment) -> "Part":
        return cls(segment, torch.ones(len(segment), dtype=torch.bool))

    def __len__(self) -> int:
        return self._number

    @cached_property
    def _number(self) -> int:
        return int(self.alive.sum())

    def mask(self, kind: Kind, filter: Filter | None = None) -> Bool[Tensor, " rows"] | None:
        """Which images or captions are there and match a filter; None for all."""
        if filter is None and len(self) == len(self.alive):
            return None
        chosen = self.alive if filter is None else self.alive & self.segment.chosen(filter)
        return chosen if kind == "image" else chosen[self.segment.item_of_text]

    def rows(self, filter: Filter | None = None) -> list[int]:
        """The items that are there and match a filter."""
        mask = self.mask("image", filter)
        return list(range(len(self))) if mask is None else mask.nonzero()[:, 0].tolist()

    def to(self, device: torch.device) -> "Part":
        images, texts = self.segment.images.to(device), self.segment.texts.to(device)
        return replace(self, segment=replace(self.segment, images=images, texts=texts))


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
        lines = Lines(np.frombuffer(b"".join(record.to_line() for record in records), np.uint8))
        numbers = torch.tensor([len(record.captions) for record in records], dtype=torch.int64)
        owners = torch.arange(len(records)).repeat_interleave(numbers)
        segment = Segment(Vectors.of(images, precision), Vectors.of(texts, precision), owners, lines)
        return cls([Part.whole(segment)])

    def vectors(self, kind: Kind) -> Iterator[Vectors]:
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
        for part in self.parts:
            yield from map(part.segment.lines.raw, part.rows())

    def in_memory(self) -> Segment:
        first = self.parts[0].segment
        images = Vectors.joined([first.images[:0], *self.vectors("image")])
        texts = Vectors.joined([first.texts[:0], *self.vectors("text")])
        lines = Lines(np.frombuffer(b"".join(self.line_chunks()), np.uint8))
        return Segment(images, texts, self.item_of_text(), lines)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the segment into a new folder; returns what the manifest says of it."""
        folder.mkdir(parents=True)
        first, owners, items = self.parts[0].segment.images, self.item_of_text(), sum(map(len, self.parts))
        files = {LINES_FILE: write_file(folder / LINES_FILE, self.line_chunks())}
        for name, (dtype, shape) in layout(first.precision, items, len(owners), first.rows.shape[1]).items():
            chunks = [owners.int()] if name == "item_of_text" else self._array(name)
            files[f"{name}.npy"] = write_file(folder / f"{name}.npy", array_chunks(shape, dtype, chunks))
        sync_folder(folder)
        return {"name": folder.name, "items": items, "texts": len(owners), "files": files, "deleted": None}

    def _array(self, name: str) -> Iterator[Tensor]:
        """The rows or the scales of images or texts."""
        for some in self.vectors("image" if name.startswith("images") else "text"):
            yield some.scale if name.endswith("_scale") and some.scale is not None else some.rows


def check_files(folder: Path, entry: Mapping[str, Any]) -> None:
    """Read every file of a segment and refuse one that is not what was written."""
    for name, written in entry["files"].items():
        check_content(folder / name, written)
