"""What a picture says about itself: when and with which camera it was taken, how large it is, and where.

The decoder's process reads the entries of EXIF (`decoder.describe`). They are checked here, since cameras and
people write anything into them: what is not plausible is left out.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

FACTS = ("taken", "camera", "width", "height", "latitude", "longitude", "duration")
"""Names of the metadata; unknown ones are left out."""
FIRST_YEAR = 1826
"""Year of the oldest photograph that exists; scanned old pictures may have their true date."""
CLOCK_STARTS = {datetime(year, 1, 1) for year in (1904, 1970, 1980)}
"""Dates at which clocks start if nobody has set them."""
LONGEST = 80
"""Most letters of the name of a camera."""
DATE = re.compile(r"(\d{4})[:/.-](\d\d)[:/.-](\d\d)[ T](\d\d):(\d\d):(\d\d)")


def checked_facts(said: Mapping[str, Any]) -> dict[str, Any]:
    """The plausible part of what a file says, under the names of `FACTS`."""
    camera = _camera(*said.get("camera", (None, None)))
    dates = said.get("dates", [])
    # The third is the time of change; if a camera writes no other date, it is when the picture was taken.
    taken = next(filter(None, map(_date, dates[: 3 if camera else 2])), None)
    width, height = said["size"]
    latitude = _degrees(said.get("latitude"), "NS", 90)
    longitude = _degrees(said.get("longitude"), "EW", 180)
    if (
        latitude is None or longitude is None or latitude == longitude == 0
    ):  # written by a GPS receiver without a fix
        latitude = longitude = None
    values = (taken, camera, int(width), int(height), latitude, longitude, said.get("duration"))
    return {name: value for name, value in zip(FACTS, values) if value is not None}


def _date(text: Any) -> str | None:
    found = DATE.match(text.strip(" \0")) if isinstance(text, str) else None
    try:
        date = datetime(*map(int, found.groups())) if found else None  # type: ignore[arg-type]
    except ValueError:
        return None
    # A camera may be set to a time zone in which it is already tomorrow.
    if (
        date is None
        or date.year < FIRST_YEAR
        or date in CLOCK_STARTS
        or date > datetime.now() + timedelta(days=1)
    ):
        return None
    return str(date)


def _camera(*names: Any) -> str | None:
    make, model = (_words(name) for name in names)
    if make and model and make[0].lower() == model[0].lower():  # NIKON CORPORATION, NIKON D90
        make = []
    return " ".join(make + model)[:LONGEST].strip() or None


def _words(text: Any) -> list[str]:
    text = text.partition("\0")[0] if isinstance(text, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text).split()


def _degrees(entry: Sequence[Any] | None, directions: str, most: int) -> float | None:
    """N, S, E or W, and degrees, minutes and seconds; to about a tenth of a metre."""
    direction, parts = entry or (None, None)
    if not isinstance(direction, str) or direction.strip(" \0").upper() not in tuple(directions):
        return None
    if (
        not isinstance(parts, list)
        or len(parts) != 3
        or not all(isinstance(part, int | float) for part in parts)
    ):
        return None
    # Seconds may be missing, which some write as 0/0.
    degrees, minutes, seconds = (0.0 if row == 2 and part != part else part for row, part in enumerate(parts))
    if not (0 <= degrees <= most and 0 <= minutes <= 60 and 0 <= seconds <= 60):
        return None
    value = round(math.fsum((degrees, minutes / 60, seconds / 3600)), 6)
    return None if value > most else -value if direction.strip(" \0").upper() == directions[1] else value
