"""Instruments of benchmark.py: the machine's limits, a model's costs, and ways of decoding that take
turns, so that what slows the machine down slows all of them down."""

import functools
import os
import platform
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

import blas
from decoder import Batch, decode, load
from demo.pair import demo_model
from demo.tasks import KINDS, Example, held_out_example
from demo.widen import widen
from model import T5
from speculative.drafting import Drafter, ModelDrafter
from speculative.options import Options
from speculative.row import Row, Stats, Waiting
from speculative.sampling import Greedy
from speculative.schedule import AdaptiveSchedule, FixedSchedule, Plan, Schedule

# ---------------------------------------------------------------------------------------------
# What is decoded


def examples(per_kind: int) -> list[Example]:
    """Held-out examples, as many of each kind."""
    rng = random.Random(0)
    return [held_out_example(rng, kind) for kind in KINDS for _ in range(per_kind)]


def widened_pair(sizes: Sequence[str]) -> tuple[T5, T5]:
    """The embedded pair in these sizes, each with its tokenizer."""
    target, draft = (load(demo_model(role))[0] for role in ("target", "draft"))
    wide = widen(target, sizes[0]), widen(draft, sizes[1])
    wide[0].tokenizer, wide[1].tokenizer = target.tokenizer, draft.tokenizer
    return wide


# ---------------------------------------------------------------------------------------------
# Taking turns

Way = Callable[[Sequence[list[int]]], list]


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
    prompts: Sequence[list[int]],
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
    target: T5, drafter: Drafter | None, num_draft: int | str, batch_size: int = 1, **options
) -> Way:
    """A way to decode, which keeps what it measures for `auto`."""
    settings = Options(num_draft=num_draft, **options)
    schedule: Schedule = AdaptiveSchedule(target.config.vocab_size)
    if not drafter or num_draft != "auto":
        schedule = FixedSchedule(int(num_draft) if drafter else 0)

    def run(prompts: Sequence[list[int]]) -> list[Row]:
        rows = [Row(prompt, settings) for prompt in prompts]
        batch = Batch(target, drafter or Drafter(), settings, schedule)
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


def synchronisations_per_step(
    target: T5, drafter: Drafter, prompt: list[int], num_draft: int
) -> float:
    """Waits of the host in a row's steps. Reading the prompt, once per model, is not counted."""
    options = Options(num_draft=num_draft)
    row = Row(prompt, options)
    batch = Batch(target, drafter, options, FixedSchedule(num_draft))
    batch.admit([row])
    batch.advance()  # the first step reads the prompt for the draft model
    with counted_synchronisations() as count:
        while not row.finish_reason:
            batch.advance()
    return count[0] / max(1, row.stats.target_calls - 1)


# ---------------------------------------------------------------------------------------------
# Costs and limits


def step_bytes(model: T5) -> int:
    """Bytes of weights that decoding one token reads: the decoder's and the head's, without what
    projects the prompt, once per prompt."""
    weights = dict(tree_flatten(model.parameters()))
    head = "embedding." if model.config.tied_head else "head."
    read = [
        weight.nbytes
        for name, weight in weights.items()
        if name.startswith(head)
        or (
            (name.startswith("decoder.") and ".cross_attention.key" not in name)
            and ".cross_attention.value" not in name
        )
    ]
    return sum(read)


class Costs:
    """What a step costs at least on this machine, and what the models cost: in seconds, measured again
    and again while other things are.

    As in a step, the target checks several tokens when the draft model has just run, and the draft
    model drafts when the target has: what the one left in the caches is gone.
    """

    EARLY, LATE = 50, 500  # tokens into a text, to see what its length costs

    def __init__(self, target: T5, draft: T5 | None, prompt: list[int], widths: Sequence[int]):
        """widths: the numbers of tokens whose check is timed, 1 first."""
        at = target_calls(target, prompt, 16)
        step, *checks = [functools.partial(at, width) for width in widths]
        self._turn: list[tuple[object, Callable[[], float]]] = [("products", products(target))]
        for context in (self.EARLY, self.LATE):
            late = functools.partial(target_calls(target, prompt, context), 1)
            self._turn += [(None, late), (f"at {context}", late)]
        self._turn += [(None, step), (widths[0], step)]
        drafting = [("draft", draft_tokens(draft, prompt))] if draft else []
        for width, check in zip(widths[1:], checks, strict=True):
            self._turn += [*drafting, (width, check)]
        self._seconds: dict[object, list[float]] = defaultdict(list)
        self.measure()  # warms up
        self._seconds.clear()

    def measure(self) -> None:
        for name, probe in self._turn:
            self._seconds[name].append(probe())

    def __getitem__(self, name: object) -> float:
        """The median of the seconds of a target call by its number of tokens, of one "at 50" and "at
        500" tokens into the text, of a "draft" token, of the "products" of a step alone."""
        return statistics.median(self._seconds[name])


def products(model: T5) -> Callable[[], float]:
    """What takes the seconds of a chain of matrix-vector products over the weights that a step reads,
    each waiting for the one before, and nothing else."""
    c = model.config
    head = model.embedding.as_linear if c.tied_head else model.head
    matrices = []
    for layer in model.decoder.layers:
        for block in (layer.attention, layer.cross_attention, layer.feed_forward):
            unread = ("key", "value") if block is layer.cross_attention else ()
            matrices += [m for name, m in block.children().items() if name not in unread]
    widths = [_input_width(m) for m in matrices]

    def chain() -> float:
        began, one = time.perf_counter(), mx.ones((1, 1), model.decoder.norm.weight.dtype)
        for matrix, width in zip(matrices, widths, strict=True):
            one = mx.clip(matrix(mx.broadcast_to(one, (1, width)))[:, :1], -1, 1)
        mx.eval(head(mx.broadcast_to(one, (1, c.d_model))))
        return time.perf_counter() - began

    return chain


def _input_width(linear) -> int:
    if isinstance(linear, nn.QuantizedLinear):
        return linear.scales.shape[1] * linear.group_size
    return linear.weight.shape[1]


def target_calls(model: T5, prompt: list[int], context: int) -> Callable[[int], float]:
    """What takes the seconds of a decoder call on so many tokens after `context` others, as a step
    makes it: one call, and the wait for it."""
    cache = model.start(mx.array([prompt]))
    fill = np.arange(context, dtype=np.int32)[None]
    model.decode(mx.full((1, context), 7), fill, cache)
    cache.keep(np.array([context]))

    def call(width: int) -> float:
        began = time.perf_counter()
        positions = np.arange(context, context + width, dtype=np.int32)[None]
        logits = model.decode(mx.full((1, width), 7), positions, cache)
        mx.eval(mx.argmax(logits, axis=-1))
        cache.keep(np.array([0]))
        return time.perf_counter() - began

    return call


def draft_tokens(draft: T5, prompt: list[int], length: int = 5) -> Callable[[], float]:
    """What takes the seconds that the draft model needs for a token, one after the other."""
    drafter, row = ModelDrafter(draft), Row(prompt, Options(max_tokens=1 << 30))
    row.begin(draft.prefix(prompt), draft.config)
    drafter.admit([row], [0])

    def chain() -> float:
        row.tokens.append(9)
        plan = Plan([drafter.candidates([row.tokens])[0][0]], np.array([length]))
        began, prepared = time.perf_counter(), drafter.preparing_seconds
        mx.eval(drafter.draft([row.tokens], plan, Greedy()).tokens)
        seconds = time.perf_counter() - began - (drafter.preparing_seconds - prepared)
        drafter.keep(np.array([0]))
        return seconds / length

    return chain


# ---------------------------------------------------------------------------------------------
# Reports


def machine() -> dict[str, str | int]:
    """The hardware and software that a figure depends on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(mx.default_device()),
        "mlx": version("mlx"),
        "blas": (blas.loaded or Path(os.environ.get("LD_PRELOAD", ""))).name or "of MLX",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
    }


def _processor() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((ln.partition(":")[2].strip() for ln in lines if ln.startswith("model name")), "")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
