"""Ways of decoding, measured: they take turns, so that a slow moment of the machine slows all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decoder import Options, SpeculativeDecoder, Stats
from speculative.step.driver import Prompts
from speculative.step.row import Row

Way = Callable[[Sequence[str]], list[Row]]
"""Decodes prompts; returns a row for each."""


class Setting(NamedTuple):
    """One of our ways to decode."""

    drafter: str  # "": plain decoding
    num_draft: int | str
    batch_size: int

    def __str__(self) -> str:
        name = f"{self.drafter}, num_draft {self.num_draft}" if self.drafter else "plain"
        return name if self.batch_size == 1 else f"{name}, batch {self.batch_size}"


def decoder(target: Any, draft: Any | None = None) -> SpeculativeDecoder:
    """A decoder for models from `load`."""
    return SpeculativeDecoder(target, target.text.tokenizer, draft)


def rows_of(models: SpeculativeDecoder, prompts: Sequence[Any], options: Options) -> list[Row]:
    """The prompts as a decoder takes them, tokenized."""
    prompt_format = models.text.prompt_format()
    return [models.maker.row(prompt_format.prompt(prompt), options) for prompt in prompts]


def decoding(target: Any, draft: Any | None = None, batch_size: int = 1, **options) -> Way:
    """Our way with these options, `batch_size` prompts at a time. What it learns for `auto` stays its own."""
    models = decoder(target, draft)
    settings = Options(**options)

    def run(prompts: Sequence[str]) -> list[Row]:
        rows = rows_of(models, prompts, settings)
        with models.running(settings) as driver:
            source = Prompts(rows, lambda row: [row], len(rows))
            list(driver.decode(source, models.max_batch_size(batch_size)))
        return rows

    return run


@dataclass
class WayRun:
    """The results and times of a way of decoding, turn by turn."""

    rows: list[Row] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def take_turn(self, way: Way, prompts: Sequence[str]) -> None:
        began = time.perf_counter()
        rows = way(prompts)
        self.seconds.append(time.perf_counter() - began)
        self.tokens.append(sum(len(row.generated) for row in rows))
        self.rows += rows

    @property
    def rate(self) -> float:
        return sum(self.tokens) / sum(self.seconds)

    @property
    def stats(self) -> Stats:
        return sum((row.stats for row in self.rows), Stats())


def take_turns(
    ways: Mapping[Any, Way], prompts: Sequence[str], per_turn: int, beside: Callable[[], None]
) -> dict[Any, WayRun]:
    """Decode all prompts in each way, in turns of `per_turn` prompts, after a warm-up; `beside` is called once per turn."""
    runs = {name: WayRun() for name in ways}
    for way in ways.values():
        way(prompts[:1])
    names = list(ways)
    for i, start in enumerate(range(0, len(prompts), per_turn)):
        beside()
        for name in names[i % len(names) :] + names[: i % len(names)]:
            runs[name].take_turn(ways[name], prompts[start : start + per_turn])
    return runs
