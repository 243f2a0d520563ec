"""What every request passes before a route sees it: pure ASGI, so that nothing is read unbounded.

host -> token -> kind of body -> body, in pieces, up to a limit and a deadline -> is there room in
the queue? -> the route, up to a deadline and only as long as the client is there. Whatever happens,
the answer is JSON with a request id, and never a traceback.
"""

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unmask.server.limits import RequestError, internal, too_late
from unmask.server.service import Service

OPEN = {"/health"}  # without a token; those of the page ask for it themselves
PAGE = "/page/"
LOCAL = ("localhost", "127.0.0.1", "[::1]")
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
UNREAD = {"connection": "close"}  # with an answer before all of the body was read
PATIENCE = 0.5  # seconds before a client hears that there is too much to do
GONE = 499  # what nginx notes of a client that went away before it was answered
log = logging.getLogger("unmask.server")


class Guard:
    """An app behind its limits; `queued` are the routes whose requests wait, by path."""

    def __init__(
        self,
        app: ASGIApp,
        desk: Service,
        queued: Mapping[str, Route],
        *,
        token: str | None,
        hosts: tuple[str, ...],
    ) -> None:
        self.app, self.desk, self.queued, self.token = app, desk, queued, token
        self.limits = desk.limits
        self.under_way = 0  # requests
        self.hosts = {_name(host.lower()) for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the top of the file."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id, begun, path = uuid.uuid4().hex, time.perf_counter(), str(scope["path"])
        status = GONE

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if message["status"] == 429:
                    # Who asks again at once would have us say no all day; waiting costs us nothing.
                    await asyncio.sleep(PATIENCE)
                status = message["status"]
                MutableHeaders(scope=message).update({**HEADERS, "x-request-id": id})
            await send(message)

        self.under_way += 1
        try:
            if self.under_way > self.limits.requests:
                raise too_late(f"{self.limits.requests} requests are under way. Try again.")
            self._check(scope)
            body = await self._body(scope, receive)
            await self._answered(scope, body, receive, reply)
        except RequestError as refused:
            if status == GONE:  # else the answer is half sent: it ends with the connection
                await refused.response(path)(scope, receive, reply)
        except Exception:
            log.exception("request %s failed", id)
            if status == GONE:
                await internal().response(path)(scope, receive, reply)
        finally:
            self.under_way -= 1
            self.desk.metrics.request(_route(scope), status, time.perf_counter() - begun)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if "*" not in self.hosts and _name(host) not in self.hosts:
            message = f"host '{host[:80]}' is not served here. Allow it (--allow-host)."
            raise RequestError(421, message, "host")
        path, method = str(scope["path"]), scope["method"]
        public = path in OPEN or (method == "GET" and (path == "/" or path.startswith(PAGE)))
        if self.token and not public:
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if kind.lower() != "bearer" or not right:
                message = "need the header Authorization: Bearer TOKEN."
                raise RequestError(401, message, "token", {"www-authenticate": "Bearer"})
        if method in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                message = f"content-type '{kind[:80]}'; need application/json."
                raise RequestError(415, message, "content_type")
            if headers.get("content-encoding", "identity") != "identity":
                message = "the body is compressed; send it as it is."
                raise RequestError(415, message, "content_encoding")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or int(length[:20]) > self.limits.body:
            raise self._large()

    def _large(self) -> RequestError:
        message = f"the body is over {self.limits.body:,} bytes. Send less at a time."
        return RequestError(413, message, "too_large", UNREAD)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of it, or a refusal as soon as it is too much or too slow."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    if len(body) > self.limits.body:
                        raise self._large()
        except TimeoutError:
            raise RequestError(408, "the body came too slowly.", "timeout", UNREAD) from None
        except ClientDisconnect:
            raise RequestError(400, "the body ended early.", "body") from None
        return bytes(body)

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the route until it has answered, the client has gone, or it took too long."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

        async def watch() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                pass
            messages.put_nowait(message)

        route = asyncio.create_task(self._routed(scope, messages.get, send))
        watcher = asyncio.create_task(watch())
        try:
            done, _ = await asyncio.wait(
                {route, watcher},
                timeout=self.limits.request_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if route in done:
                route.result()
            elif not done:
                raise too_late("it took too long. Try again, or send less at a time.")
        finally:
            for task in (route, watcher):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The route's answer; while the queue is full, a refusal, and nothing is looked into.

        With far too many clients most are refused: the less that costs, the more is left for the
        answers. So one whose request is wrong, too, hears of that only when there is room.
        """
        route = self.queued.get(str(scope["path"])) if scope["method"] == "POST" else None
        if route is not None and (refused := self.desk.batcher.full()):
            scope["route"] = route  # for the metrics
            await refused.response(route.path)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _name(host: str) -> str:
    """Without the port: [::1]:80 -> [::1]."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _route(scope: Scope) -> str:
    """The route as it is written, so that there are few of them."""
    return str(getattr(scope.get("route"), "path", "other"))
