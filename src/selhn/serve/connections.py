"""Connections: how many are open, which are closed for new ones, and how slow a client may be."""

import asyncio
import errno
import json
import logging
import os
import socket
import time
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from selhn.serve.guard import SECURITY_HEADERS
from selhn.serve.limits import CLOSE

LOGGER = logging.getLogger("selhn.serve")
CLOSED_AT_ONCE = 16
COMING_SECONDS = 5.0
"""An accepted connection that has no protocol after this time has failed."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Waiting = dict["ImpatientProtocol", None]
"""Connections in the order in which they began to wait for their clients."""


class Listening(socket.socket):
    """A listening socket that accepts up to `most` connections, and then closes idle ones for new ones.

    Those that have never sent a request are closed first, then those whose answers were sent, then those that
    send a body; of each kind, the one that has waited longest. If all are being answered, a new
    one is closed.
    """

    def __init__(self, listening: socket.socket, most: int):
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.most = max(1, min(most, descriptors() // 2))
        self.silent: Waiting = {}
        self.answered: Waiting = {}
        self.sending: Waiting = {}
        self.known, self.coming = 0, 0
        """Connections with a protocol, and accepted ones for which asyncio makes it in its next rounds."""
        self._accepted = 0.0
        self._spare: int | None = None
        self._keep_spare()

    def accept(self) -> tuple[socket.socket, Any]:
        """Called by asyncio until it raises BlockingIOError, and again in the next round of its loop."""
        now = time.monotonic()
        if now - self._accepted > COMING_SECONDS:
            self.coming = 0
        if self.known + self.coming >= self.most:
            LOGGER.warning("%d connections are open, the limit: idle ones are closed for new ones", self.most)
            self._make_room()
            raise BlockingIOError
        try:
            accepted = super().accept()
        except OSError as wrong:
            if wrong.errno not in OUT_OF_RESOURCES:
                raise
            LOGGER.error("new connections are refused (%s): raise the limit, `ulimit -n`", wrong.strerror)
            self._refuse()
            raise BlockingIOError from None
        self._accepted, self.coming = now, self.coming + 1
        return accepted

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _make_room(self) -> None:
        idle = list(islice(chain(self.silent, self.answered, self.sending), CLOSED_AT_ONCE))
        for protocol in idle:
            protocol.leave()
        if not idle and not self.coming:
            self._refuse()

    def _refuse(self) -> None:
        """Close the next connection; otherwise the socket would stay ready, and the loop would spin."""
        if self._spare is not None:
            os.close(self._spare)
        with suppress(OSError):  # the client has gone, or another thread has taken the descriptor
            super().accept()[0].close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Keep a descriptor in reserve, to give up when there are no others."""
        self._spare = None
        with suppress(OSError):
            self._spare = os.dup(self.fileno())


def descriptors() -> int:
    """The number of files and connections that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return 2**16
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**16 if limit == resource.RLIM_INFINITY else limit


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP; closes a connection if a head is not complete, or an answer is not read, in time."""

    seconds: float
    listening: Listening

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting: Waiting | None = None
        self.listening.known += 1
        self.listening.coming -= self.listening.coming > 0
        self._start("head")
        self._sort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("head")
        elif not self.transport.is_closing():
            self._start("head")
        self._sort()

    def on_response_complete(self) -> None:
        self._stop("head")  # uvicorn itself waits for the next head to begin
        super().on_response_complete()
        self._sort()

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
        self.listening.known -= 1
        self._sort()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is not HTTP, with the headers of all other answers."""
        headers = {
            **SECURITY_HEADERS,
            "Cache-Control": "no-store",
            "Content-Type": "application/json",
            **CLOSE,
        }
        content = json.dumps({"error": "this is not a request of HTTP/1.1"}).encode()
        events = (
            h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request"),
            h11.Data(content),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The service stops: answers in progress are finished, but nobody waits for the rest of a body."""
        super().shutdown()
        if self._waiting is self.listening.sending:
            self.leave()

    def leave(self) -> None:
        """Close the connection, after what is still to be sent."""
        self.transport.close()
        self._sort()

    def _sort(self) -> None:
        """List the connection under what it waits for; it keeps its place there if that has not changed."""
        waiting = None
        if self.transport.is_closing():
            pass
        elif self.cycle is None:
            waiting = self.listening.silent
        elif self.cycle.response_complete:
            waiting = self.listening.answered
        elif self.conn.their_state is h11.SEND_BODY:
            waiting = self.listening.sending
        if waiting is not self._waiting:
            if self._waiting is not None:
                del self._waiting[self]
            if waiting is not None:
                waiting[self] = None
            self._waiting = waiting

    def _start(self, timer: str) -> None:
        if timer not in self._timers:
            self._timers[timer] = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()
