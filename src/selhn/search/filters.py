"""Filters on metadata: their kinds, and which records they match. `where.py` reads them from text."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from selhn.base.errors import NotFound, SelhnError
from selhn.search.dates import as_time, read_date
from selhn.search.items import Record, date_of, whole

LOOKED_AT = 20_000
"""A field is looked for in this many items before it is called unknown."""
MISSING = object()


@dataclass(frozen=True)
class Comparison:
    """Compares a field with a value."""

    field: str
    operator: str
    value: Any

    def __call__(self, record: Record) -> bool:
        found = look_up(record, self.field)
        if self.operator in _OF_DATES and (time := as_time(found)) is not None:
            return self._of_time(time)
        return OPERATORS[self.operator](found, self.value)

    def _of_time(self, found: str) -> bool:
        """Compare a time with dates, each at the date's own precision."""
        values = self.value if self.operator == "in" else (self.value,)
        tests = []
        for value in values:
            known = read_date(value)
            if known is None and self.operator in ("<", "<=", ">", ">="):
                raise SelhnError(
                    f"{self.field} holds dates, but {value!r} is not a date: "
                    "write 2019, 2019-06, 2019-06-14 or "
                    '"2019-06-14 15:03"'
                )
            operator = "=" if self.operator == "in" else self.operator
            tests.append(OPERATORS[operator](found if known is None else found[: len(known)], known or value))
        return any(tests)


@dataclass(frozen=True)
class Not:
    """True for the items that another filter leaves out."""

    inner: "Filter"

    def __call__(self, record: Record) -> bool:
        return not self.inner(record)


@dataclass(frozen=True)
class Several:
    """Several filters: all of them must match, or any of them."""

    filters: tuple["Filter", ...]
    every: bool = True

    def __call__(self, record: Record) -> bool:
        return (all if self.every else any)(one(record) for one in self.filters)


@dataclass(frozen=True)
class OneOf:
    """Items by their ids, videos with their moments. Two of these are equal if their names are."""

    name: str
    ids: frozenset[str] = field(repr=False)

    def __call__(self, record: Record) -> bool:
        return whole(record.id) in self.ids


Filter: TypeAlias = Comparison | Not | Several | OneOf
IS_MOMENT = Comparison("moment", ">=", 0)
"""Moments of videos, see `items.MOMENT`."""


def without_moments(filter: Filter | None) -> Filter:
    """The filter, and no moments of videos."""
    return Not(IS_MOMENT) if filter is None else Several((filter, Not(IS_MOMENT)))


def _same(found: Any, value: Any) -> bool:
    # In Python True equals 1; here they differ.
    same_kind = isinstance(found, bool) == isinstance(value, bool)
    return found is not MISSING and same_kind and bool(found == value)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(found: Any, value: Any) -> bool:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (found, value))
        return (numbers or (isinstance(found, str) and isinstance(value, str))) and compare(found, value)

    return test


def _contains(found: Any, value: Any) -> bool:
    if isinstance(found, str):
        return isinstance(value, str) and value in found
    return isinstance(found, list) and any(_same(one, value) for one in found)


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": _same,
    "!=": lambda found, value: not _same(found, value),
    "<": _ordered(lambda a, b: a < b),
    "<=": _ordered(lambda a, b: a <= b),
    ">": _ordered(lambda a, b: a > b),
    ">=": _ordered(lambda a, b: a >= b),
    "in": lambda found, values: any(_same(found, value) for value in values),
    "contains": _contains,
    "like": lambda found, pattern: isinstance(found, str) and fnmatchcase(found, str(pattern)),
}


_OF_DATES = {"=", "!=", "<", "<=", ">", ">=", "in"}


def look_up(record: Record, field: str) -> Any:
    """The value of a field; `MISSING` if the record does not have it."""
    if field in record.metadata:
        return record.metadata[field]
    if field == "id":
        return record.id
    if field == "date":
        return date_of(record) or MISSING
    found: Any = record.metadata
    for name in field.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return MISSING
        found = found[name]
    return found


def found_or_explained(
    found: Iterator[Record], filter: Filter | None, every: Callable[[], Iterable[Record]]
) -> Iterator[Record]:
    """What a filter found. If it found nothing, a field that no item has is an error."""
    some = next(found, None)
    if some is not None:
        yield some
        yield from found
    elif filter is not None:
        require_fields(filter, every())


def require_fields(filter: Filter, records: Iterable[Record]) -> None:
    """Refuse a filter that no item can fit, such as one on a field that none has; only the first items are read."""
    known: dict[str, None] = {}
    unknown = dict.fromkeys(_fields(filter))
    for number, record in enumerate(records):
        if number == LOOKED_AT:
            return
        filter(record)  # raises its error, if a server has left out the records that do not fit
        known |= dict.fromkeys(record.metadata)
        unknown = {field: None for field in unknown if look_up(record, field) is MISSING}
        if not unknown:
            return
    if known:
        field, fields = next(iter(unknown)), [name for name in ("id", "date", *known) if name not in unknown]
        if field == "album":
            raise NotFound(
                "nothing found, because there are no albums yet: make one on the page (`selhn photos --writable`)"
            )
        near = "".join(f"did you mean {name!r}? " for name in get_close_matches(field.lower(), fields, n=1))
        raise NotFound(
            f"nothing found, because no item has a field {field!r}: {near}choose from {', '.join(fields)}"
        )


def _fields(filter: Filter) -> Iterator[str]:
    if isinstance(filter, Comparison):
        yield filter.field
    for inner in [filter.inner] if isinstance(filter, Not) else getattr(filter, "filters", ()):
        yield from _fields(inner)
