"""Instruments of benchmark.py: ways of decoding that take turns, so that what slows the machine down slows
all of them down."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoder import Options, SpeculativeDecoder, Stats, load
from demo.pair import DEMO, demo_model
from demo.widen import CAUSAL_SHAPES, widen, widen_llama
from families.causal import CausalModel
from families.causal_loading import encode_prompt
from speculative.batch import decode
from speculative.row import Row, Waiting
from speculative.sampling import RowSeeds


def widened_pair(sizes: Sequence[str]) -> tuple[Any, Any]:
    """The embedded pair of these sizes, with what `load` gives a model, in float32."""
    if sizes[0] in CAUSAL_SHAPES:
        return _widened_causal("causal-target", sizes[0]), _widened_causal("causal-draft", sizes[1])
    target, draft = (load(demo_model(role))[0] for role in ("target", "draft"))
    wide = widen(target, sizes[0]), widen(draft, sizes[1])
    wide[0].tokenizer, wide[1].tokenizer = target.tokenizer, draft.tokenizer
    return wide


def _widened_causal(role: str, size: str) -> CausalModel:
    small, tokenizer = load(DEMO / role)
    c, inner = small.config, widen_llama(small.model, size)
    wide = CausalModel(inner, c.eos_token_ids, c.pad_token_id, c.max_positions)
    wide.tokenizer, wide.chat = tokenizer, small.chat
    return wide


Way = Callable[[Sequence[str]], list]
"""Decodes prompts: a Row for each, or its tokens."""


def decoder(target: Any, draft: Any | None = None) -> SpeculativeDecoder:
    """What decodes with models that `load` has made, in the target's chat template if it has one."""
    has_chat = getattr(target, "chat", None) is not None
    encode = functools.partial(encode_prompt, target) if has_chat else None
    return SpeculativeDecoder(target, target.tokenizer, draft, encode)


def decoding(target: Any, draft: Any | None = None, batch_size: int = 1, **options) -> Way:
    """A way of ours, so many prompts side by side. What it learns for `auto` is its own."""
    own, settings = decoder(target, draft), Options(**options)

    def run(prompts: Sequence[str]) -> list[Row]:
        rows = [own.row(prompt, settings, RowSeeds(settings.seed)) for prompt in prompts]
        with own.running(settings) as batch:
            list(decode(batch, Waiting(rows), batch_size))
        return rows

    return run


@dataclass
class Run:
    """What a way of decoding gave, and how fast, turn by turn."""

    results: list = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

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

    @property
    def stats(self) -> Stats:
        """What decoding all rows took, of a way of ours."""
        return sum((row.stats for row in self.results), Stats())

    @property
    def texts(self) -> list[list[int]]:
        """The tokens of each prompt's text."""
        return [tokens_of(result) for result in self.results]

    def different(self, other: "Run") -> int:
        """How many texts are not the other's."""
        return sum(a != b for a, b in zip(self.texts, other.texts, strict=True))


def tokens_of(result: Row | list[int]) -> list[int]:
    return result.generated if isinstance(result, Row) else result


def take_turns(
    ways: Mapping[Any, Way],
    prompts: Sequence[str],
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
            began = time.perf_counter()
            results = ways[name](turn)
            run = runs[name]
            run.seconds.append(time.perf_counter() - began)
            run.tokens.append(sum(len(tokens_of(result)) for result in results))
            run.results += results
    return runs


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
