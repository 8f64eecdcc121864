"""What this machine allows, and what models cost on it."""

import contextlib
import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from benchmarks.machine import cores
from speculative.cached_model import CachedModel, Model
from speculative.draft import Plan
from speculative.drafting import ModelDrafter
from speculative.options import Options
from speculative.row import Row
from speculative.sampling import Greedy

TOKEN = 7  # of texts in which only the time matters


class Costs:
    """What a step costs at least on this machine, and what the models cost: in seconds, measured again
    and again while other things are.

    As in a step, the target checks several tokens when the draft model has just run, and the draft
    model drafts when the target has: what the one left in the caches is gone.
    """

    EARLY, LATE = 50, 500  # tokens into a text, to see what its length costs

    def __init__(
        self, target: Model, draft: Model | None, prompt: Sequence[int], widths: Sequence[int]
    ):
        """widths: the numbers of tokens whose check is timed, 1 first."""
        self.widths = tuple(widths)
        read, of_step = Read(), products(target, prompt)
        most = max(product.bytes for product in of_step)
        largest = [product for product in of_step if product.bytes == most]
        self.step_bytes = sum(product.bytes for product in of_step)
        self._bytes: dict[object, int] = {"read": read.bytes, "largest": most * len(largest)}
        self._bytes |= {"products": self.step_bytes, 1: self.step_bytes}
        self._turn: list[tuple[object, Callable[[], float]]] = [
            ("read", read),
            ("largest", chain(largest)),
            ("products", chain(of_step)),
        ]
        at = target_calls(target, prompt, 16)
        step, *checks = [functools.partial(at, width) for width in widths]
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
        500" tokens into the text, of a "draft" token, of a plain "read", and of the "largest" and all
        "products" of a step alone."""
        return statistics.median(self._seconds[name])

    def gb_per_second(self, name: object) -> float:
        """At which the memory is read by a plain "read", the "largest" product, the "products" of a
        step, a step (1)."""
        return self._bytes[name] / self[name] / 1e9


class Read:
    """Takes the seconds in which the device, or all cores, read an array far larger than their caches, and
    do no more with it than to look for the largest number."""

    def __init__(self, bytes: int = 1 << 30):
        self.bytes = bytes
        if mx.default_device() == mx.gpu:
            array = mx.ones(bytes // 4)
            mx.eval(array)
            self._read: Callable[[], object] = lambda: mx.eval(mx.max(array))
            return
        parts = np.array_split(np.ones(bytes // 8, np.int64), cores())
        threads = ThreadPoolExecutor(cores())
        self._read = lambda: list(threads.map(np.max, parts))

    def __call__(self) -> float:
        began = time.perf_counter()
        self._read()
        return time.perf_counter() - began


@dataclass(frozen=True)
class Product:
    """A product of rows [1, width] of this type with a matrix of the model."""

    multiply: Callable[[mx.array], mx.array]
    width: int
    dtype: mx.Dtype
    bytes: int  # of the matrix, and what else its layer reads


# The layers that multiply by a matrix, and what they are called by.
_MULTIPLIES = (
    (nn.Linear, "__call__"),
    (nn.QuantizedLinear, "__call__"),
    (nn.Embedding, "as_linear"),
    (nn.QuantizedEmbedding, "as_linear"),
)


def products(model: Model, prompt: Sequence[int]) -> list[Product]:
    """The matrix-vector products of decoding one token, in their order, as the model's layers are called for
    it: what else a step reads is little, but for mixtures of experts, whose experts are not among them."""
    cache, found = model.start(mx.array([prompt])), []

    def recorded(kind: type, name: str) -> Any:
        multiply = getattr(kind, name)

        def record(layer: nn.Module, x: mx.array) -> mx.array:
            size = sum(w.nbytes for w in dict(tree_flatten(layer.parameters())).values())
            of_layer = functools.partial(multiply, layer)
            found.append(Product(of_layer, x.shape[-1], x.dtype, size))
            return of_layer(x)

        return mock.patch.object(kind, name, record)

    with contextlib.ExitStack() as stack:
        for kind, name in _MULTIPLIES:
            stack.enter_context(recorded(kind, name))
        model.decode(mx.array([[TOKEN]]), np.array([cache.lengths], np.int32), cache)
    return found


def chain(products: Sequence[Product]) -> Callable[[], float]:
    """What takes the seconds of these products, each waiting for the one before, and nothing else."""

    def multiply() -> float:
        began, one = time.perf_counter(), mx.ones((1, 1))
        for product in products:
            row = mx.broadcast_to(one.astype(product.dtype), (1, product.width))
            one = mx.clip(product.multiply(row)[:, :1], -1, 1)
        mx.eval(one)
        return time.perf_counter() - began

    return multiply


# ---------------------------------------------------------------------------------------------
# What drafting could reach


def oracle_rate(plain: Sequence[Row], draft: Model, costs: Costs) -> float:
    """Tokens per second of texts that were decoded plainly, had an oracle known beforehand how many drafted
    tokens will pass, and drafted in every step as many as is best and no more; at the same costs, the
    reading of prompts included."""

    def step(drafted: int) -> float:
        widths = costs.widths
        checking = np.interp(drafted + 1, widths, [costs[width] for width in widths])
        return float(checking) + drafted * costs["draft"]

    by_length = [step(drafted) for drafted in range(max(costs.widths))]
    seconds = 0.0
    for row in plain:
        known, reading = known_to_draft(draft, row)
        drafting = reading + least_seconds(known, by_length)
        seconds += row.stats.encoding_seconds + min(drafting, len(known) * by_length[0])
    return sum(row.stats.tokens for row in plain) / seconds


def known_to_draft(draft: Model, row: Row) -> tuple[np.ndarray, float]:
    """For each token of a text whether the draft model would draft it after those before, which is all it
    takes to know how many pass from anywhere; and the seconds that reading the prompt takes."""
    model, text = CachedModel(draft), np.array([row.generated], np.int32)
    began = time.perf_counter()
    model.admit(1, [0], [row.prompt])
    model.wait()
    reading = time.perf_counter() - began
    read = np.minimum(text[:, :-1], draft.config.vocab_size - 1)
    logits = model([row.tokens[: row.prefix_size]], mx.array(read), np.array([read.shape[1]]))
    return (np.array(mx.argmax(logits, axis=-1)) == text)[0], reading


def least_seconds(known: np.ndarray, by_length: Sequence[float]) -> float:
    """For a text of which the draft model knows these tokens, where a step that drafts k takes
    by_length[k]: the best way through it, from behind."""
    least = [0.0] * (len(known) + 1)
    for at in range(len(known) - 1, -1, -1):
        ahead = [*known[at : at + len(by_length) - 1].tolist(), False]
        passing = min(ahead.index(False), len(known) - 1 - at)
        least[at] = min(by_length[k] + least[at + k + 1] for k in range(passing + 1))
    return least[0]


def target_calls(model: Model, prompt: Sequence[int], context: int) -> Callable[[int], float]:
    """What takes the seconds of a decoder call on so many tokens after `context` others, as a step
    makes it: one call, and the wait for it."""
    cache = model.start(mx.array([prompt]))

    def decode(tokens: int) -> mx.array:
        positions = cache.lengths[:, None] + np.arange(tokens)
        return model.decode(mx.full((1, tokens), TOKEN), positions.astype(np.int32), cache)

    decode(context)
    cache.keep(np.array([context]))

    def call(width: int) -> float:
        began = time.perf_counter()
        logits = decode(width)
        mx.eval(mx.argmax(logits, axis=-1))
        cache.keep(np.array([0]))
        return time.perf_counter() - began

    return call


def draft_tokens(draft: Model, prompt: Sequence[int], length: int = 5) -> Callable[[], float]:
    """What takes the seconds that the draft model needs for a token, one after the other."""
    drafter, row = ModelDrafter(draft), Row(list(prompt), Options(max_tokens=1 << 30))
    row.begin(draft.prefix(prompt), draft.config)
    drafter.admit([row], [0])

    def chain() -> float:
        row.tokens.append(TOKEN)
        plan = Plan([drafter.candidates([row.tokens])[0][0]], np.array([length]))
        began = time.perf_counter()
        drafted = drafter.draft([row.tokens], plan, Greedy())
        mx.eval(drafted.tokens)
        seconds = time.perf_counter() - began - drafted.preparing_seconds
        drafter.keep(np.array([0]))
        return seconds / length

    return chain
