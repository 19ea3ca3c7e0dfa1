"""Dates as people write them in filters, and times as metadata have them."""

import re
from functools import lru_cache
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", re.ASCII)
_DATE = re.compile(
    r"([12]\d{3})(?:-(0?[1-9]|1[0-2])(?:-(0?[1-9]|[12]\d|3[01])(?:[ T](\d\d(?::\d\d(?::\d\d(?:\.\d{1,6})?)?)?))?)?)?\Z",
    re.ASCII,
)


def as_time(found: Any) -> str | None:
    """The value of a field if it is a time, with a space before the time of day; else None."""
    return found.replace("T", " ", 1) if isinstance(found, str) and _TIME.match(found) else None


def read_date(value: Any) -> str | None:
    """A year, month, day or time in the form in which times are stored; None if the value is not a date."""
    return _read_date(str(value)) if isinstance(value, str | int) else None


@lru_cache(256)
def _read_date(value: str) -> str | None:
    found = _DATE.match(value)
    if found is None:
        return None
    *day, time = found.groups()
    return "-".join(part.zfill(2) for part in day if part) + (f" {time}" if time else "")
