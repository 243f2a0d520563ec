"""What one server takes on, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Limits:
    """Bounds of everything that a client decides."""

    body: int = 1_000_000  # bytes
    texts: int = 32  # of a request
    tokens: int = 32_768  # of a request, about: a long passage is read in many windows
    queue: int = 256  # texts that wait
    requests: int = 1000  # under way, also while their bodies arrive; beyond them 503
    batch_tokens: int = 2048  # computed at a time
    options: Mapping[str, int] = field(default_factory=lambda: {"beams": 8})  # largest values
    sessions: int = 8  # answers that grow at the same time, of however many requests each
    header_seconds: float = 5.0  # until the headers are there
    body_seconds: float = 10.0  # until the body is there, and for a client to read the answer
    request_seconds: float = 30.0  # until the answer is there
    drain_seconds: float = 30.0  # for what is under way, when the server is told to stop


class RequestError(Exception):
    """A request that gets no answer: the status, what is wrong, and a name that a program knows."""

    def __init__(
        self, status: int, message: str, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.headers = status, message, kind, headers

    def response(self, path: str) -> JSONResponse:
        """The answer that says so to the clients of that route."""
        return JSONResponse(self.body(path), self.status, self.headers)

    def body(self, path: str) -> dict[str, object]:
        """As the clients of that route expect it: OpenAI's, or text-embeddings-inference's."""
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
    """What was asked cannot be answered, however often it is asked."""
    return RequestError(422, message, "validation")


def too_large(message: str) -> RequestError:
    """More than a request may bring."""
    return RequestError(413, message, "too_large")


def busy(message: str) -> RequestError:
    """Too much at once: later, it may be answered."""
    return RequestError(429, message, "overloaded", {"retry-after": "1"})


def internal() -> RequestError:
    """A mistake of ours, of which the log has more."""
    message = "the server made a mistake. Its log has it, by the x-request-id of this answer."
    return RequestError(500, message, "internal")


def too_late(message: str) -> RequestError:
    """It would have taken too long."""
    return RequestError(503, message, "timeout", {"retry-after": "2"})
