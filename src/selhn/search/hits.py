"""Answers that show themselves in a notebook."""

from base64 import b64encode
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from selhn.search.items import Hit

SHOWN, SIDE, LONGEST = 24, 160, 120
"""Number of answers shown in a notebook, pixels of a picture's longer side, and letters of its caption."""
CARD = f"margin:0;width:{SIDE}px;font:12px sans-serif;overflow-wrap:anywhere"


class Hits(list[Hit]):
    """Answers, best first: a list, which in a notebook is shown with small pictures."""

    def __init__(self, hits: Iterable[Hit] = (), thumbnail: Callable[[Hit, int], bytes | None] | None = None):
        super().__init__(hits)
        self._thumbnail = thumbnail

    def __reduce__(self) -> tuple[Any, ...]:
        return Hits, (list(self),)  # a copy for another process, without the index

    def _repr_html_(self) -> str:
        cards = "".join(self._card(hit) for hit in self[:SHOWN])
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{cards or "nothing found"}</div>{more}'

    def _card(self, hit: Hit) -> str:
        content = None if self._thumbnail is None else self._thumbnail(hit, SIDE)
        picture = (
            "" if content is None else f'<img src="data:image/jpeg;base64,{b64encode(content).decode()}"><br>'
        )
        name = hit.id.replace("\\", "/").rsplit("/", 1)[-1]
        told = " ".join([hit.name] if hit.kind == "text" else hit.captions[:1])
        words = [f"<b>{hit.score:.3f}</b> {escape(_short(name))}", *([escape(_short(told))] if told else [])]
        return f'<figure style="{CARD}" title="{escape(hit.id)}">{picture}{"<br>".join(words)}</figure>'


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
