"""HTTP as uvicorn speaks it, without patience for those who send a head, or take an answer, byte by byte."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from selhn.serve.limits import Limits


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request has no end of its head, or whose answer is not taken, within some seconds."""

    seconds = Limits.head_seconds

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = self.loop.call_later(self.seconds, transport.abort)
        self._writing: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        super().data_received(data)
        within_head = self.cycle is None or self.cycle.response_complete
        if not within_head:
            self._reading = _cancelled(self._reading)
        elif self._reading is None and not self.transport.is_closing():
            self._reading = self.loop.call_later(self.seconds, self.transport.abort)

    def on_response_complete(self) -> None:
        """An answer is on its way; uvicorn itself waits for the next head to begin."""
        self._reading = _cancelled(self._reading)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        self._writing = self._writing or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._writing = _cancelled(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._reading, self._writing = _cancelled(self._reading), _cancelled(self._writing)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
