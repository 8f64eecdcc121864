"""What a server has done, as text that Prometheus reads."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from speculative.row import Stats

PREFIX = "speculative"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of values up to each of some bounds."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS):
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts of a server. One thread adds rows, another requests."""

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int]):
        """running, waiting: how many rows are in the batch and in the queue."""
        self._running, self._waiting = running, waiting
        self.requests: Counter[int] = Counter()  # by status
        self.first_token = Histogram()
        self._rows: Counter[str] = Counter()  # by what they ended with
        self._stats = Stats()

    def add(self, stats: Stats, finish_reason: str) -> None:
        """A row that has ended."""
        self._rows[finish_reason] += 1
        self._stats += stats

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        stats = self._stats
        counters = {
            "prompt_tokens": (stats.prompt_tokens, "Tokens of prompts read."),
            "generated_tokens": (stats.tokens, "Tokens of texts."),
            "target_calls": (stats.target_calls, "Calls of the target, counted per text."),
            "drafted_tokens": (stats.drafted, "Tokens that were proposed."),
            "accepted_tokens": (stats.accepted, "Proposed tokens that are in the texts."),
        }
        lines = self._of("requests_total", "counter", "Requests answered, by status.")
        lines += self._labelled("requests_total", "status", self.requests)
        lines += self._of("texts_total", "counter", "Texts ended, by what ended them.")
        lines += self._labelled("texts_total", "finish_reason", self._rows)
        for name, (value, about) in counters.items():
            lines += [
                *self._of(f"{name}_total", "counter", about),
                f"{PREFIX}_{name}_total {value}",
            ]
        gauges = {
            "texts_running": (self._running(), "Texts in the batch."),
            "texts_waiting": (self._waiting(), "Texts in the queue."),
            "acceptance": (stats.acceptance, "The share of proposed tokens that were accepted."),
        }
        for name, (value, about) in gauges.items():
            lines += [*self._of(name, "gauge", about), f"{PREFIX}_{name} {value}"]
        name = "time_to_first_token_seconds"
        lines += self._of(name, "histogram", "From a text's request to its first token.")
        lines += self.first_token.lines(f"{PREFIX}_{name}")
        return "\n".join(lines) + "\n"

    def _of(self, name: str, kind: str, about: str) -> list[str]:
        return [f"# HELP {PREFIX}_{name} {about}", f"# TYPE {PREFIX}_{name} {kind}"]

    def _labelled(self, name: str, label: str, counts: Counter) -> list[str]:
        pairs = sorted(counts.copy().items())
        return [f'{PREFIX}_{name}{{{label}="{value}"}} {count}' for value, count in pairs]
