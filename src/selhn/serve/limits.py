"""Limits on requests: how large, how long, how slow, and how many at a time."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from selhn.serve.problems import problem

CLOSE = {"Connection": "close"}
"""The rest of a refused body is never read, so the connection cannot take another request."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a service; beyond them a request gets 4xx or 503 with a reason."""

    body: int = 20 * 2**20
    """Bytes of a picture that is sent."""
    text_body: int = 2**20
    """Bytes of JSON."""
    pixels: int = 40_000_000
    """Of a picture that is sent; read from its header, before anything is decoded."""
    query: int = 1_000
    """Characters of a sentence or a filter."""
    answers: int = 200
    requests: int = 64
    """Answered at a time; more get 503 with Retry-After."""
    uploads: int = 8
    """Pictures received at a time; each is held in memory."""
    connections: int = 512
    seconds: float = 30.0
    """From the head of a request to the end of its answer."""
    body_seconds: float = 15.0
    """For the whole body."""
    head_seconds: float = 10.0
    """For the head, and for an answer that the client does not read."""


class Bounded:
    """ASGI middleware that enforces `Limits`: nothing beyond them is read, and nothing waits forever."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits, self.answering, self.receiving = app, limits, 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        is_picture = headers.get("content-type", "").lower().startswith("image/")
        limit = self.limits.body if is_picture else self.limits.text_body
        refusal = self._refusal(headers, is_picture, limit)
        if refusal is not None:
            return await refusal(scope, receive, send)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self.answering += 1
        self.receiving += is_picture
        try:
            with anyio.move_on_after(self.limits.seconds) as allowed:
                await self.app(scope, self._bounded(receive, limit), sending)
            if allowed.cancelled_caught and not started:
                late = f"this took over {self.limits.seconds:g} seconds: ask for less, or try again later"
                await problem(503, late, {"Retry-After": "5", **CLOSE})(scope, receive, send)
        finally:
            self.answering -= 1
            self.receiving -= is_picture
        return None

    def _refusal(self, headers: Headers, is_picture: bool, limit: int) -> Response | None:
        """The answer to a request of which nothing but the head is read."""
        for name in ("content-type", "content-length"):
            if len(headers.getlist(name)) > 1:  # others might go by the first of them
                return problem(400, f"there are several {name} headers: send one", CLOSE)
        if self.answering >= self.limits.requests:
            return _busy(f"{self.answering} requests")
        if "content-encoding" in headers:
            return problem(415, "the body is compressed: send it uncompressed", CLOSE)
        if is_picture and self.receiving >= self.limits.uploads:
            return _busy(f"{self.receiving} pictures")
        declared = headers.get("content-length", "0")
        if not (declared.isascii() and declared.isdigit()) or len(declared) > 18 or int(declared) > limit:
            return problem(413, _too_large(limit), CLOSE)
        return None

    def _bounded(self, receive: Receive, limit: int) -> Receive:
        total, more, deadline = 0, True, time.monotonic() + self.limits.body_seconds

        async def bounded() -> Message:
            nonlocal total, more
            if not more:  # the application waits for the client to disconnect
                return await receive()
            with anyio.move_on_after(max(0.0, deadline - time.monotonic())) as allowed:
                message = await receive()
            if allowed.cancelled_caught:
                slow = f"the body took over {self.limits.body_seconds:g} seconds: send it faster, or less"
                raise HTTPException(408, slow, headers=CLOSE)
            total += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if total > limit:
                raise HTTPException(413, _too_large(limit), headers=CLOSE)
            return message

        return bounded


def _busy(what: str) -> Response:
    reason = f"the service is busy with {what}, its limit: try again in a second"
    return problem(503, reason, {"Retry-After": "1", **CLOSE})


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit / 2**20:g} MiB: send a smaller one"


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP, which closes a connection if a head is not complete, or an answer not read, in time."""

    seconds = Limits.head_seconds

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._start("head")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("head")
        elif not self.transport.is_closing():
            self._start("head")

    def on_response_complete(self) -> None:
        self._stop("head")  # uvicorn itself waits for the next head to begin
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("answer")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("answer")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("head")
        self._stop("answer")
        super().connection_lost(exc)

    def _start(self, timer: str) -> None:
        if timer not in self._timers:
            self._timers[timer] = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()
