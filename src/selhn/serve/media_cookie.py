"""A cookie for image and video elements, which cannot send the token in a header."""

import hmac
import time

from starlette.requests import cookie_parser
from starlette.responses import Response

PATHS = ("/api/v1/picture", "/api/v1/original")
LASTS = 3600
"""Seconds; the page renews it long before."""


class MediaCookie:
    """Proof that a browser had the token; valid for an hour, to read pictures and original files only.

    It contains its expiry time and a keyed hash of it, which does not reveal the token: browsers send cookies
    to all services of a host, whatever their port. For the same reason its name differs for each token.
    """

    def __init__(self, token: str):
        self._token = token.encode()
        self.name = f"selhn-media-{self._signed('name')[:16]}"

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
        return hmac.digest(self._token, f"selhn media {words}".encode(), "sha256").hex()
