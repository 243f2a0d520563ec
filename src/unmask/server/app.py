"""Models -> ASGI app: compatible routes, own routes, task routes and web page, behind a guard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from unmask.infer.model import Model
from unmask.server.guard import LOCAL_HOSTS, Guard
from unmask.server.limits import Limits, RequestError, internal, invalid
from unmask.server.routes import compatible, tasks, unmask
from unmask.server.schemas import ErrorResponse
from unmask.server.service import Service
from unmask.version import VERSION

MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
# Statuses that the guard or a route may send, for the OpenAPI schema.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorResponse}
    for code in (400, 401, 404, 405, 408, 413, 415, 421, 422, 429, 503)
}


def create_app(
    models: dict[str, Model],
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: tuple[str, ...] = LOCAL_HOSTS,
    runs: dict[str, Path] | None = None,
) -> ASGIApp:
    """Build the server as an ASGI app, without a socket.

    Its lifespan starts and stops the inference thread, so the app answers only in between.
    """
    service = Service(models, limits or Limits(), runs or {})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        service.batcher.stop()  # blocks the loop; uvicorn has answered or cancelled all requests

    app = FastAPI(
        title="unmask",
        version=VERSION,
        lifespan=lifespan,
        # FastAPI's own pages load their scripts from another host; `_page` serves /docs instead.
        docs_url=None,
        redoc_url=None,
        responses=ERROR_RESPONSES,
        description="BERT over HTTP. Errors are JSON with error and error_type.",
    )
    routers = compatible.router(service), unmask.router(service), tasks.router(service)
    for router in routers:
        app.include_router(router)
    _serve_page(app)
    _handle_errors(app)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics of the server in Prometheus' text format."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    routes = (route for router in routers for route in router.routes if isinstance(route, Route))
    # Every POST route asks a model through the queue, so the guard may refuse it when that is full.
    queued = {route.path: route for route in routes if "POST" in (route.methods or ())}
    return Guard(app, service, queued, token=token, hosts=hosts)


def _serve_page(app: FastAPI) -> None:
    """Serve the files of the web page from memory."""
    # Read once: a name in a URL is only a key of this table and never becomes a path.
    folder = files("unmask") / "page"
    contents = {
        file.name: (file.read_bytes(), MEDIA_TYPES[Path(file.name).suffix])
        for file in folder.iterdir()
        if Path(file.name).suffix in MEDIA_TYPES
    }

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404)
        body, media_type = contents[name]
        return Response(body, media_type=media_type)

    app.add_api_route("/", partial(page, "index.html"), include_in_schema=False)
    app.add_api_route("/docs", partial(page, "docs.html"), include_in_schema=False)


def _handle_errors(app: FastAPI) -> None:
    """Turn every exception into a `RequestError` response, so all errors have the same form."""

    @app.exception_handler(RequestError)
    async def error_response(request: Request, error: RequestError) -> JSONResponse:
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        # The client may have caused thousands of errors, and names of any length.
        problems = [
            f"{'.'.join(str(part)[:40] for part in problem['loc'])}: {problem['msg']}"
            for problem in islice(error.errors(), 5)
        ]
        return await error_response(request, invalid("; ".join(problems)))

    # Starlette raises the exception again after this response, and the guard logs it.
    @app.exception_handler(Exception)
    async def unexpected_error(request: Request, error: Exception) -> JSONResponse:
        return await error_response(request, internal())

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"{request.url.path[:80]}: no such route. See /docs for all routes."
        refusal = RequestError(error.status_code, message, "http", error.headers)
        return await error_response(request, refusal)
