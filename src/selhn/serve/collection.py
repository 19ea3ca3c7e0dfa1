"""A library in service: it answers many questions together and sees what other processes write."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float

from selhn.base.errors import SelhnError
from selhn.pictures import Library
from selhn.search import Hit, Query, Record, is_uri
from selhn.search.items import Order, date_of
from selhn.search.near_duplicates import Alike
from selhn.serve.batching import Wanted
from selhn.serve.duplicates import Duplicates

LOOK_EVERY = 2.0
"""Seconds between two checks whether another process has changed the index."""
COUNTED, MOST_VALUES, TIMELINES_KEPT = 20_000, 50, 8
WIDEST = 1000
"""Largest shape: width in hundredths of the height."""
Answered = list[Hit] | SelhnError


@dataclass(frozen=True)
class Timeline:
    """What a page needs to know about all items to lay them out: a few bytes for each."""

    days: list[tuple[str, int]]
    """Days in their order, 2019-06-14 or "" without a date, each with its number of items."""
    shapes: list[int]
    """100 * width / height, 0 if unknown."""
    version: int

    @classmethod
    def of(cls, records: Iterable[Record], version: int) -> "Timeline":
        shapes: list[int] = []
        days: dict[str, int] = {}
        for record in records:
            shapes.append(_shape(record.metadata.get("width"), record.metadata.get("height")))
            day = date_of(record)[:10]
            days[day] = days.get(day, 0) + 1
        return cls(list(days.items()), shapes, version)

    def months(self) -> list[tuple[str, int]]:
        """Months with their numbers of items."""
        counts: Counter[str] = Counter()
        for day, number in self.days:
            counts[day[:7]] += number
        return list(counts.items())


def _shape(width: Any, height: Any) -> int:
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        return 0
    return max(1, min(WIDEST, round(100 * width / height)))


class Collection:
    """The index of a library and its pictures, or an index of other items."""

    def __init__(self, library: Library):
        self.library, self.index = library, library.index
        # Loaded now, so that problems show at the start and threads only read them.
        self.towers, self.folders = library.towers, library.folders
        self.stale = ""
        """Why the index on disk is no longer the one that is searched; empty if it still is."""
        self._checked = 0.0
        can_compare = self.index.towers.is_product and not is_uri(self.index.path)
        self.duplicates = Duplicates(self.index) if can_compare else None
        self._timelines: dict[tuple[int, str | None, Order], Timeline] = {}
        self._fields: tuple[int, dict[str, list[tuple[Any, int]]]] = (-1, {})
        self.library.know_ids()

    def answer(self, queries: Sequence[Query], wanted: Wanted = lambda row: True) -> list[Answered]:
        """The answers to several queries, or the error in place of one that cannot be answered.

        A filter reads the metadata of every item: it is skipped if no query that has it is still `wanted`.
        """
        self._refresh()
        answers: list[Answered] = [[] for _ in queries]
        groups: dict[str, list[int]] = {}
        for row, query in enumerate(queries):
            groups.setdefault(repr(query.where), []).append(row)
        for rows in groups.values():
            if not any(map(wanted, rows)):
                continue
            try:
                found = self.index.search_many([queries[row] for row in rows])
                for row, hits in zip(rows, found):
                    answers[row] = hits
            except SelhnError as wrong:
                for row in rows:  # one of them caused it: the others get their answers
                    answers[row] = wrong if len(rows) == 1 else self.answer([queries[row]])[0]
        return answers

    def embed(self, prepared: Sequence[Any]) -> list[Float[np.ndarray, " d"]]:
        """The vectors of pictures that `library.prepare` has read."""
        assert self.towers is not None
        return list(self.towers.embed_prepared(prepared))

    def have_pictures(self, items: Sequence[Record] | Sequence[Hit]) -> list[bool]:
        """Which items of the index have a file."""
        return [self.library.file_of(item) is not None for item in items]

    def browse(
        self, first: int, number: int, where: str | None = None, order: Order | None = None
    ) -> tuple[list[Record], int, int]:
        """A page of the items that match a filter, the number of all that do, and the version of this list."""
        self._refresh()
        total, version = self.index.count(where, moments=False), self._version(where)
        found = (
            islice(self.index.records(where, order, first=first, moments=False), number)
            if first < total
            else ()
        )
        return list(found), total, version

    def timeline(self, where: str | None = None, order: Order = "newest") -> Timeline:
        """Days and shapes of all items that match a filter; read once for each version of the list."""
        self._refresh()
        asked = self._version(where), where, order
        if asked not in self._timelines:
            if len(self._timelines) >= TIMELINES_KEPT:
                self._timelines.pop(next(iter(self._timelines)))
            self._timelines[asked] = Timeline.of(self.index.records(where, order, moments=False), asked[0])
        return self._timelines[asked]

    def _version(self, where: str | None) -> int:
        """Differs after every change of the index, and of the albums if the filter names one."""
        albums = self.index.albums
        if albums is None or "album" not in (where or ""):
            return self.index.generation
        return crc32(f"{self.index.generation} {albums.stamp}".encode())

    def alike(self, first: int, number: int) -> tuple[list[tuple[Alike, list[Record]]], int, int] | None:
        """Some groups of near-duplicates with their items, the number of all groups, and of spare pictures.

        None while they are being looked for.
        """
        assert self.duplicates is not None
        groups = self.duplicates.groups()
        if groups is None:
            return None
        page = groups[first : first + number]
        found = self.index.store.get([name for group in page for name in group.ids])
        items = [(group, [found[name].record for name in group.ids if name in found]) for group in page]
        there = [(group, some) for group, some in items if len(some) > 1]
        return there, len(groups), sum(len(group.ids) - 1 for group in groups)

    def fields(self) -> dict[str, list[tuple[Any, int]]]:
        """The metadata fields with few values that many items share, and the counts of these values."""
        generation = self.index.generation
        if self._fields[0] != generation:
            counts: dict[str, Counter[Any]] = {}
            for record in islice(self.index.records(moments=False), COUNTED):
                for name, value in record.metadata.items():
                    short = isinstance(value, str | bool | int | float) and len(str(value)) <= 80
                    if short and "://" not in str(value):
                        counts.setdefault(name, Counter())[value] += 1
            shared = {name: own for name, own in counts.items() if 1 < len(own) <= own.total() / 2}
            self._fields = generation, {name: own.most_common(MOST_VALUES) for name, own in shared.items()}
        return self._fields[1]

    def count(self) -> int:
        """Number of items that can be searched, with what other processes have written by now."""
        self._checked = 0.0
        self._refresh()
        return self.index.count(moments=False)

    def _refresh(self) -> None:
        if time.monotonic() - self._checked < LOOK_EVERY:
            return
        self._checked = time.monotonic()
        try:
            self.index.refresh()
            self.library.know_ids()
            self.stale = ""
        except (SelhnError, OSError) as wrong:  # the index in memory is complete, and still searched
            self.stale = str(wrong)
