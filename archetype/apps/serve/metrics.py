"""Prometheus metrics of the server."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from archetype.apps.serve.served_model import ServedModel

# upper limits of the histograms' buckets
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# name, help, and the field of `Stats`
GAUGES = (
    ("archetype_requests_waiting", "Requests in the queue", "waiting"),
    ("archetype_requests_running", "Requests in prefill or decoding", "running"),
    ("archetype_state_bytes", "Bytes of the slots' states, such as KV caches", "state_bytes"),
    ("archetype_prefix_bytes", "Bytes of the prefix cache", "prefix_bytes"),
    ("archetype_cache_use_ratio", "Tokens in the slots over the tokens that fit", "cache_use"),
)
COUNTERS = (
    ("archetype_prompt_tokens", "Prompt tokens", "prompt_tokens"),
    ("archetype_prefix_hit_tokens", "Prompt tokens taken from the prefix cache", "cached_tokens"),
    ("archetype_generated_tokens", "Generated tokens", "generated_tokens"),
    ("archetype_steps", "Engine steps", "steps"),
)


class Clock:
    """Timer for the time to the first token of a response and the time between later tokens."""

    def __init__(self, first: Histogram, between: Histogram) -> None:
        self._next, self._between, self._last = first, between, time.perf_counter()

    def tick(self) -> None:
        """Record the arrival of new tokens."""
        now = time.perf_counter()
        self._next.observe(now - self._last)
        self._next, self._last = self._between, now


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self, loaded: "Callable[[], list[ServedModel]]") -> None:
        self._registry = CollectorRegistry()  # not the global one, which all servers of a process would share
        self._registry.register(EngineStats(loaded))
        self._requests = Counter("archetype_requests", "Responses", ("path", "status"), registry=self._registry)
        name, help = (
            "archetype_time_to_first_token_seconds",
            "Time from a request to its first token",
        )
        self._first = Histogram(name, help, ("model",), registry=self._registry, buckets=SECONDS)
        name, help = "archetype_inter_token_seconds", "Time between the tokens of a response"
        self._between = Histogram(name, help, ("model",), registry=self._registry, buckets=SECONDS)

    def clock(self, model: str) -> Clock:
        return Clock(self._first.labels(model), self._between.labels(model))

    def count(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class EngineStats(Collector):
    """Prometheus collector for the engines' statistics."""

    def __init__(self, loaded: "Callable[[], list[ServedModel]]") -> None:
        self._loaded = loaded

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of every generating model."""
        # read when Prometheus asks, so nothing is counted twice; unloaded models are absent
        engines = [(model.name, model.worker.engine.stats()) for model in self._loaded() if model.worker.engine]
        for kind, fields in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, field in fields:
                family = kind(name, text, labels=("model",))
                for model, stats in engines:
                    family.add_metric((model,), getattr(stats, field))
                yield family
