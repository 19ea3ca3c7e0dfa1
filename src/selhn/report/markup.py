"""HTML by construction: text is escaped unless it is HTML already, so that no caption becomes a script."""

import json
from html import escape
from typing import Any

EMPTY = {"img", "br", "meta"}
"""Elements that have nothing in them and no end."""


class Html(str):
    """A piece of a page; all other strings are text. What `+` and `join` of strings make of it is text again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | float | None) -> Html:
    """An element: `element("td", "a < b", class_="wide")`.

    In the names of attributes `_` stands for `-`; one that is None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>" if name in EMPTY else f"<{name}{given}>{together(*children)}</{name}>")


def together(*parts: str) -> Html:
    """Pieces one after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def data_block(identifier: str, value: Any) -> Html:
    """Numbers and names for the script of a page, in a form that cannot end the block they are in."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(identifier)}">{content}</script>')
