"""HTTP request -> checks -> route -> response with security headers and a request id.

The checks, in order: number of open requests, host, token, content type, size and time of the body,
room in the queue. Then the route runs until it answers, its deadline passes or the client
disconnects. Errors are JSON and never contain a traceback.

The guard is plain ASGI, so that nothing else reads a body before it, without a bound.
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

# Paths that need no token. The files of the page need none either: the page asks its user for the
# token and sends it with each request.
PUBLIC_PATHS = {"/health"}
PAGE = "/page/"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
# Forbids inline scripts and everything from other hosts; `data:` is for the page's empty icon.
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
# Sent if the body was not read to its end: the connection could be used again only after reading
# the rest of it.
CLOSE_CONNECTION = {"connection": "close"}
REFUSAL_DELAY = 0.5  # seconds until a 429 is sent
CLIENT_CLOSED = 499  # nginx's status for a client that disconnected before it was answered
log = logging.getLogger("unmask.server")


class Guard:
    """ASGI middleware that applies the limits of a service to an app.

    `queued` maps paths to the routes whose requests go through the batcher's queue.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        queued: Mapping[str, Route],
        *,
        token: str | None,
        hosts: tuple[str, ...],
    ) -> None:
        self.app, self.service, self.queued, self.token = app, service, queued, token
        self.limits = service.limits
        self.open_requests = 0  # only the event loop changes this, so it needs no lock
        self.hosts = {_host_name(host.lower()) for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, run its route and record its status and duration."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, started, path = uuid.uuid4().hex, time.perf_counter(), str(scope["path"])
        status = CLIENT_CLOSED  # until a response has begun

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if message["status"] == 429:
                    # A client that repeats a refused request at once would keep the server busy
                    # with refusals (1,665 per second when measured). Waiting costs nothing.
                    await asyncio.sleep(REFUSAL_DELAY)
                # After the wait: a client that disconnects meanwhile is recorded as CLIENT_CLOSED.
                status = message["status"]
                MutableHeaders(scope=message).update({**HEADERS, "x-request-id": request_id})
            await send(message)

        self.open_requests += 1
        try:
            if self.open_requests > self.limits.requests:
                limit = self.limits.requests
                raise too_late(f"the server has {limit} open requests, its limit. Try again later.")
            self._check_headers(scope)
            body = await self._read_body(scope, receive)
            await self._run_route(scope, body, receive, reply)
        except RequestError as error:
            # If a response has begun, no second one can follow: uvicorn closes the connection.
            if status == CLIENT_CLOSED:
                await error.response(path)(scope, receive, reply)
        except Exception:
            log.exception("request %s failed", request_id)
            if status == CLIENT_CLOSED:
                await internal().response(path)(scope, receive, reply)
        finally:
            self.open_requests -= 1
            self.service.metrics.request(
                _route_template(scope), status, time.perf_counter() - started
            )

    def _check_headers(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # Against DNS rebinding: a web page could resolve its own name to this address, and then its
        # requests would count as same-origin. The host header still has the page's name.
        host = headers.get("host", "").lower()
        if "*" not in self.hosts and _host_name(host) not in self.hosts:
            message = f"host '{host[:80]}' is not allowed. Allow it with --allow-host."
            raise RequestError(421, message, "host")
        path, method = str(scope["path"]), scope["method"]
        public = path in PUBLIC_PATHS or (
            method == "GET" and (path == "/" or path.startswith(PAGE))
        )
        if self.token and not public:
            scheme, _, credentials = headers.get("authorization", "").partition(" ")
            # Constant time, so that timing does not reveal how much of a token is right. As bytes,
            # because `compare_digest` raises for a str that is not ASCII.
            matches = hmac.compare_digest(credentials.strip().encode(), self.token.encode())
            if scheme.lower() != "bearer" or not matches:
                message = (
                    "the token is missing or wrong; need the header Authorization: Bearer TOKEN."
                )
                raise RequestError(401, message, "token", {"www-authenticate": "Bearer"})
        # Another site can make a browser post an HTML form here, which CORS does not prevent. But a
        # form cannot send JSON.
        if method in ("POST", "PUT", "PATCH"):
            content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
            if content_type != "application/json":
                message = f"the content-type is '{content_type[:80]}'; need application/json."
                raise RequestError(415, message, "content_type")
            # Nothing here decompresses, so the body would be refused as invalid JSON later on.
            if headers.get("content-encoding", "identity") != "identity":
                message = "the body is compressed. Send it uncompressed."
                raise RequestError(415, message, "content_encoding")
        # Twenty digits are over any limit, and int() raises for a text of thousands of digits.
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or int(length[:20]) > self.limits.body:
            raise self._body_too_large()

    def _body_too_large(self) -> RequestError:
        message = f"the body has more than {self.limits.body:,} bytes. Send less in one request."
        return RequestError(413, message, "too_large", CLOSE_CONNECTION)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body; raise as soon as it is too large, too slow or ends early.

        The size is counted as it arrives, because a chunked body does not declare it.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in Request(scope, receive).stream():
                    body += chunk
                    if len(body) > self.limits.body:
                        raise self._body_too_large()
        except TimeoutError:
            raise RequestError(
                408, "receiving the body took too long.", "timeout", CLOSE_CONNECTION
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "the body is incomplete.", "body") from None
        return bytes(body)

    async def _run_route(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the route until it answers, the client disconnects or the deadline passes."""
        # The body was read here, so the route receives it from a queue, as a single message.
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

        # uvicorn does not cancel an app when its client disconnects; this tells when it does.
        async def watch() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                pass
            messages.put_nowait(message)  # Starlette waits for it while it streams

        route = asyncio.create_task(self._call_app(scope, messages.get, send))
        watcher = asyncio.create_task(watch())
        try:
            done, _ = await asyncio.wait(
                {route, watcher},
                timeout=self.limits.request_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if route in done:
                route.result()  # raises what the route raised
            elif not done:
                raise too_late("the request took too long. Try again, or send less in one request.")
        finally:
            # Cancelling the route marks its requests as left, so that the batcher drops them.
            # Awaiting it lets that happen before this request stops counting as open.
            for task in (route, watcher):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, or refuse right away while the queue is full, without parsing the body.

        Under overload most requests are refused, so a refusal must be cheap: parsing and validating
        a body takes most of its time. An invalid request therefore gets its 422 only when the queue
        has room.
        """
        route = self.queued.get(str(scope["path"])) if scope["method"] == "POST" else None
        if route is not None and (error := self.service.batcher.full()):
            scope["route"] = route  # as the router would set it, for the metrics
            await error.response(route.path)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _host_name(host: str) -> str:
    """Return a host without its port: [::1]:80 -> [::1]."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _route_template(scope: Scope) -> str:
    """Return the route's path template, such as /runs/{name}.

    A real path as a metric label would let a client create any number of time series.
    """
    return str(getattr(scope.get("route"), "path", "other"))
