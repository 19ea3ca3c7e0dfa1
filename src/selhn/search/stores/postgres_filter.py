"""Filters in the SQL of PostgreSQL: every value and every field is a parameter, never a part of the text.

What SQL cannot express exactly is TRUE there, or FALSE below a `not`, so that more rows are read, never
fewer: what comes back is filtered again with the filter itself. Metadata are `jsonb`, which distinguishes
types as we do.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from selhn.search.dates import as_time, read_date
from selhn.search.filters import Comparison, Filter, Not, OneOf

MOST_VALUES = 500
"""Longest list of an `in` that is sent; longer ones are filtered here."""
_TIME = "'^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}'"
_OWN = {"id": "to_jsonb(id)", "date": "to_jsonb(nullif(date, ''))"}
_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


@dataclass
class Condition:
    """SQL that is true at least wherever a filter is true, with its parameters."""

    filter: Filter | None
    sql: str = "TRUE"
    values: dict[str, Any] = field(default_factory=dict)
    exact: bool = True
    """Whether it is true only there."""

    def __post_init__(self) -> None:
        if self.filter is not None:
            self.sql = self._of(self.filter, unknown=True)

    def _of(self, filter: Filter, unknown: bool) -> str:
        """SQL for a part of the filter; `unknown` is its value if SQL cannot express it."""
        if isinstance(filter, Comparison):
            return self._comparison(filter, unknown) or self._not_exact(unknown)
        if isinstance(filter, OneOf):
            return f"id = ANY({self._value(sorted(filter.ids))})"
        if isinstance(filter, Not):
            return f"(NOT {self._of(filter.inner, not unknown)})"
        return f"({(' AND ' if filter.every else ' OR ').join(self._of(one, unknown) for one in filter.filters)})"

    def _not_exact(self, unknown: bool) -> str:
        self.exact = False
        return str(unknown).upper()

    def _value(self, value: Any) -> str:
        name = f"value{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def _json(self, value: Any) -> str:
        return f"{self._value(json.dumps(value))}::jsonb"

    def _comparison(self, one: Comparison, unknown: bool) -> str | None:
        values = one.value if one.operator == "in" else (one.value,)
        has_set = one.operator == "like" and "[" in str(one.value)  # which LIKE does not know
        if has_set or len(values) > MOST_VALUES or not all(map(_is_plain, (one.field, *values))):
            return None
        found = f"metadata -> {self._value(one.field)}::text"
        if one.field in _OWN:
            found = f"coalesce({found}, {_OWN[one.field]})"
        elif "." in one.field:  # a dot looks inside another field
            inner = " -> ".join(f"{self._value(name)}::text" for name in one.field.split("."))
            found = f"coalesce({found}, metadata -> {inner})"
        found, text = f"({found})", f"""(({found}) #>> '{{}}') COLLATE "C\""""
        tests = []
        for value in values:
            by_type = self._tests(one.operator, found, text, value, unknown)
            cases = " ".join(f"WHEN '{kind}' THEN {test}" for kind, test in by_type.items())
            tests.append(f"CASE jsonb_typeof({found}) {cases} ELSE FALSE END")
        return f"({'NOT ' * (one.operator == '!=')}({' OR '.join(tests) or 'FALSE'}))"

    def _tests(self, operator: str, found: str, text: str, value: Any, unknown: bool) -> dict[str, str]:
        """A test for each JSON type that a field may have; values of other types do not pass."""
        if operator == "like":
            return {"string": f"{text} LIKE {self._value(str(value).translate(_LIKE))}"}
        if operator == "contains":
            within = {"string": f"strpos({text}, {self._value(value)}) > 0"} if isinstance(value, str) else {}
            return {"array": f"{found} @> {self._json(value)}", **within}
        sign = "=" if operator in ("=", "!=", "in") else operator  # the others are the same in SQL
        date, tests = read_date(value), {"string": "FALSE"}
        if isinstance(value, str):
            tests["string"] = f"{text} {sign} {self._value(value)}"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            tests["number"] = f"{found} {sign} {self._json(value)}"
        elif sign == "=":
            tests["null" if value is None else "boolean"] = f"{found} = {self._json(value)}"
        if date is not None:
            time = f"left(regexp_replace({text}, 'T', ' '), {len(date)}) {sign} {self._value(date)}"
        elif sign != "=":  # a time against something that is not a date: the filter itself raises the error
            time = self._not_exact(unknown)
        elif as_time(value) is not None:
            time = f"regexp_replace({text}, 'T', ' ') = {self._value(value)}"
        else:
            return tests
        return {**tests, "string": f"CASE WHEN {text} ~ {_TIME} THEN {time} ELSE {tests['string']} END"}


def _is_plain(value: Any) -> bool:
    """Whether it is a text, number or constant that PostgreSQL can store."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= sign <= "\udfff" for sign in value)
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
