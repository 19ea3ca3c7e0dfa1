"""A cookie for image and video elements, which cannot send the token in a header."""

import hmac
import secrets
import time

from starlette.requests import cookie_parser
from starlette.responses import Response

PATHS = ("/api/v1/picture", "/api/v1/original")
LASTS = 3600
"""Seconds; the page renews it long before."""


class MediaCookie:
    """Proof that a browser had the token; valid for an hour, to read pictures and original files only.

    It contains its expiry time and a keyed hash of it. Browsers send cookies to all services of a host, whatever their
    port: so the key is random and not the token, which could be guessed from it, and the name differs for each service.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self.name = f"selhn-media-{secrets.token_hex(8)}"

    def give(self, answer: Response, is_secure: bool) -> None:
        """Add a new cookie to an answer."""
        end = str(int(time.time()) + LASTS)
        answer.set_cookie(
            self.name,
            f"{end}.{self._signed(end)}",
            max_age=LASTS,
            path="/api/v1",
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )

    def opens(self, method: str, path: str, header: str) -> bool:
        """Whether the cookies of a request let it read this path."""
        if method not in ("GET", "HEAD") or path not in PATHS:
            return False
        end, _, signed = cookie_parser(header).get(self.name, "").partition(".")
        right = hmac.compare_digest(signed.encode(), self._signed(end).encode())
        return right and int(end) > time.time()

    def _signed(self, words: str) -> str:
        return hmac.digest(self._key, f"selhn media {words}".encode(), "sha256").hex()
