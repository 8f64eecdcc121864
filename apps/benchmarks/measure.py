"""Measuring for benchmark.py, and its report: the machine, the models, and the figures of each way. ways of decoding take turns, so that a slow moment of the machine slows all of them.
The most that drafting could gain: an oracle that knows how many drafted tokens will be accepted."""

import os
import platform
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from decoder import Options, SpeculativeDecoder, Stats, load
from demo.pair import CAUSAL_SHAPES, DEMO, default_dtype, demo_model, widen
from speculative.common import blas
from speculative.models.causal import CausalModel
from speculative.models.contract import Model
from speculative.models.ram import installed
from speculative.step.driver import Prompts
from speculative.step.row import Row
from speculative.step.timing import CallTimes

PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "tokenizers")
# Column -> digits. "low", "high": quartiles of the turns. "ratio": to plain decoding with the first batch size; "steps": the
# same without the time for reading prompts. "of oracle": share of the oracle's speed.
COLUMNS = {"tokens/s": 1, "low": 1, "high": 1, "ratio": 2, "steps": 2, "of oracle": 2}
COLUMNS |= {"acceptance": 2, "tokens per call": 2}

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


def mlx_lm_ways(
    target: CausalModel,
    draft: CausalModel,
    max_tokens: int,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
) -> dict[str, OtherWay]:
    """Name -> a way of mlx-lm to decode with a pair of its models; lengths: of drafts."""
    from mlx_lm.generate import batch_generate, generate_step, speculative_generate_step
    from mlx_lm.utils import load_tokenizer

    ends = target.config.eos_token_ids
    tokenizer = load_tokenizer(DEMO / "causal-target")

    def one_by_one(prompts: TokenPrompts, step: Callable, **settings) -> list[list[int]]:
        texts = []
        for prompt in prompts:
            steps = step(mx.array(prompt), target.model, max_tokens=max_tokens, **settings)
            texts.append(until_end((int(token) for token, *_ in steps), ends))
        return texts

    def batch(prompts: TokenPrompts, size: int) -> list[list[int]]:
        settings: Any = dict(completion_batch_size=size, prefill_batch_size=size)
        settings |= dict(max_tokens=max_tokens, return_token_ids=True)
        response: Any = batch_generate(target.model, tokenizer, list(prompts), **settings)
        # mlx-lm leaves out the end token
        return [[*tokens, ends[0]][:max_tokens] for tokens in response.token_ids]

    ways: dict[str, OtherWay] = {"mlx-lm, generate_step": partial(one_by_one, step=generate_step)}
    drafting = partial(one_by_one, step=speculative_generate_step, draft_model=draft.model)
    for k in lengths:
        name = f"mlx-lm, speculative_generate_step, {k} drafted"
        ways[name] = partial(drafting, num_draft_tokens=k)
    for size in batch_sizes:
        if size > 1:
            ways[f"mlx-lm, batch_generate, batch {size}"] = partial(batch, size=size)
    return ways


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


def oracle_rate(plain: Sequence[Row], draft: Model, by_length: Sequence[float]) -> float:
    """Tokens per second if the oracle chose the best draft length in every step. plain: the same texts, decoded plainly;
    by_length[k]: the seconds of a step that drafts k tokens. Reading prompts is included."""
    seconds = 0.0
    for row in plain:
        matches, prefill_seconds = draft_matches(draft, row)
        drafted = prefill_seconds + min_seconds(matches, by_length)
        seconds += row.stats.encoding_seconds + min(drafted, len(matches) * by_length[0])
    return sum(row.stats.tokens for row in plain) / seconds


def draft_matches(draft: Model, row: Row) -> tuple[np.ndarray, float]:
    """Whether the draft model would draft each token of a text, given those before; and the seconds of its prefill."""
    began = time.perf_counter()
    cache = draft.start([row.prompt])
    cache.wait()
    prefill_seconds = time.perf_counter() - began
    draft_tokens = np.array(mx.argmax(text_logits(draft, row, cache), axis=-1))
    return draft_tokens == np.array(row.generated), prefill_seconds


def text_logits(model: Model, row: Row, cache: Any = None) -> mx.array:
    """Logits [T, V] of the T tokens of a row's text, in one call. cache: of its prompt, after prefill."""
    cache = cache or model.start([row.prompt])
    T = len(row.generated)
    first = int(cache.lengths[0])
    inputs = np.minimum([row.tokens[first:-1]], model.config.vocab_size - 1).astype(np.int32)
    positions = np.arange(first, len(row.tokens) - 1, dtype=np.int32)[None]
    return model.decode(mx.array(inputs), positions, cache)[0, -T:]


def min_seconds(matches: np.ndarray, by_length: Sequence[float]) -> float:
    """The shortest time for a text, by dynamic programming from its end. Arguments: see `draft_matches`, `oracle_rate`."""
    fastest = [0.0] * (len(matches) + 1)
    for i in range(len(matches) - 1, -1, -1):
        ahead = [*matches[i : i + len(by_length) - 1].tolist(), False]
        accepted = min(ahead.index(False), len(matches) - 1 - i)
        fastest[i] = min(by_length[k] + fastest[i + k + 1] for k in range(accepted + 1))
    return fastest[0]


class Setting(NamedTuple):
    """One of our ways to decode."""

    drafter: str  # "": plain decoding
    num_draft: int | str
    batch_size: int

    def __str__(self) -> str:
        name = f"{self.drafter}, num_draft {self.num_draft}" if self.drafter else "plain"
        return name if self.batch_size == 1 else f"{name}, batch {self.batch_size}"


def describe() -> dict[str, str | int]:
    """The hardware and software that a figure depends on."""
    info = mx.device_info()
    return {
        "processor": info.get("device_name", platform.processor()),
        "cores": os.cpu_count() or 1,
        "memory": f"{installed() / 1e9:.0f} GB",
        "system": platform.platform(),
        "device": f"{mx.default_device()}, {info.get('architecture', '?')}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if find_spec(name.replace("-", "_"))},
        "blas": blas.loaded or Path(os.environ.get("LD_PRELOAD", "")).name or "of MLX",
        "threads": os.environ.get(f"{blas.loaded.upper()}_NUM_THREADS", "default"),
    }


def sizes(target: Any, draft: Any | None, tokens: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The prompts and the models' sizes; tokens: prompt -> its tokens."""
    length = sum(map(len, tokens.values())) / len(tokens)
    facts = {"prompts": f"{len(tokens)} of {length:.0f} tokens"}
    for role, model in {"target": target, "draft": draft}.items():
        if model:
            weights = dict(tree_flatten(model.parameters())).values()
            count = sum(w.size for w in weights)
            size = sum(w.nbytes for w in weights)
            types = ", ".join(sorted({str(w.dtype).removeprefix("mlx.core.") for w in weights}))
            facts[role] = f"{count / 1e6:.0f}M weights in {size / 1e9:.2f} GB, {types}"
    return facts


def costs(times: CallTimes) -> dict[str, Any]:
    """Print the costs of calls in plain steps, and return them."""
    step = times[1]
    costs: dict[str, Any] = {"step_ms": 1e3 * step}
    costs["verify_cost"] = {width: times[width] / step for width in times.widths}
    verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in costs["verify_cost"].items())
    print(
        f"A step takes {costs['step_ms']:.1f} ms. A target call by its tokens, in steps: {verify}."
    )
    if times.has_draft:
        costs["draft_cost"] = times["draft"] / step
        print(f"A token of the draft model costs {costs['draft_cost']:.3f} steps.")
    print()
    return costs


def compare(runs: Mapping[Any, WayRun], oracle: float | None) -> dict[str, Any]:
    """Print the table of all ways, the first of which is plain decoding; return the figures as data."""
    (first, plain), *_ = runs.items()
    lines = {str(name): figures(name, run, plain, oracle) for name, run in runs.items()}
    data = [{"decoding": name} | line for name, line in lines.items()]
    if oracle:
        best = {"tokens/s": oracle, "ratio": oracle / plain.rate}
        lines = {"an oracle, one by one": best} | lines
    table(lines)
    different = {
        str(name): sum(a != b for a, b in zip(run.texts, plain.texts, strict=True))
        for name, run in runs.items()
        if run.texts != plain.texts
    }
    print(f"\nTexts other than those of {first}: {different or 'none'}.")
    return {"runs": data, "other texts": different}


def figures(
    name: Setting | str, run: WayRun, plain: WayRun, oracle: float | None
) -> dict[str, float]:
    """Column -> figure of a way; figures of steps only for our own ways."""
    low, high = run.quartiles
    line = {"tokens/s": run.rate, "low": low, "high": high, "ratio": run.rate / plain.rate}
    if isinstance(name, str):
        return line
    stats = run.stats
    line["steps"] = stats.tokens_per_second / plain.stats.tokens_per_second
    line["tokens per call"] = stats.tokens_per_call
    if name.drafter:
        line["acceptance"] = stats.acceptance
    if name.drafter == "model" and name.batch_size == 1 and oracle:
        line["of oracle"] = run.rate / oracle
    return line


def table(lines: Mapping[str, Mapping[str, float]]) -> None:
    """Print a Markdown table of ways and their figures."""
    rows = [["decoding", *COLUMNS]]
    for name, line in lines.items():
        rows.append([name, *(f"{line[c]:.{n}f}" if c in line else "" for c, n in COLUMNS.items())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
