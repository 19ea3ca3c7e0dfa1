"""uvicorn's HTTP with time limits for clients that send a head, or read an answer, byte by byte."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from selhn.serve.limits import Limits


class ImpatientProtocol(H11Protocol):
    """Closes a connection if a head is not complete, or an answer not read, within some seconds."""

    seconds = Limits.head_seconds

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = self.loop.call_later(self.seconds, transport.abort)
        self._writing: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a head is complete; start it when the next one begins."""
        super().data_received(data)
        within_head = self.cycle is None or self.cycle.response_complete
        if not within_head:
            self._reading = _cancelled(self._reading)
        elif self._reading is None and not self.transport.is_closing():
            self._reading = self.loop.call_later(self.seconds, self.transport.abort)

    def on_response_complete(self) -> None:
        """Stop the timer: uvicorn itself waits for the next head to begin."""
        self._reading = _cancelled(self._reading)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start a timer: the client does not read the answer."""
        super().pause_writing()
        self._writing = self._writing or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer."""
        super().resume_writing()
        self._writing = _cancelled(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both timers."""
        self._reading, self._writing = _cancelled(self._reading), _cancelled(self._writing)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
