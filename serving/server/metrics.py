"""What Prometheus reads."""

from __future__ import annotations

from functools import partial
from typing import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


def _count(counts: Callable[[], tuple[int, int]], place: int) -> float:
    return counts()[place]


class Metrics:
    """Counters of one server.

    Args:
        counts: texts that are being written and that wait.
    """

    def __init__(self, counts: Callable[[], tuple[int, int]]):
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "serve_requests",
            "Requests by route and status.",
            ("route", "status"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "serve_request_seconds",
            "From the request to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "serve_first_token_seconds",
            "From the request to the first text of its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "serve_prompt_tokens", "Tokens of prompts that were accepted.", registry=registry
        )
        self.completion_tokens = Counter(
            "serve_completion_tokens", "New tokens that were sent.", registry=registry
        )
        for name, text, place in (
            ("serve_texts_running", "Texts that are being written.", 0),
            ("serve_texts_waiting", "Texts that wait for their turn.", 1),
        ):
            gauge = Gauge(name, text, registry=registry)
            gauge.set_function(partial(_count, counts, place))
        ProcessCollector(registry=registry)

    def text(self) -> bytes:
        """All of it, in the format of Prometheus."""
        return generate_latest(self._registry)
