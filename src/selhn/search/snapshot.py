"""An index at one moment: its segments, and which items of them are there. Never changed, only replaced."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from selhn.base.errors import Damaged, NotFound
from selhn.search.items import Hit, Kind, Record
from selhn.search.segment import Part
from selhn.search.vectors import Precision
from selhn.search.where import Filter


@dataclass(frozen=True, eq=False)
class Identity:
    """What an index is, whatever it holds."""

    model: str
    """Digest of the model's name, settings and weights."""
    model_name: str
    width: int
    precision: Precision = "float32"
    about: Mapping[str, Any] = field(default_factory=dict)
    """What whoever made it wants to remember, such as how pictures become regions."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The parts of an index in order; rows count through all of them, those of deleted items too."""

    identity: Identity
    parts: Sequence[Part] = ()
    generation: int = 0
    unfinished: str | None = None
    """Digest of what `Index.build` was indexing when it was stopped."""

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

    def place(self, name: str) -> tuple[int, int]:
        """Part and row of an item, or an error that says it is not there."""
        if name not in self.row_of_id:
            raise NotFound(
                f"there is no item {name[:80]!r} in the index: ids are case-sensitive; `index.ids()` has all"
            )
        return self.row_of_id[name]

    def records(self, filter: Filter | None = None) -> Iterator[Record]:
        """What is known of every item for which a filter holds, in order."""
        for part, chosen in zip(self.parts, self._chosen(filter)):
            for row in chosen.nonzero()[:, 0].tolist():
                yield part.segment.lines[row]

    def count(self, filter: Filter) -> int:
        """For how many items a filter holds."""
        return sum(int(chosen.sum()) for chosen in self._chosen(filter))

    def _chosen(self, filter: Filter | None) -> Iterator[Bool[Tensor, " n"]]:
        for part in self.parts:
            yield part.alive if filter is None else part.alive & part.segment.chosen(filter)

    def first_rows(self, kind: Kind) -> list[int]:
        """Where the rows of each part begin, and behind the last, where they end."""
        return self._first_rows[kind]

    @cached_property
    def _first_rows(self) -> dict[Kind, list[int]]:
        return {
            kind: [0, *accumulate(len(part.segment.vectors(kind)) for part in self.parts)] for kind in get_args(Kind)
        }

    @property
    def num_texts(self) -> int:
        """How many captions there are."""
        return self._alive_before["text"][-1]

    def has_texts(self) -> bool:
        """Whether any item has a caption."""
        return self.num_texts > 0

    def without(self, places: Sequence[tuple[int, int]]) -> list[Part]:
        """The parts without some items."""
        alive = {number: self.parts[number].alive.clone() for number, _ in places}
        for number, row in places:
            alive[number][row] = False
        return [Part(part.segment, alive.get(number, part.alive)) for number, part in enumerate(self.parts)]

    def hit(self, kind: Kind, row: int, score: float) -> Hit:
        """The answer that stands in a row."""
        first = self.first_rows(kind)
        number = bisect_right(first, row) - 1
        segment, local = self.parts[number].segment, row - first[number]
        position = self._alive_before[kind][number] + self.parts[number].alive_before(kind, local)
        if kind == "image":
            record = segment.lines[local]
            return Hit(score, kind, position, record.id, record.captions, record.id, record.metadata)
        item = segment.item_of_text[local]
        record = segment.lines[int(item)]
        place = local - int(torch.searchsorted(segment.item_of_text, item))
        if place >= len(record.captions):
            raise Damaged(f"the index is damaged: {record.id!r} has more vectors than captions; build it again")
        return Hit(score, kind, position, record.captions[place], (), record.id, record.metadata)

    @cached_property
    def _alive_before(self) -> dict[Kind, list[int]]:
        """How many images and how many captions are there before each part."""
        return {
            kind: [0, *accumulate(part.alive_before(kind, len(part.segment.vectors(kind))) for part in self.parts)]
            for kind in get_args(Kind)
        }
