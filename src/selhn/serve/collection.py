"""What is searched: a library of pictures, or any other index."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from selhn.base.errors import SelhnError
from selhn.pictures import Library
from selhn.pictures.extractor import Prepared
from selhn.search import Hit, Query, Record
from selhn.search.items import Kind

LOOK_EVERY = 2.0
"""Seconds between two looks at whether another process has changed the index."""
PICTURES_AT_ONCE = 16
COUNTED, MOST_VALUES = 20_000, 50


@dataclass(frozen=True, eq=False)
class Question:
    """What one request asks."""

    text: str | None = None
    like: str | None = None
    picture: Prepared | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    where: str | None = None
    find: Kind = "image"
    k: int = 24


class Collection(Library):
    """A library that answers several questions at once, and sees what other processes write."""

    def __init__(self, *library: Any, **settings: Any):
        super().__init__(*library, **settings)
        self.stale = ""
        """Why the index on the disk is no longer the one that is searched, where that is so."""
        self._looked = 0.0
        self._fields: tuple[int, dict[str, list[tuple[Any, int]]]] = (-1, {})
        self._know_ids()

    @classmethod
    def of(cls, library: Library) -> "Collection":
        """A library that is open already."""
        folders = () if library.pictures is None else library.pictures.folders
        return cls(library.index, library.extractor, folders, library.name)

    def answer(
        self, questions: Sequence[Question], wanted: Callable[[int], bool] = lambda row: True
    ) -> list[list[Hit] | Exception]:
        """The answers to several questions; features of all pictures are extracted together, texts encoded together.

        A filter reads what is known of every item: one whose askers have all gone, of whom `wanted` tells, is left out.
        """
        self._refresh()
        queries = self._queries(questions)
        answers: list[list[Hit] | Exception] = [[] for _ in questions]
        groups: dict[tuple[str | None, Kind], list[int]] = {}
        for row, question in enumerate(questions):
            groups.setdefault((question.where, question.find), []).append(row)
        for (where, find), rows in groups.items():
            if not any(map(wanted, rows)):
                continue
            most = max(questions[row].k for row in rows)
            try:
                found = self.index.search_many([queries[row] for row in rows], most, find, where=where)
                for row, hits in zip(rows, found):
                    answers[row] = hits[: questions[row].k]
            except SelhnError as wrong:
                for row in rows:  # one of them is to blame: the others get their answers
                    answers[row] = wrong if len(rows) == 1 else self.answer([questions[row]])[0]
        return answers

    def have_pictures(self, names: Sequence[str]) -> list[bool]:
        """Which items of the index have a file."""
        return [self.pictures is not None and self.pictures.locate(name) is not None for name in names]

    def browse(self, first: int, number: int, where: str | None = None) -> tuple[list[Record], int]:
        """Some items in their order, and how many there are."""
        total = self.index.count(where)
        return list(islice(self.index.records(where), first, first + number)) if first < total else [], total

    def fields(self) -> dict[str, list[tuple[Any, int]]]:
        """Of every field that metadata have, the most frequent values and how many items have them."""
        generation = self.index.generation
        if self._fields[0] != generation:
            counts: dict[str, Counter[Any]] = {}
            for record in islice(self.index.records(), COUNTED):
                for name, value in record.metadata.items():
                    if (
                        isinstance(value, str | bool | int | float)
                        and len(str(value)) <= 80
                        and "://" not in str(value)
                    ):
                        counts.setdefault(name, Counter())[value] += 1
            shared = {name: own for name, own in counts.items() if 1 < len(own) <= own.total() / 2}
            found = {name: own.most_common(MOST_VALUES) for name, own in shared.items()}
            self._fields = (generation, found)
        return self._fields[1]

    def _queries(self, questions: Sequence[Question]) -> list[Query]:
        prepared = [question.picture for question in questions if question.picture is not None]
        regions = []
        for first in range(0, len(prepared), PICTURES_AT_ONCE):
            assert self.extractor is not None
            regions += list(self.extractor.extract(prepared[first : first + PICTURES_AT_ONCE]))
        images = iter(regions)
        return [
            Query(one.text, None if one.picture is None else next(images), one.like, one.weights) for one in questions
        ]

    def _refresh(self) -> None:
        if time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked = time.monotonic()
        try:
            self.index.refresh()
            self._know_ids()
            self.stale = ""
        except (SelhnError, OSError) as wrong:  # what is in memory is whole: it is searched on
            self.stale = str(wrong)
