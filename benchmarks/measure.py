"""Measuring for benchmark.py: ways of decoding take turns, so that a slow moment of the machine slows all of them."""

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from decoder import Options, SpeculativeDecoder, Stats, load
from demo.pair import DEMO, default_dtype, demo_model
from demo.widen import CAUSAL_SHAPES, widen
from speculative.driver import Prompts
from speculative.row import Row

Way = Callable[[Sequence[str]], list]
"""Decodes prompts; returns a Row for each, or its tokens."""
TokenPrompts = Sequence[list[int]]
OtherWay = Callable[[TokenPrompts], list[list[int]]]
"""Another library's way: tokens of prompts -> tokens of their texts."""


def widened_pair(sizes: Sequence[str]) -> tuple[Any, Any]:
    """The embedded pair widened to these sizes, in the type that people decode in on this device."""
    return widened(sizes[0]), widened(sizes[1], "draft")


def widened(size: str, role: str = "target") -> Any:
    """One of the pair, as `load` returns models."""
    causal = size in CAUSAL_SHAPES
    small, _ = load(DEMO / f"causal-{role}" if causal else demo_model(role))
    small.set_dtype(getattr(mx, default_dtype()))
    wide = widen(small, size)
    wide.text = small.text
    return wide


def decoder(target: Any, draft: Any | None = None) -> SpeculativeDecoder:
    """A decoder for models from `load`."""
    return SpeculativeDecoder(target, target.text.tokenizer, draft)


def decoding(target: Any, draft: Any | None = None, batch_size: int = 1, **options) -> Way:
    """Our way with these options, `batch_size` prompts at a time. What it learns for `auto` stays its own."""
    models = decoder(target, draft)
    settings = Options(**options)
    prompt_format = models.text.prompt_format()

    def run(prompts: Sequence[str]) -> list[Row]:
        rows = [models.maker.row(prompt_format.prompt(prompt), settings) for prompt in prompts]
        with models.running(settings) as driver:
            source = Prompts(rows, lambda row: [row], len(rows))
            list(driver.decode(source, models.max_batch_size(batch_size)))
        return rows

    return run


def until_end(tokens: Iterable[int], ends: Container[int]) -> list[int]:
    """The tokens of a text, including its end token."""
    text = []
    for token in tokens:
        text.append(token)
        if token in ends:
            break
    return text


@dataclass
class WayRun:
    """The results and times of a way of decoding, turn by turn."""

    rows: list[Row] = field(default_factory=list)  # only for our own ways
    texts: list[list[int]] = field(default_factory=list)  # the tokens of each prompt's text
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, results: Sequence[Row | list[int]], seconds: float) -> None:
        """Add a turn."""
        texts = [result.generated if isinstance(result, Row) else result for result in results]
        self.rows += [result for result in results if isinstance(result, Row)]
        self.texts += texts
        self.seconds.append(seconds)
        self.tokens.append(sum(map(len, texts)))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def quartiles(self) -> list[float]:
        """The lower and upper quartile of the turns' tokens per second."""
        return np.quantile(np.divide(self.tokens, self.seconds), (0.25, 0.75)).tolist()

    @property
    def stats(self) -> Stats:
        """The statistics of all rows together."""
        return sum((row.stats for row in self.rows), Stats())


def take_turns(
    ways: Mapping[Any, Way],
    prompts: Sequence[str],
    per_turn: int,
    beside: Callable[[], None],
    rounds: int = 1,
    pause: float = 0.0,
) -> dict[Any, WayRun]:
    """Decode all prompts in each way, in turns of `per_turn` prompts, after a warm-up; `beside` is called once per turn.
    pause: seconds before a turn, longer than a library's threads spin when its work has ended (Intel's OpenMP: 0.2 s)."""
    runs = {name: WayRun() for name in ways}
    for way in ways.values():
        way(prompts[:1])
    names = list(ways)
    starts = [*range(0, len(prompts), per_turn)] * rounds
    for i, start in enumerate(starts):
        beside()
        for name in names[i % len(names) :] + names[: i % len(names)]:
            time.sleep(pause)
            began = time.perf_counter()
            results = ways[name](prompts[start : start + per_turn])
            runs[name].add(results, time.perf_counter() - began)
    return runs
