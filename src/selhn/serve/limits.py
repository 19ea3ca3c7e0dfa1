"""What a stranger may send: how large, how long, how slowly, and how many at a time."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE = {"Connection": "close"}
"""The rest of a body that was refused is never read, so the connection has no next request."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a service; beyond them a request gets 4xx or 503 with a reason."""

    body: int = 20 * 2**20
    """Bytes of a picture that is sent."""
    text_body: int = 2**20
    """Bytes of JSON."""
    pixels: int = 40_000_000
    """Of a picture that is sent; known from its head, before anything is decoded."""
    query: int = 1_000
    """Characters of a sentence or a filter."""
    answers: int = 200
    requests: int = 64
    """Answered at a time; more are told to come back."""
    uploads: int = 8
    """Pictures that are received at a time, for each is held in memory."""
    connections: int = 512
    seconds: float = 30.0
    """From the head of a request to the end of its answer."""
    body_seconds: float = 15.0
    """For the whole body."""
    head_seconds: float = 10.0
    """For the head, and for an answer that nobody takes off the line."""


async def refuse(send: Send, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
    """Answer with a reason, as the API does."""
    content = json.dumps({"error": reason}).encode()
    head = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in head.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})


class Bounded:
    """ASGI middleware that holds `Limits`: nothing past them is read, and nothing waits for ever."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits, self.answering, self.receiving = app, limits, 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        for name in (b"content-type", b"content-length"):
            if sum(name == given for given, _ in scope["headers"]) > 1:  # others might go by the first of them
                return await refuse(send, 400, f"there are several {name.decode()} in the head: send one", CLOSE)
        if self.answering >= self.limits.requests:
            busy = f"{self.answering} requests are being answered, which is all at a time: try again in a second"
            return await refuse(send, 503, busy, {"Retry-After": "1", **CLOSE})
        if b"content-encoding" in headers:
            return await refuse(send, 415, "the body is compressed: send it as it is", CLOSE)
        picture = headers.get(b"content-type", b"").lower().startswith(b"image/")
        if picture and self.receiving >= self.limits.uploads:
            full = f"{self.receiving} pictures are being received, which is all at a time: try again in a second"
            return await refuse(send, 503, full, {"Retry-After": "1", **CLOSE})
        limit = self.limits.body if picture else self.limits.text_body
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            return await refuse(send, 413, _too_large(limit), CLOSE)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self.answering += 1
        self.receiving += picture
        try:
            with anyio.move_on_after(self.limits.seconds) as allowed:
                await self.app(scope, self._bounded(receive, limit), sending)
            if allowed.cancelled_caught and not started:
                late = f"this took more than {self.limits.seconds:g} seconds: ask for less, or try again later"
                await refuse(send, 503, late, {"Retry-After": "5", **CLOSE})
        finally:
            self.answering -= 1
            self.receiving -= picture
        return None

    def _bounded(self, receive: Receive, limit: int) -> Receive:
        total, more, deadline = 0, True, time.monotonic() + self.limits.body_seconds

        async def bounded() -> Message:
            nonlocal total, more
            if not more:  # what is waited for now is that the client goes away
                return await receive()
            with anyio.move_on_after(max(0.0, deadline - time.monotonic())) as allowed:
                message = await receive()
            if allowed.cancelled_caught:
                slow = f"the body did not arrive within {self.limits.body_seconds:g} seconds: send it faster, or less"
                raise HTTPException(408, slow, headers=CLOSE)
            total += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if total > limit:
                raise HTTPException(413, _too_large(limit), headers=CLOSE)
            return message

        return bounded


def _too_large(limit: int) -> str:
    return f"the body is larger than the {limit / 2**20:g} MiB that are read: send a smaller picture"
