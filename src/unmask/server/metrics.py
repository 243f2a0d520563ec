"""What the server counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Those of one server, so that two in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "unmask_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "unmask_request_seconds",
            "From the first byte to the answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.texts = Histogram(
            "unmask_batch_texts", "Texts computed together.", buckets=TEXTS, registry=self.registry
        )
        self.tokens = Counter("unmask_tokens", "Tokens computed, about.", registry=self.registry)
        self.waiting = Gauge("unmask_waiting_texts", "Texts in the queue.", registry=self.registry)

    def request(self, route: str, status: int, seconds: float) -> None:
        """One more request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def batch(self, texts: int, tokens: int) -> None:
        """One more batch."""
        self.texts.observe(texts)
        self.tokens.inc(tokens)
