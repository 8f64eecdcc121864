"""The memory speed of the machine, the costs of model calls on it, and the most that drafting could gain."""

import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from speculative.model import Model
from speculative.row import Row, Stats
from speculative.timing import call_timer

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17)  # tokens per target call that are timed
DRAFTED = 5  # tokens per timed draft
READ = 1 << 30  # bytes, far more than the caches hold


class CallTimes:
    """The seconds of model calls and of a plain read of memory. Target and draft model take turns, as in a
    step, so that neither finds its own data in the caches."""

    def __init__(self, target: Model, draft: Model | None, prompt: Sequence[int]):
        self.step_bytes = step_bytes(target)
        self._read = plain_read(READ)
        self._target = call_timer(target, prompt)
        self._draft = call_timer(draft, prompt) if draft else None
        self._seconds: dict[object, list[float]] = defaultdict(list)
        self.measure()  # warms up
        self._seconds.clear()

    def measure(self) -> None:
        self._seconds["read"].append(self._read())
        self._target(1)  # not counted: it follows the read
        self._seconds[1].append(self._target(1))
        for width in WIDTHS[1:]:
            if self._draft:
                self._seconds["draft"].append(self._draft(1, DRAFTED))
            self._seconds[width].append(self._target(width))

    def __getitem__(self, name: object) -> float:
        """Median seconds of a target call on `name` tokens or of a "draft" token; the fewest of a "read", a limit."""
        if name == "read":
            return min(self._seconds[name])
        return statistics.median(self._seconds[name])

    def seconds(self, drafted: float, drafts: bool = True) -> float:
        """Seconds of a step that verifies `drafted` tokens; drafts: including the draft model's time."""
        checking = np.interp(drafted + 1, WIDTHS, [self[width] for width in WIDTHS])
        return float(checking) + (drafted * self["draft"] if drafts and drafted else 0.0)

    def report(self) -> dict:
        """Print everything and return it as data: GB/s, and costs in plain steps."""
        step = self[1]
        costs: dict[str, Any] = {"step_gb": self.step_bytes / 1e9, "step_ms": 1e3 * step}
        costs["step_gb_s"] = self.step_bytes / 1e9 / step
        costs["read_gb_s"] = READ / self["read"] / 1e9
        costs["share_of_read"] = costs["step_gb_s"] / costs["read_gb_s"]
        costs["verify_cost"] = {width: self[width] / step for width in WIDTHS}
        print(
            "A step reads {step_gb:.2f} GB of weights in {step_ms:.1f} ms: {step_gb_s:.1f} GB/s, {share_of_read:.0%} of the "
            "{read_gb_s:.1f} of the fastest plain read of the memory.".format(**costs)
        )
        verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in costs["verify_cost"].items())
        print(f"A target call by number of tokens, in steps: {verify}.")
        if self._draft:
            costs["draft_cost"] = self["draft"] / step
            print(f"A token of the draft model costs {costs['draft_cost']:.3f} steps.")
        print()
        return costs

    def predicted(self, stats: Stats, drafts: bool) -> float:
        """The speed-up of steps, predicted from tokens per call and the calls' times."""
        drafted = stats.draft_tokens / max(1, stats.target_calls)
        return stats.tokens_per_call * self[1] / self.seconds(drafted, drafts)


def plain_read(size: int) -> Callable[[], float]:
    """A function that returns the seconds in which the device, or all cores, read an array of `size` bytes to find
    its largest number."""
    if mx.default_device() == mx.gpu:
        array = mx.ones(size // 4)
        mx.eval(array)
        return lambda: _seconds(lambda: mx.eval(mx.max(array)))
    cores = os.cpu_count() or 1
    threads = ThreadPoolExecutor(cores)
    parts = np.array_split(np.ones(size // 4, np.int32), cores)
    return lambda: _seconds(lambda: list(threads.map(np.max, parts)))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# Weights that decoding a token does not read, or only a row of.
_NOT_READ = re.compile(
    r"^encoder\.|cross_attention\.(key|value)\.|positions\.|relative_bias|source_embedding"
)


def step_bytes(model: Any) -> int:
    """Bytes of the weights that decoding a token reads: those of the decoder and its head, which may be the embedding. All
    experts of a mixture are counted."""
    weights = dict(tree_flatten(model.parameters()))
    has_head = any("head." in name for name in weights)
    not_read = [n for n in weights if _NOT_READ.search(n) or (has_head and "embed" in n)]
    return sum(weight.nbytes for name, weight in weights.items() if name not in not_read)


def oracle_rate(plain: Sequence[Row], draft: Model, times: CallTimes) -> float:
    """Tokens per second if an oracle that knows how many drafted tokens will be accepted chose the best draft length
    in every step. plain: the same texts, decoded plainly. Reading prompts is included."""
    by_length = [times.seconds(drafted) for drafted in range(max(WIDTHS))]
    seconds = 0.0
    for row in plain:
        matches, prefill_seconds = draft_matches(draft, row)
        drafted = prefill_seconds + min_seconds(matches, by_length)
        plain_seconds = len(matches) * by_length[0]
        seconds += row.stats.encoding_seconds + min(drafted, plain_seconds)
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
    """The shortest time for a text, by dynamic programming from its end. matches: whether the draft model would draft
    each token; by_length[k]: the seconds of a step that drafts k tokens."""
    fastest = [0.0] * (len(matches) + 1)
    for i in range(len(matches) - 1, -1, -1):
        ahead = [*matches[i : i + len(by_length) - 1].tolist(), False]
        accepted = min(ahead.index(False), len(matches) - 1 - i)
        fastest[i] = min(by_length[k] + fastest[i + k + 1] for k in range(accepted + 1))
    return fastest[0]
