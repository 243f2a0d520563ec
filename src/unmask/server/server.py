"""The app -> a socket: uvicorn, with deadlines for clients that are slow on purpose.

An answer that nobody reads goes into the system's buffer first. If it fits there, the connection is
idle to us, and ends as such; what does not fit waits here, and has a deadline.
"""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.server.limits import Limits

HEADERS = 16_384  # bytes of a request's headers
IDLE = 5  # seconds that a connection may wait for its next request


def protocol(limits: Limits) -> type[H11Protocol]:
    """HTTP/1.1 that ends a connection which brings its headers, or takes its answer, too slowly."""

    class Deadlines(H11Protocol):
        timers: dict[str, asyncio.TimerHandle]

        def connection_made(self, transport: Any) -> None:
            self.timers = {}
            super().connection_made(transport)
            self._expect("headers", limits.header_seconds)

        def data_received(self, data: bytes) -> None:
            if not self.transport.get_write_buffer_size():
                self._expect("reading", None)  # it has taken all that came before
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._expect("headers", None)  # they are there: the guard takes over
            elif "headers" not in self.timers:
                self._expect("headers", limits.header_seconds)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if "reading" not in self.timers and self.transport.get_write_buffer_size():
                self._expect("reading", limits.body_seconds)  # too little for pause_writing
            if self.cycle is not None and not self.cycle.response_complete:
                self._expect("headers", None)  # the next request was there already

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect("reading", limits.body_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            left = self.transport.get_write_buffer_size()  # it is called before all is taken
            self._expect("reading", limits.body_seconds if left else None)

        def connection_lost(self, exc: Exception | None) -> None:
            for what in list(self.timers):
                self._expect(what, None)
            super().connection_lost(exc)

        def _expect(self, what: str, seconds: float | None) -> None:
            """The client must do this within so many seconds; None: it has."""
            if what in self.timers:
                self.timers.pop(what).cancel()
            if seconds is not None:
                self.timers[what] = self.loop.call_later(seconds, self._late, what)

        def _late(self, what: str) -> None:
            del self.timers[what]
            if what == "headers" or self.transport.get_write_buffer_size():
                self.transport.abort()  # also one that is closing, with an answer nobody reads

    return Deadlines


def server(app: ASGIApp, *, host: str, port: int, limits: Limits) -> uvicorn.Server:
    """A server that, when told to stop, first answers what is under way; not yet running."""
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(limits.drain_seconds),
        h11_max_incomplete_event_size=HEADERS,
        backlog=2048,
    )
    return uvicorn.Server(settings)
