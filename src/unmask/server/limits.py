"""Limits of a server, and the errors of requests that are refused -> JSON responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Limits:
    """Upper bounds for everything a client can influence: sizes, counts, options and times."""

    body: int = 1_000_000  # bytes of a request body
    texts: int = 32  # per request
    # Per request, estimated. The model's own limit does not bound this: question answering splits a
    # long passage into many windows.
    tokens: int = 32_768
    queue: int = 256  # texts that wait; more are refused with 429
    requests: int = 1000  # open requests, including those whose body is still arriving; then 503
    batch_tokens: int = 2048  # per batch, estimated
    options: Mapping[str, int] = field(default_factory=lambda: {"beams": 8})  # largest values
    sessions: int = 8  # that generate at the same time; several requests may share one
    header_seconds: float = 5.0  # to receive the headers
    body_seconds: float = 10.0  # to receive the body, and for the client to read the response
    request_seconds: float = 30.0  # from the complete body to the complete response
    drain_seconds: float = 30.0  # to finish open requests after a stop request


class RequestError(Exception):
    """A refused request: HTTP status, message for people, and error type for programs."""

    def __init__(
        self, status: int, message: str, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.headers = status, message, kind, headers

    def response(self, path: str) -> JSONResponse:
        """Return the error as a response, in the format that clients of this path expect."""
        return JSONResponse(self.body(path), self.status, self.headers)

    def body(self, path: str) -> dict[str, object]:
        """Return the JSON body: OpenAI's format under /v1, else text-embeddings-inference's."""
        if path.startswith("/v1/"):
            return {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "code": self.status,
                    "param": None,
                }
            }
        return {"error": self.message, "error_type": self.kind}


def invalid(message: str) -> RequestError:
    """Return a 422 error: the request is invalid, and repeating it cannot help."""
    return RequestError(422, message, "validation")


def too_large(message: str) -> RequestError:
    """Return a 413 error: the request is larger than the server or the model accepts."""
    return RequestError(413, message, "too_large")


def busy(message: str) -> RequestError:
    """Return a 429 error: the queue is full; the client should retry after a second."""
    return RequestError(429, message, "overloaded", {"retry-after": "1"})


def internal() -> RequestError:
    """Return a 500 error without details; the traceback goes to the server log."""
    message = "internal server error. See the server log for the x-request-id of this response."
    return RequestError(500, message, "internal")


def too_late(message: str) -> RequestError:
    """Return a 503 error: overload, timeout or shutdown; the client may retry."""
    return RequestError(503, message, "timeout", {"retry-after": "2"})
