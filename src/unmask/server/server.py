"""ASGI app -> HTTP server: uvicorn, with deadlines for slow clients.

uvicorn has no deadline for receiving the headers, nor for a client that does not read its response.
Here, a subclass of its protocol adds both. A response that the client does not read fills the
buffer of the operating system first. If it fits, the connection counts as idle and is closed as
such. The rest waits in the transport's write buffer, for which there is the "reading" deadline.
"""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.server.limits import Limits

MAX_HEADER_BYTES = 16_384  # largest headers of a request, in bytes
KEEP_ALIVE_SECONDS = 5  # seconds that a connection may stay open between two requests


def make_protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's HTTP/1.1 protocol with deadlines for sending headers and reading."""

    class Deadlines(H11Protocol):
        timers: dict[str, asyncio.TimerHandle]

        def connection_made(self, transport: Any) -> None:
            self.timers = {}
            super().connection_made(transport)
            self._set_deadline("headers", limits.header_seconds)

        def data_received(self, data: bytes) -> None:
            if not self.transport.get_write_buffer_size():
                self._set_deadline("reading", None)  # the client has read all earlier responses
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._set_deadline("headers", None)  # complete: from here the guard keeps the time
            elif "headers" not in self.timers:  # more bytes do not restart the time
                self._set_deadline("headers", limits.header_seconds)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # asyncio calls `pause_writing` only above 64 KB, and less may stay unread, too.
            if "reading" not in self.timers and self.transport.get_write_buffer_size():
                self._set_deadline("reading", limits.body_seconds)
            if self.cycle is not None and not self.cycle.response_complete:
                self._set_deadline("headers", None)  # a pipelined request has begun already

        def pause_writing(self) -> None:
            super().pause_writing()
            self._set_deadline("reading", limits.body_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            # Called when the buffer is low, not empty: the rest gets a deadline of its own.
            unsent = self.transport.get_write_buffer_size()
            self._set_deadline("reading", limits.body_seconds if unsent else None)

        def connection_lost(self, exc: Exception | None) -> None:
            for deadline in list(self.timers):
                self._set_deadline(deadline, None)
            super().connection_lost(exc)

        def _set_deadline(self, deadline: str, seconds: float | None) -> None:
            """Set the deadline for what the client must do; None removes it."""
            if deadline in self.timers:
                self.timers.pop(deadline).cancel()
            if seconds is not None:
                self.timers[deadline] = self.loop.call_later(
                    seconds, self._deadline_passed, deadline
                )

        def _deadline_passed(self, deadline: str) -> None:
            del self.timers[deadline]
            # `abort`, because `close` would wait until the client has read the buffer.
            if deadline == "headers" or self.transport.get_write_buffer_size():
                self.transport.abort()

    return Deadlines


def make_server(app: ASGIApp, *, host: str, port: int, limits: Limits) -> uvicorn.Server:
    """Return a server, not yet running, that answers open requests before it stops."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=make_protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(limits.drain_seconds),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        backlog=2048,
    )
    return uvicorn.Server(config)
