"""An index at one moment: its segments, and which items of them are there. Never changed, only replaced."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch

from selhn.base.errors import Damaged
from selhn.search.items import Hit, Kind, Record
from selhn.search.stores.faiss_candidates import FaissCandidates
from selhn.search.stores.segment import Part
from selhn.search.stores.store import Identity
from selhn.search.where import Filter


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
        return {
            part.segment.lines.ids[row]: (number, row)
            for number, part in enumerate(self.parts)
            for row in part.alive.nonzero()[:, 0].tolist()
        }

    def records(self, filter: Filter | None = None) -> Iterator[Record]:
        """The records of all items that match a filter, in order."""
        for part in self.parts:
            mask = part.mask("image", filter)
            for row in range(len(part)) if mask is None else mask.nonzero()[:, 0].tolist():
                yield part.segment.lines[row]

    def count(self, kind: Kind = "image", filter: Filter | None = None) -> int:
        """Number of images, or of captions, whose items match a filter."""
        sizes = [len(part.segment.vectors(kind)) for part in self.parts]
        masks = [part.mask(kind, filter) for part in self.parts]
        return sum(size if mask is None else int(mask.sum()) for size, mask in zip(sizes, masks))

    @cached_property
    def first_rows(self) -> dict[Kind, list[int]]:
        """For images and texts the first row of each part, and after the last part the number of rows."""
        segments = [part.segment for part in self.parts]
        images = [0, *accumulate(len(segment.images) for segment in segments)]
        return {"image": images, "text": [0, *accumulate(len(segment.texts) for segment in segments)]}

    def without(self, places: Sequence[tuple[int, int]]) -> list[Part]:
        """The parts without some items."""
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
