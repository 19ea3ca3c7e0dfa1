"""Filters in the SQL of PostgreSQL: every value and every field is a parameter, never a part of the text.

What SQL cannot say as we do is TRUE there, or FALSE below a `not`, so that more rows are read, never fewer: what
comes back is filtered again with the filter itself. Metadata are `jsonb`, which tells types apart as we do.
"""

import json
import math
from typing import Any, NamedTuple

from selhn.search.dates import read_date
from selhn.search.where import Comparison, Filter, Not, OneOf

MOST_VALUES = 500
"""Of an `in`: longer lists are looked at here."""
# A field as JSON (v), as text if it is one (t), and with a space before the time of day if it is a time.
_OF_FIELD = """EXISTS (SELECT FROM (SELECT coalesce(metadata -> %s::text, {other}) AS v) AS a,
LATERAL (SELECT CASE WHEN jsonb_typeof(v) = 'string' THEN (v #>> '{{}}') COLLATE "C" END AS t) AS b,
LATERAL (SELECT CASE WHEN t ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T][0-9]{{2}}:[0-9]{{2}}'
THEN regexp_replace(t, 'T', ' ') END AS time) AS c WHERE {test})"""
_OTHER = {"id": "to_jsonb(id)", "date": "to_jsonb(nullif(date, ''))"}
_SAME = "CASE WHEN time IS NULL THEN v = %s::jsonb ELSE left(time, %s) = %s END"
_IN_LIST = "(jsonb_typeof(v) = 'array' AND v @> %s::jsonb)"
_WHOLE = 2**30
_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


class Condition(NamedTuple):
    """SQL that is true at least wherever a filter is, with its parameters."""

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True
    """Whether it is true nowhere else."""


def sql_condition(filter: Filter | None, unknown: bool = True) -> Condition:
    """The condition of a filter; what SQL cannot say is `unknown`."""
    if filter is None:
        return Condition("TRUE")
    if isinstance(filter, Comparison):
        return _comparison(filter, unknown) or Condition(str(unknown).upper(), exact=False)
    if isinstance(filter, OneOf):
        return Condition("id = ANY(%s)", (sorted(filter.ids),))
    if isinstance(filter, Not):
        inner = sql_condition(filter.inner, not unknown)
        return inner._replace(sql=f"(NOT {inner.sql})")
    return _joined(" AND " if filter.every else " OR ", [sql_condition(one, unknown) for one in filter.filters])


def _joined(word: str, parts: list[Condition]) -> Condition:
    values = tuple(value for part in parts for value in part.values)
    return Condition(f"({word.join(part.sql for part in parts)})", values, all(part.exact for part in parts))


def _comparison(one: Comparison, unknown: bool) -> Condition | None:
    values = one.value if one.operator == "in" else (one.value,)
    if len(values) > MOST_VALUES or not all(map(_is_plain, (one.field, *values))):
        return None
    if one.operator in ("=", "!=", "in"):
        test: Condition | None = _joined(" OR ", [Condition("FALSE"), *map(_same, values)])
    elif one.operator in ("contains", "like"):
        test = (_contains if one.operator == "contains" else _like)(one.value)
    else:
        test = _ordered(one.operator, one.value, unknown)
    if test is None:
        return None
    names = () if one.field in _OTHER else tuple(one.field.split("."))  # a dot looks inside another field
    other = _OTHER.get(one.field) or "metadata" + " -> %s::text" * len(names)
    sql = _OF_FIELD.format(other=other, test=test.sql)
    sql = f"(NOT {sql})" if one.operator == "!=" else sql
    return Condition(sql, (one.field, *names, *test.values), test.exact)


def _is_plain(value: Any) -> bool:
    """Whether it is a text, number or constant that PostgreSQL can keep."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= sign <= "\udfff" for sign in value)
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _same(value: Any) -> Condition:
    known, text = read_date(value), value if isinstance(value, str) else None
    return Condition(_SAME, (json.dumps(value), len(known) if known else _WHOLE, known or text))


def _ordered(sign: str, value: Any, unknown: bool) -> Condition:
    """The sign is one of our own. A time that is compared with no date is an error, which is for the filter to say."""
    if isinstance(value, str):
        plain = Condition(f"t {sign} %s", (value,))
    elif isinstance(value, bool | None):
        plain = Condition("FALSE")
    else:
        plain = Condition(f"(jsonb_typeof(v) = 'number' AND v {sign} %s::jsonb)", (json.dumps(value),))
    known = read_date(value)
    if known is None:
        return Condition(f"CASE WHEN time IS NULL THEN {plain.sql} ELSE %s END", (*plain.values, unknown), False)
    time = f"CASE WHEN time IS NULL THEN {plain.sql} ELSE left(time, %s) {sign} %s END"
    return Condition(time, (*plain.values, len(known), known))


def _contains(value: Any) -> Condition:
    element = Condition(_IN_LIST, (json.dumps(value),))
    return _joined(" OR ", [Condition("strpos(t, %s) > 0", (value,)), element]) if isinstance(value, str) else element


def _like(pattern: Any) -> Condition | None:
    """None for [a-z], which LIKE does not know."""
    return None if "[" in str(pattern) else Condition("t LIKE %s", (str(pattern).translate(_LIKE),))
