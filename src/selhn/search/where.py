"""Filters on metadata: `folder = "holiday" and year >= 2020 and not tags contains "blurred"`.

    choice      = all { "or" all }
    all         = one { "and" one }
    one         = "not" one | "(" choice ")" | field comparison
    comparison  = sign value | "in" "(" value { "," value } ")"
    sign        = "=" | "!=" | "<" | "<=" | ">" | ">=" | "contains" | "like"
    value       = "text" | 'text' | number | true | false | null | word

`like` takes a pattern with * and ?. A dot in a field looks inside: `exif.year`. `id` is the item's own, `date` is
when it was taken, or else changed, and `album` an album that it is in (see `albums.py`). A field that an item does
not have compares as false, except with `!=`. Nothing is executed.

A date is the whole of a year, month, day, hour or minute: a field with the time 2019-06-14 15:03:22 is = 2019,
= 2019-06 and = 2019-06-14, <= 2019-06 and not > 2019-06. Dates need no quotes, unless they have a space.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from selhn.base.errors import NotFound, SelhnError
from selhn.search.dates import as_time, read_date
from selhn.search.items import Record, date_of, whole

LONGEST, DEEPEST, LOOKED_AT = 10_000, 50, 20_000
MISSING = object()


@dataclass(frozen=True)
class Comparison:
    """A field against a value."""

    field: str
    operator: str
    value: Any

    def __call__(self, record: Record) -> bool:
        found = look_up(record, self.field)
        if self.operator in _OF_DATES and (time := as_time(found)) is not None:
            return self._of_time(time)
        return OPERATORS[self.operator](found, self.value)

    def _of_time(self, found: str) -> bool:
        """Compare a time with dates, each to its own precision."""
        values = self.value if self.operator == "in" else (self.value,)
        tests = []
        for value in values:
            known = read_date(value)
            if known is None and self.operator in ("<", "<=", ">", ">="):
                raise SelhnError(
                    f"{self.field} has dates, and {value!r} is not one: write 2019, 2019-06, 2019-06-14 or "
                    '"2019-06-14 15:03"'
                )
            operator = "=" if self.operator == "in" else self.operator
            tests.append(OPERATORS[operator](found if known is None else found[: len(known)], known or value))
        return any(tests)


@dataclass(frozen=True)
class Not:
    """The opposite."""

    inner: "Filter"

    def __call__(self, record: Record) -> bool:
        return not self.inner(record)


@dataclass(frozen=True)
class Several:
    """All of some filters, or any of them."""

    filters: tuple["Filter", ...]
    every: bool = True

    def __call__(self, record: Record) -> bool:
        return (all if self.every else any)(one(record) for one in self.filters)


@dataclass(frozen=True)
class OneOf:
    """Items by their ids, videos with their moments; those of the same name are the same."""

    name: str
    ids: frozenset[str] = field(repr=False)

    def __call__(self, record: Record) -> bool:
        return whole(record.id) in self.ids


Filter: TypeAlias = Comparison | Not | Several | OneOf
Where: TypeAlias = str | Mapping[str, Any]
IS_MOMENT = Comparison("moment", ">=", 0)
"""Moments of videos, see `items.MOMENT`."""


def without_moments(filter: Filter | None) -> Filter:
    """The same for all items but moments of videos."""
    return Not(IS_MOMENT) if filter is None else Several((filter, Not(IS_MOMENT)))


def _same(found: Any, value: Any) -> bool:
    # In Python true equals 1, which is not meant here.
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
    """The value of a field, `MISSING` where there is none."""
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


def read_filter(where: Where) -> Filter:
    """A filter from words, or from a mapping of fields to a value, a list of values, or {operator: value}."""
    if isinstance(where, str):
        return _Reader(where).read()
    fields = where.items() if isinstance(where, Mapping) else ()
    filters = tuple(one for field, value in fields for one in _of_field(field, value))
    if not filters:
        raise SelhnError(f"where is {where!r}: write a filter such as 'year >= 2020', or {{'year': 2020}}")
    return Several(filters)


def found_or_explained(
    found: Iterator[Record], filter: Filter | None, every: Callable[[], Iterable[Record]]
) -> Iterator[Record]:
    """What a filter found; if that is nothing, a field that none of all items has is an error."""
    some = next(found, None)
    if some is not None:
        yield some
        yield from found
    elif filter is not None:
        require_fields(filter, every())


def require_fields(filter: Filter, records: Iterable[Record]) -> None:
    """Refuse a filter on a field that no item has; of a large index only the first items are looked at."""
    known: dict[str, None] = {}
    unknown = dict.fromkeys(_fields(filter))
    for number, record in enumerate(records):
        if number == LOOKED_AT:
            return
        known |= dict.fromkeys(record.metadata)
        unknown = {field: None for field in unknown if look_up(record, field) is MISSING}
        if not unknown:
            return
    if known:
        field, fields = next(iter(unknown)), ["id", "date", *known]
        near = "".join(f"did you mean {name!r}? " for name in get_close_matches(field.lower(), fields, n=1))
        raise NotFound(f"nothing found, because no item has a field {field!r}: {near}there are {', '.join(fields)}")


def _fields(filter: Filter) -> Iterator[str]:
    if isinstance(filter, Comparison):
        yield filter.field
    for inner in [filter.inner] if isinstance(filter, Not) else getattr(filter, "filters", ()):
        yield from _fields(inner)


def _of_field(field: str, value: Any) -> Iterable[Filter]:
    if not isinstance(value, Mapping):
        value = {"in" if isinstance(value, list | tuple) else "=": value}
    for operator, operand in value.items():
        if operator not in OPERATORS:
            raise SelhnError(f"{operator!r} for {field} is not an operator: use one of {' '.join(OPERATORS)}")
        if operator == "in" and not isinstance(operand, list | tuple):
            raise SelhnError(f"where: `in` takes a list of values for {field}, got {operand!r}")
        yield Comparison(field, operator, tuple(map(_plain, operand)) if operator == "in" else _plain(operand))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, date) else value


_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*') | (?P<sign><=|>=|!=|==|=|<|>|\(|\)|,|\[|\])
    | (?P<word>[^\s"'<>=!(),\[\]]+) | (?P<end>\Z) )""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z", re.ASCII)
_CONSTANTS = {"true": True, "false": False, "null": None}


class _Reader:
    """Reads a filter from left to right, one look ahead."""

    def __init__(self, words: str):
        if len(words) > LONGEST:
            raise SelhnError(f"the filter has {len(words):,} characters: at most {LONGEST:,} are read")
        self.words, self.at, self.depth = words, 0, 0
        self.kind, self.token = "", ""
        self._next()

    def read(self) -> Filter:
        found = self._choice()
        if self.kind != "end":
            raise self._wrong("`and` or `or`")
        return found

    def _choice(self) -> Filter:
        self.depth += 1
        if self.depth > DEEPEST:
            raise SelhnError(f"the filter goes more than {DEEPEST} brackets deep: write it flatter")
        found = self._several("or", lambda: self._several("and", self._one))
        self.depth -= 1
        return found

    def _several(self, word: str, read: Callable[[], Filter]) -> Filter:
        filters = [read()]
        while self._takes(word):
            filters.append(read())
        return filters[0] if len(filters) == 1 else Several(tuple(filters), every=word == "and")

    def _one(self) -> Filter:
        opposite = False
        while self._takes("not"):
            opposite = not opposite
        if self._takes("("):
            found = self._choice()
            self._must(")")
        else:
            found = self._comparison()
        return Not(found) if opposite else found

    def _comparison(self) -> Filter:
        if self.kind not in ("word", "text"):
            raise self._wrong("the name of a field")
        field = self._value() if self.kind == "text" else self._next()
        operator = "=" if self.token == "==" else self.token
        if operator not in OPERATORS:
            raise self._wrong(f"one of {' '.join(OPERATORS)}")
        self._next()
        if operator != "in":
            return Comparison(str(field), operator, self._value())
        closing = "]" if self.token == "[" else ")"
        if not self._takes("["):
            self._must("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._must(closing)
        return Comparison(str(field), "in", tuple(values))

    def _value(self) -> Any:
        if self.kind not in ("word", "text"):
            raise self._wrong("a value")
        kind, token = self.kind, self._next()
        if kind == "text":
            return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL)
        if _NUMBER.match(token):
            return json.loads(token) if len(token) < 300 else token
        return _CONSTANTS.get(token, token)

    def _takes(self, token: str) -> bool:
        takes = self.kind != "text" and self.token == token
        if takes:
            self._next()
        return takes

    def _must(self, token: str) -> None:
        if not self._takes(token):
            raise self._wrong(f"`{token}`")

    def _next(self) -> str:
        """Advance to the next token; returns the one before it."""
        before = self.token
        found = _TOKEN.match(self.words, self.at)
        if found is None:
            raise SelhnError(
                f"the filter cannot be read from {self.words[self.at :].strip()[:40]!r} on: close the quotes"
            )
        self.kind, self.at = str(found.lastgroup), found.end()
        self.token = found[self.kind]
        return before

    def _wrong(self, expected: str) -> SelhnError:
        here = "at its end" if self.kind == "end" else f"at {self.token[:40]!r}"
        return SelhnError(f"the filter {self.words[:80]!r} cannot be read {here}: {expected} is expected")
