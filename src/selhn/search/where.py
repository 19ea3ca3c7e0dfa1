"""Filters in words: `folder = "holiday" and year >= 2020 and not tags contains "blurred"`.

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
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, TypeAlias

from selhn.base.errors import SelhnError
from selhn.search.filters import OPERATORS, Comparison, Filter, Not, Several

LONGEST, DEEPEST = 10_000, 50
Where: TypeAlias = str | Mapping[str, Any]


def read_filter(where: Where) -> Filter:
    """A filter from words, or from a mapping of fields to a value, a list of values, or {operator: value}."""
    if isinstance(where, str):
        return _Reader(where).read()
    fields = where.items() if isinstance(where, Mapping) else ()
    filters = tuple(one for field, value in fields for one in _of_field(field, value))
    if not filters:
        raise SelhnError(f"where is {where!r}: write a filter such as 'year >= 2020', or {{'year': 2020}}")
    return Several(filters)


def _of_field(field: str, value: Any) -> Iterable[Filter]:
    if not isinstance(value, Mapping):
        value = {"in" if isinstance(value, list | tuple) else "=": value}
    for operator, operand in value.items():
        if operator not in OPERATORS:
            raise SelhnError(f"{operator!r} for {field} is not an operator: use one of {' '.join(OPERATORS)}")
        if operator == "in" and not isinstance(operand, list | tuple):
            raise SelhnError(f"where: `in` takes a list of values for {field}, got {operand!r}")
        yield Comparison(
            field, operator, tuple(map(_plain, operand)) if operator == "in" else _plain(operand)
        )


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
    """Reads a filter from left to right, one token ahead."""

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
            raise SelhnError(f"the filter nests brackets more than {DEEPEST} deep: use fewer")
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
