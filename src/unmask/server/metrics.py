"""Requests and batches -> Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Upper bounds of the histogram buckets; the last is the default deadline of a request.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Prometheus metrics of one server.

    They are kept in a registry of their own: in Prometheus' global registry, a second server in
    this process could not register the same names.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "unmask_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "unmask_request_seconds",
            "Seconds from the first byte of a request to its response.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.texts = Histogram(
            "unmask_batch_texts", "Texts in a batch.", buckets=TEXTS, registry=self.registry
        )
        self.tokens = Counter(
            "unmask_tokens", "Tokens computed, estimated.", registry=self.registry
        )
        self.waiting = Gauge("unmask_waiting_texts", "Texts in the queue.", registry=self.registry)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered or refused, by its route and HTTP status."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def batch(self, texts: int, tokens: int) -> None:
        """Count a computed batch, by its texts and its estimated tokens."""
        self.texts.observe(texts)
        self.tokens.inc(tokens)
