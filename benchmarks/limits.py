"""What the machine allows, what models cost on it, and what drafting could reach at these costs."""

import contextlib
import functools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from speculative.cached_model import Model
from speculative.row import Row, Stats

TOKEN = 7  # of texts in which only the time matters
CONTEXT = 16  # tokens of a text before those that are timed
DRAFTED = 5  # tokens of a draft whose time is taken
READ = 1 << 30  # bytes, far more than caches hold


class Costs:
    """What the models cost, and a plain read of the memory: in seconds, measured again and again while
    other things are.

    As in a step, the target checks several tokens when the draft model has just run, and the draft
    model drafts when the target has: what the one left in the caches is gone.
    """

    def __init__(
        self, target: Model, draft: Model | None, prompt: Sequence[int], widths: Sequence[int]
    ):
        """widths: the numbers of tokens whose check is timed, 1 first."""
        self.widths, self.step_bytes = tuple(widths), step_bytes(target, prompt)
        of_target = calls(target, prompt)
        drafting = {"draft": functools.partial(calls(draft, prompt), 1, DRAFTED)} if draft else {}
        # Name and probe; the first step follows the read, and does not count.
        self._turn: list[tuple[object, Callable[[], float]]] = [("read", plain_read(READ))]
        self._turn += [(name, functools.partial(of_target, 1)) for name in (None, 1)]
        for width in widths[1:]:
            self._turn += [*drafting.items(), (width, functools.partial(of_target, width))]
        self._seconds: dict[object, list[float]] = defaultdict(list)
        self.measure()  # warms up
        self._seconds.clear()

    def measure(self) -> None:
        for name, probe in self._turn:
            self._seconds[name].append(probe())

    def __getitem__(self, name: object) -> float:
        """The median of the seconds of a target call by its number of tokens, of a "draft" token, and of a
        plain "read"."""
        return statistics.median(self._seconds[name])

    def seconds(self, drafted: float, drafts: bool = True) -> float:
        """Of a step that checks so many drafted tokens; drafts: and a draft model has drafted them."""
        checking = np.interp(drafted + 1, self.widths, [self[width] for width in self.widths])
        return float(checking) + (drafted * self["draft"] if drafts and drafted else 0.0)

    def report(self) -> dict:
        """All of it: GB/s, and costs in plain steps."""
        step, read = self.step_bytes / self[1] / 1e9, READ / self["read"] / 1e9
        found = {
            "step_gb": self.step_bytes / 1e9,
            "step_ms": 1e3 * self[1],
            "step_gb_s": step,
            "read_gb_s": read,
            "share_of_read": step / read,
            "verify_cost": {width: self[width] / self[1] for width in self.widths},
        }
        return found | ({"draft_cost": self["draft"] / self[1]} if "draft" in self._seconds else {})

    def predicted(self, stats: Stats, drafts: bool) -> float:
        """The speed-up of steps that follows from the tokens per call and the costs."""
        drafted = stats.drafted / max(1, stats.target_calls)
        return stats.tokens_per_call * self[1] / self.seconds(drafted, drafts)


def plain_read(size: int) -> Callable[[], float]:
    """What takes the seconds in which the device, or all cores, read an array of so many bytes, and do no
    more with it than to look for the largest number."""
    if mx.default_device() == mx.gpu:
        array = mx.ones(size // 4)
        mx.eval(array)
        return _timed(lambda: mx.eval(mx.max(array)))
    cores = os.cpu_count() or 1
    threads, parts = ThreadPoolExecutor(cores), np.array_split(np.ones(size // 4, np.int32), cores)
    return _timed(lambda: list(threads.map(np.max, parts)))


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def probe() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return probe


# The layers that multiply by a matrix, and what they are called by.
_MULTIPLIES = (
    (nn.Linear, "__call__"),
    (nn.QuantizedLinear, "__call__"),
    (nn.Embedding, "as_linear"),
    (nn.QuantizedEmbedding, "as_linear"),
)


def step_bytes(model: Model, prompt: Sequence[int]) -> int:
    """The bytes of the matrices that decoding one token multiplies by, as the model's layers are called for
    it: what else a step reads is little, but for mixtures of experts, whose experts are not among them."""
    cache = model.start(mx.array([prompt]))
    found: list[int] = []

    def recorded(multiply: Callable) -> Callable:
        def record(layer: nn.Module, x: mx.array) -> mx.array:
            found.extend(w.nbytes for w in dict(tree_flatten(layer.parameters())).values())
            return multiply(layer, x)

        return record

    with contextlib.ExitStack() as stack:
        for kind, name in _MULTIPLIES:
            stack.enter_context(mock.patch.object(kind, name, recorded(getattr(kind, name))))
        model.decode(mx.array([[TOKEN]]), np.array([cache.lengths], np.int32), cache)
    return sum(found)


def calls(model: Model, prompt: Sequence[int]) -> Callable[..., float]:
    """What takes the seconds of a decoder call on `width` tokens of a text, as a step makes it; or of each
    of `chained` calls on what the one before has found."""
    cache = model.start(mx.array([prompt]))

    def decode(tokens: mx.array, after: int) -> mx.array:
        positions = cache.lengths[:, None] + after + np.arange(tokens.shape[1])
        return mx.argmax(model.decode(tokens, positions.astype(np.int32), cache), axis=-1)

    decode(mx.full((1, CONTEXT), TOKEN), 0)
    cache.keep(np.array([CONTEXT]))

    def call(width: int, chained: int = 1) -> float:
        began, tokens = time.perf_counter(), mx.full((1, width), TOKEN)
        for i in range(chained):
            tokens = decode(tokens, i * width)
        mx.eval(tokens)
        cache.keep(np.array([0]))
        return (time.perf_counter() - began) / chained

    return call


# ---------------------------------------------------------------------------------------------
# What drafting could reach


def oracle_rate(plain: Sequence[Row], draft: Model, costs: Costs) -> float:
    """Tokens per second of texts that were decoded plainly, had an oracle known beforehand how many drafted
    tokens will pass, and drafted in every step as many as is best and no more; at the same costs, the
    reading of prompts included."""
    by_length = [costs.seconds(drafted) for drafted in range(max(costs.widths))]
    seconds = 0.0
    for row in plain:
        known, reading = known_to_draft(draft, row)
        drafting = reading + least_seconds(known, by_length)
        seconds += row.stats.encoding_seconds + min(drafting, len(known) * by_length[0])
    return sum(row.stats.tokens for row in plain) / seconds


def known_to_draft(draft: Model, row: Row) -> tuple[np.ndarray, float]:
    """For each token of a text whether the draft model would draft it after those before, which is all it
    takes to know how many pass from anywhere; and the seconds that reading the prompt takes."""
    began = time.perf_counter()
    cache = draft.start(mx.array([row.prompt]))
    cache.wait()
    reading = time.perf_counter() - began
    first, text = int(cache.lengths[0]), np.array(row.generated)
    read = np.minimum([row.tokens[first:-1]], draft.config.vocab_size - 1).astype(np.int32)
    positions = np.arange(first, len(row.tokens) - 1, dtype=np.int32)[None]
    logits = draft.decode(mx.array(read), positions, cache)
    return np.array(mx.argmax(logits[0], axis=-1))[-len(text) :] == text, reading


def least_seconds(known: np.ndarray, by_length: Sequence[float]) -> float:
    """For a text of which the draft model knows these tokens, where a step that drafts k takes
    by_length[k]: the best way through it, from behind."""
    least = [0.0] * (len(known) + 1)
    for at in range(len(known) - 1, -1, -1):
        ahead = [*known[at : at + len(by_length) - 1].tolist(), False]
        passing = min(ahead.index(False), len(known) - 1 - at)
        least[at] = min(by_length[k] + least[at + k + 1] for k in range(passing + 1))
    return least[0]
