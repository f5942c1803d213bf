"""Connections whose clients neither send nor take anything for a while are closed."""

from __future__ import annotations

import asyncio
from typing import Optional

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_SECONDS = 20.0
"""In which the head of a request must have arrived, and what a client has been sent be taken."""


class PatientProtocol(H11Protocol):
    """Uvicorn's, which would wait for both without an end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        self._timer: Optional[asyncio.TimerHandle] = None
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Waits no longer."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Waits on, unless a request is there; bodies have a time of their own."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        elif not self.flow.write_paused:
            self._wait_no_longer()

    def pause_writing(self) -> None:
        """Begins to wait for a client that takes nothing."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Waits no longer."""
        self._wait_no_longer()
        super().resume_writing()

    def _wait(self) -> None:
        if self._timer is None:  # a byte now and then is no reason to wait longer
            self._timer = self.loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self.transport.abort()
