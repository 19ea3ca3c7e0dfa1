"""Filters as Milvus reads them. What comes back is filtered again with the filter itself.

Milvus compares missing fields and other types in its own way, and its versions differ. So an
expression is true at least wherever the filter is true, and only uses what all versions agree on. Anything
else, and whatever is under a `not`, is left out. Values are escaped, and those that would need more than that
are left out too, so that no value can become part of the expression.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from selhn.search.dates import read_date
from selhn.search.filters import Comparison, Filter, Not, OneOf

NOTHING = 'key == ""'
MOST_VALUES = 500
"""Longest list of an `in` that is sent; longer ones are filtered here."""
LARGEST = 2**53
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)
_PATTERN_SIGN = re.compile(r"[*?\[]")
_SIGN_OF_LIKE = re.compile(r"[%_\\]")
_SIGNS = {"=": "==", "in": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def milvus_expression(filter: Filter | None, finds_within: bool = True) -> str:
    """An expression for everything that matches the filter, and perhaps more; "" is everything."""
    return "" if filter is None else _wider(filter, finds_within) or ""


def _wider(filter: Filter, finds_within: bool) -> str | None:
    """The expression; None if it would match everything, or need a pattern that the server does not know."""
    if isinstance(filter, Not):
        return _wider(filter.inner.inner, finds_within) if isinstance(filter.inner, Not) else None
    if isinstance(filter, Comparison):
        of_text = filter.operator == "contains" and isinstance(filter.value, str)
        return None if of_text and not finds_within else _comparison(filter)
    if isinstance(filter, OneOf):
        return None
    parts = [_wider(one, finds_within) for one in filter.filters]
    return _joined(" and ", parts) if filter.every else _any_of(parts)


def _comparison(one: Comparison) -> str | None:
    values = one.value if one.operator == "in" else [one.value]
    # A field with a dot looks inside another.
    if one.operator not in _WRITERS or len(values) > MOST_VALUES or not _PLAIN_KEY.match(one.field):
        return None
    if not values:
        return NOTHING
    fields = [one.field, *(["taken", "modified"] if one.field == "date" else [])]
    paths = [f'record["metadata"]["{field}"]' for field in fields] + ['record["id"]'] * (one.field == "id")
    return _any_of(_WRITERS[one.operator](path, value) for value in values for path in paths)


def _any_of(parts: Iterable[str | None]) -> str | None:
    several = list(parts)
    return None if None in several else _joined(" or ", several)


def _joined(word: str, parts: Iterable[str | None]) -> str | None:
    several = [part for part in dict.fromkeys(parts) if part is not None]
    if len(several) < 2:
        return several[0] if several else None
    return "(" + word.join(several) + ")"


def _compared(sign: str, path: str, value: Any) -> str | None:
    parts = [f"{path} {sign} {one}" for one in _literals(sign, value)]
    if (date := read_date(value)) is not None:  # with a space before the time of day, or a T
        parts += [f'{path} {sign[0]} "{date[:10]}"'] if sign != "==" else []
        parts += [f'{path} like "{date[:10]}%"']
    return _any_of(parts)


def _contains(path: str, value: Any) -> str | None:
    literals = _literals("==", value)
    element = _any_of(f"json_contains({path}, {one})" for one in literals)
    if element is None or not isinstance(value, str):
        return element
    return None if _SIGN_OF_LIKE.search(value) else f'({element} or {path} like "%{literals[0][1:-1]}%")'


def _begins(path: str, pattern: Any) -> str | None:
    """Compare the beginning of a pattern, up to its first wildcard."""
    beginning = _PATTERN_SIGN.split(str(pattern))[0]
    literals = _literals("==", beginning)
    if not beginning or not literals or _SIGN_OF_LIKE.search(beginning):
        return None
    return f'{path} like "{literals[0][1:-1]}%"'


def _literals(sign: str, value: Any) -> list[str]:
    """The ways to write a value; none if it cannot be written safely.

    A number has two, because Milvus compares whole numbers only with whole numbers.
    """
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, str) and value.isprintable():
        return ['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"']
    if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) >= LARGEST:
        return []
    whole = math.floor(value) if sign in (">", ">=") else math.ceil(value)
    as_whole = [] if sign == "==" and whole != value else [str(whole)]
    return [*as_whole, repr(float(value))]


_WRITERS: Mapping[str, Callable[[str, Any], str | None]] = {
    **{operator: partial(_compared, sign) for operator, sign in _SIGNS.items()},
    "contains": _contains,
    "like": _begins,
}
