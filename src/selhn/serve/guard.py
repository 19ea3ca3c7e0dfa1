"""Decides who may ask (host names, origins, the token), and adds security headers to every answer."""

import ipaddress
import re
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selhn.serve.limits import CLOSE
from selhn.serve.media_cookie import MediaCookie
from selhn.serve.problems import problem

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
BEHIND_TOKEN = ("/api/", "/metrics")
OPEN = ("/api/v1/health", "/api/v1/openapi.json")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HOST = re.compile(r"(\[(?P<inside>[\da-f]*:[\da-f:.]*)\]|(?P<name>[\w.-]+))(:(?P<port>\d{0,5}))?", re.ASCII)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service bound to this address."""
    address = _address(host.strip("[]"))
    return host.lower() == "localhost" if address is None else address.is_loopback


def host_name(header: str) -> str:
    """The name or address in a Host header, without its port; empty if the header is malformed."""
    found = HOST.fullmatch(header.lower())
    if found is None or int(found["port"] or 0) >= 2**16:
        return ""
    return found["inside"] or found["name"]


class Guard:
    """ASGI middleware that refuses requests that a browser was tricked into, and those without the token.

    A name in the Host header must be localhost or one of `hosts`: a foreign page whose name was bound to our
    address after it was loaded (DNS rebinding) still sends its own name. IP addresses pass: they cannot be
    rebound. A request that sends or changes something must not come from a page of another origin.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None = None,
        hosts: Iterable[str] = (),
        cookie: MediaCookie | None = None,
    ):
        self.app = app
        self._token = None if token is None else token.encode()
        self._cookie = cookie
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for header, value in {**SECURITY_HEADERS, "Cache-Control": "no-store"}.items():
                    out.setdefault(header, value)
            await send(message)

        app = self._refusal(scope["method"], scope["path"], Headers(scope=scope)) or self.app
        return await app(scope, receive, secured)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        if not path.startswith("/"):  # http://name/path: its name would override the Host header
            return problem(400, "the target of the request is not a path: send one that begins with /", CLOSE)
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if name not in self._hosts and _address(name) is None:
            given = ", ".join(hosts)[:80]
            return problem(
                421, f"this service does not know the name {given!r}: add it with --hostname", CLOSE
            )
        if not _same_origin(method, path, headers):
            return problem(403, "this was sent by a page of another origin", CLOSE)
        if path.startswith(BEHIND_TOKEN) and path not in OPEN and not self._knows(method, path, headers):
            ask = {"WWW-Authenticate": 'Bearer realm="selhn"', **CLOSE}
            return problem(401, "this service needs its token: Authorization: Bearer TOKEN", ask)
        return None

    def _knows(self, method: str, path: str, headers: Headers) -> bool:
        """Whether the client has the token, or is a browser with the cookie."""
        if self._token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        right = secrets.compare_digest(given.strip().encode(), self._token)
        if kind.lower() == "bearer" and right:
            return True
        cookie = self._cookie
        return (
            cookie is not None
            and _of_own_page(headers)
            and cookie.opens(method, path, headers.get("cookie", ""))
        )


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _same_origin(method: str, path: str, headers: Headers) -> bool:
    if method in SAFE_METHODS:
        # Foreign pages cannot read the answers, but computing them may already be expensive.
        return not path.startswith(BEHIND_TOKEN) or headers.get("sec-fetch-site") != "cross-site"
    origin = headers.get("origin")
    own = [f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")]
    return (origin is None or origin.lower() in own) and _of_own_page(headers)


def _of_own_page(headers: Headers) -> bool:
    """Whether our own page sent it, if the browser says so; on plain http to another machine it does not."""
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
