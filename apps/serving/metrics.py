"""A server's counts, in Prometheus' text format."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import disable_created_metrics as without_times_of_creation

from speculative.step.row import Stats

_COUNTED = {  # fields of Stats -> names of metrics
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts read."),
    "cached_tokens": ("cached_prompt_tokens", "Of these, tokens that an earlier text had read."),
    "tokens": ("generated_tokens", "Tokens of texts."),
    "target_calls": ("target_calls", "Calls of the target, counted per text."),
    "draft_tokens": ("draft_tokens", "Tokens that were proposed."),
    "accepted": ("accepted_tokens", "Proposed tokens that are in the texts."),
}
without_times_of_creation()


class Metrics:
    """A server's counts. One thread adds rows, another requests."""

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int]):
        self._registry = CollectorRegistry()
        self._stats = Stats()
        base: dict[str, Any] = dict(namespace="speculative", registry=self._registry)
        self.requests = Counter("requests", "Requests answered, by status.", ["status"], **base)
        self._texts = Counter("texts", "Texts ended, by reason.", ["finish_reason"], **base)
        self._counted = {field: Counter(*metric, **base) for field, metric in _COUNTED.items()}
        Gauge("texts_running", "Texts in the batch.", **base).set_function(running)
        Gauge("texts_waiting", "Texts in the queue.", **base).set_function(waiting)
        description = "The share of proposed tokens that were accepted."
        Gauge("acceptance", description, **base).set_function(lambda: self._stats.acceptance)
        description = "From a text's request to its first token."
        self.first_token = Histogram("time_to_first_token_seconds", description, **base)

    def add(self, stats: Stats, finish_reason: str) -> None:
        """Count a row that has ended."""
        self._texts.labels(finish_reason).inc()
        self._stats += stats
        for name, counter in self._counted.items():
            counter.inc(getattr(stats, name))

    def text(self) -> str:
        return generate_latest(self._registry).decode()
