"""The token of a service: made or chosen, checked, and handed to the browser of the same user only."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from selhn.base.errors import SelhnError
from selhn.base.files import write_whole

TOKEN_VARIABLE = "SELHN_TOKEN"
SHORTEST = 8
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>selhn</title></head>
<body><a href="{link}">Open the page</a></body></html>
"""


@dataclass(frozen=True)
class Token:
    """What clients must send; a value of None asks for nothing."""

    value: str | None
    is_made: bool = False
    """Whether it was made at this start, so that only the terminal can tell it."""

    @classmethod
    def find(cls, host: str, token: str | None = None, no_token: bool = False) -> "Token":
        """The one that was chosen, or else a new one; an error if other machines could ask without one."""
        from selhn.serve.guard import is_loopback

        if token and no_token:
            raise SelhnError("either --token or --no-token is meant, not both: leave one out")
        chosen = None if no_token else token or os.environ.get(TOKEN_VARIABLE) or None
        if chosen is None and not is_loopback(host):
            raise SelhnError(
                f"on {host} other machines can reach the service and see every picture: set a token with --token "
                f"or {TOKEN_VARIABLE}, or use --host 127.0.0.1"
            )
        if chosen is not None:
            check_token(chosen)
        return cls(chosen) if chosen or no_token else cls(secrets.token_urlsafe(24), is_made=True)

    def link(self, address: str) -> str:
        """The address of a page that is let in: the part after # is never sent, and the page removes it."""
        return address if self.value is None else f"{address}/#token={quote(self.value, safe='')}"

    def shown(self, address: str) -> str:
        """What the terminal shows: nobody else can tell a token that was made; a chosen one is known."""
        return self.link(address) if self.is_made else address


def check_token(token: str) -> None:
    """Refuse a token that can be guessed by trying, or that a header cannot carry."""
    if len(token) < SHORTEST:
        raise SelhnError(
            f"the token is shorter than {SHORTEST} characters: choose one that cannot be guessed, or leave it out, "
            "and one is made"
        )
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        raise SelhnError(
            "the token has letters that a header cannot carry: use ASCII, without spaces around it"
        )


@contextmanager
def redirect(link: str) -> Iterator[str]:
    """The address of a file that only this user can read, and that leads to a link: a command line is read by all."""
    # Browsers that are installed as snaps see neither the common folder for temporary files nor hidden ones.
    is_snap = any(Path("/snap/bin", name).exists() for name in ("firefox", "chromium"))
    folder = Path(tempfile.mkdtemp(prefix="selhn-", dir=Path.home() if is_snap else None))
    try:
        write_whole(folder / "open.html", PAGE.format(link=escape(link)), private=True)
        yield (folder / "open.html").as_uri()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
