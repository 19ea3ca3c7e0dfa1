"""Limits on requests: how large, how long, how slow, and how many at a time."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selhn.base.errors import SelhnError
from selhn.serve.problems import problem

CLOSE = {"Connection": "close"}
"""The rest of a refused body is never read, so the connection cannot take another request."""
UNCOUNTED = ("/api/v1/health", "/api/v1/openapi.json")
"""Like the page and /metrics, these are answered even if there are too many requests."""
LARGE = 2**16
"""After a part of an answer with at least this many bytes, the time limit starts again."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a service; beyond them a request gets 4xx or 503 with a reason."""

    body: int = 20 * 2**20
    """Bytes of a picture that is sent."""
    text_body: int = 2**20
    """Bytes of JSON."""
    pixels: int = 40_000_000
    """Pixels of an uploaded picture; read from its header, before anything is decoded."""
    query: int = 1_000
    """Characters of a sentence or a filter."""
    answers: int = 200
    requests: int = 64
    """Requests answered at a time, counted from the end of their bodies; more get 503 with Retry-After."""
    uploads: int = 8
    """Of these, with a picture; more wait. All bodies together take at most this many times `body` bytes."""
    connections: int = 512
    """Connections open at a time, at most half of the file descriptors; idle ones are closed for new ones."""
    seconds: float = 30.0
    """From the head of a request to the end of its answer; for a file, per part of 256 KiB."""
    body_seconds: float = 15.0
    """For the whole body."""
    head_seconds: float = 10.0
    """For the head, and for an answer that the client does not read."""

    def check_text(self, text: str | None, what: str) -> None:
        """Refuse a sentence, a filter or a caption that is too long."""
        if text is not None and len(text) > self.query:
            raise SelhnError(f"{what} has {len(text):,} characters: at most {self.query:,} are read")


class Bounded:
    """ASGI middleware that enforces `Limits`: nothing beyond them is read, and nothing waits forever.

    A request counts from the end of its body on, so that clients who send slowly do not block others.
    """

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits = app, limits
        self.answering, self.held = 0, 0
        self._pictures = anyio.Semaphore(limits.uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)
            if len(message.get("body", b"")) >= LARGE:  # a file, and the client reads it
                allowed.deadline = anyio.current_time() + self.limits.seconds

        allowed = anyio.move_on_after(self.limits.seconds)
        try:
            with allowed:
                return await self._answer(scope, receive, sending)
            if allowed.cancelled_caught and not started:
                late = f"this took over {self.limits.seconds:g} seconds: ask for less, or try again later"
                raise HTTPException(503, late, {"Retry-After": "5", **CLOSE})
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if not started:
                stopping = "the service is being stopped: try again later"
                await problem(503, stopping, {"Retry-After": "5", **CLOSE})(scope, receive, send)
        except HTTPException as refused:  # the application answers its own
            await problem(refused.status_code, refused.detail, refused.headers)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, body, size = Headers(scope=scope), bytearray(), 0
        is_picture = headers.get("content-type", "").lower().startswith("image/")
        is_counted = scope["path"].startswith("/api/") and scope["path"] not in UNCOUNTED
        limit = self.limits.body if is_picture else self.limits.text_body
        _check_head(headers, limit)
        self._check_busy(is_counted)
        try:
            if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
                if not await self._read(receive, body, limit):
                    return  # the client has gone
                receive, size = _repeated(bytes(body), receive), len(body)
                body.clear()  # no second copy while it waits
            async with (
                self._pictures if is_picture and is_counted else nullcontext()
            ):  # in the order of arrival
                self._check_busy(is_counted)
                self.answering += is_counted
                try:
                    await self.app(scope, receive, send)
                finally:
                    self.answering -= is_counted
        finally:
            self.held -= size or len(body)

    async def _read(self, receive: Receive, body: bytearray, limit: int) -> bool:
        """Receive the whole body; False if the client does not send all of it."""
        with anyio.move_on_after(self.limits.body_seconds):
            while (message := await receive())["type"] == "http.request":
                content = message.get("body", b"")
                body += content
                self.held += len(content)
                if len(body) > limit:
                    raise HTTPException(413, _too_large(limit), CLOSE)
                if self.held > self.limits.uploads * self.limits.body:
                    raise busy(f"{self.held >> 20} MiB of pictures")
                if not message.get("more_body", False):
                    return True
            return False
        slow = f"the body took over {self.limits.body_seconds:g} seconds: send it faster, or less"
        raise HTTPException(408, slow, CLOSE)

    def _check_busy(self, is_counted: bool) -> None:
        if is_counted and self.answering >= self.limits.requests:
            raise busy(f"{self.answering} requests")


def _check_head(headers: Headers, limit: int) -> None:
    """Refuse a request after reading only its head."""
    for name in ("content-type", "content-length"):
        if len(headers.getlist(name)) > 1:  # other programs might use the first of them
            raise HTTPException(400, f"there are several {name} headers: send one", CLOSE)
    if "content-encoding" in headers:
        raise HTTPException(415, "the body is compressed: send it uncompressed", CLOSE)
    declared = headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()) or len(declared) > 18 or int(declared) > limit:
        raise HTTPException(413, _too_large(limit), CLOSE)


def _repeated(body: bytes, receive: Receive) -> Receive:
    """For the application: the body in one piece, then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def repeated() -> Message:
        return messages.pop() if messages else await receive()

    return repeated


def busy(what: str) -> HTTPException:
    """The answer to one request too many."""
    reason = f"the service is busy with {what}: try again in a second"
    return HTTPException(503, reason, {"Retry-After": "1", **CLOSE})


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit / 2**20:g} MiB: send a smaller one"
