"""Instruments of benchmark.py: ways of decoding that take turns, so that what slows the machine down slows
all of them down."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from decoder import Batch, load, wired_memory
from demo.pair import demo_model
from demo.tasks import SHORT_KINDS, Example, held_out_example
from demo.widen import widen
from model import T5
from speculative.batch import decode
from speculative.cached_model import Model
from speculative.drafting import Drafter
from speculative.options import Options
from speculative.row import Row, Stats, Waiting
from speculative.schedule import AdaptiveSchedule, FixedSchedule, Schedule

# ---------------------------------------------------------------------------------------------
# What is decoded


def examples(per_kind: int, kinds: Sequence[str] = SHORT_KINDS) -> list[Example]:
    """Held-out examples, as many of each kind."""
    rng = random.Random(0)
    return [held_out_example(rng, kind) for kind in kinds for _ in range(per_kind)]


def widened_pair(sizes: Sequence[str]) -> tuple[T5, T5]:
    """The embedded pair in these sizes, each with its tokenizer."""
    target, draft = (load(demo_model(role))[0] for role in ("target", "draft"))
    wide = widen(target, sizes[0]), widen(draft, sizes[1])
    wide[0].tokenizer, wide[1].tokenizer = target.tokenizer, draft.tokenizer
    return wide


# ---------------------------------------------------------------------------------------------
# Taking turns

Way = Callable[[Sequence[Any]], list]


@dataclass
class Run:
    """What a way of decoding gave: a Row per prompt, or its tokens; and how fast, turn by turn."""

    results: list = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    peak_memory: float = 0.0  # GB

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.tokens) / sum(self.seconds)

    def spread(self) -> tuple[float, float]:
        """The quartiles of the turns' tokens per second."""
        rates = [n / s for n, s in zip(self.tokens, self.seconds, strict=True)]
        if len(rates) < 2:
            return rates[0], rates[0]
        low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
        return low, high


def take_turns(
    ways: Mapping[Any, Way],
    prompts: Sequence[Any],
    per_turn: int = 1,
    beside: Callable[[], None] = lambda: None,
) -> dict[Any, Run]:
    """Decode all prompts in each of the ways, `per_turn` of them at a time, one way after the other;
    each is warmed up with the first one. `beside` is called once a turn."""
    runs = {name: Run() for name in ways}
    for way in ways.values():
        way(prompts[:1])
    names = list(ways)
    for i, start in enumerate(range(0, len(prompts), per_turn)):
        beside()
        turn = prompts[start : start + per_turn]
        for name in names[i % len(names) :] + names[: i % len(names)]:
            mx.reset_peak_memory()
            began = time.perf_counter()
            results = ways[name](turn)
            run = runs[name]
            run.seconds.append(time.perf_counter() - began)
            run.tokens.append(sum(len(tokens_of(result)) for result in results))
            run.peak_memory = max(run.peak_memory, mx.get_peak_memory() / 1e9)
            run.results += results
    return runs


def tokens_of(result: Row | list[int]) -> list[int]:
    return result.generated if isinstance(result, Row) else result


def decoder(
    target: Any,
    drafter: Drafter | None,
    num_draft: int | str,
    batch_size: int = 1,
    make: Callable[[Any, Options], Row] = Row,
    **options,
) -> Way:
    """A way to decode, which keeps what it measures for `auto`; make: a row for a
    prompt."""
    settings = Options(num_draft=num_draft, **options)
    schedule: Schedule = AdaptiveSchedule(target.config.vocab_size)
    if not drafter or num_draft != "auto":
        schedule = FixedSchedule(int(num_draft) if drafter else 0)

    def run(prompts: Sequence[Any]) -> list[Row]:
        rows = [make(prompt, settings) for prompt in prompts]
        batch = Batch(target, drafter or Drafter(), settings, schedule)
        with wired_memory():
            list(decode(batch, Waiting(rows), batch_size))
        return rows

    return run


def total(rows: Sequence[Row]) -> Stats:
    """What decoding the rows took, added up."""
    return sum((row.stats for row in rows), Stats())


@contextmanager
def counted_synchronisations():
    """Counts in [0] how often the host waits for the device while steps go on."""
    count, array, evaluate = [0], np.array, mx.eval

    def counting_array(x, *args, **kwargs):
        count[0] += isinstance(x, mx.array)
        return array(x, *args, **kwargs)

    def counting_eval(*args):
        count[0] += 1
        return evaluate(*args)

    np.array, mx.eval = counting_array, counting_eval  # type: ignore[assignment]
    try:
        yield count
    finally:
        np.array, mx.eval = array, evaluate


def synchronisations_per_step(target: Model, drafter: Drafter, row: Row, num_draft: int) -> float:
    """Waits of the host in a row's steps. Reading the prompt, once per model, is not counted."""
    batch = Batch(target, drafter, row.options, FixedSchedule(num_draft))
    batch.admit([row])
    batch.advance()  # the first step reads the prompt for the draft model
    with counted_synchronisations() as count:
        while not row.finish_reason:
            batch.advance()
    return count[0] / max(1, row.stats.target_calls - 1)


# ---------------------------------------------------------------------------------------------
# Reports


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
