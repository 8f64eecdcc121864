"""What this machine allows, and what models cost on it."""

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from machine import cores
from model import T5
from speculative.drafting import ModelDrafter
from speculative.options import Options
from speculative.row import Row
from speculative.sampling import Greedy
from speculative.schedule import Plan


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
        self.widths = tuple(widths)
        read, of_step = Read(), products(target)
        most = max(product.bytes for product in of_step)
        largest = [product for product in of_step if product.bytes == most]
        step_reads = step_bytes(target)
        self._bytes: dict[object, int] = {"read": read.bytes, "largest": most * len(largest)}
        self._bytes |= {"products": step_reads, 1: step_reads}
        dtype = target.decoder.norm.weight.dtype
        self._turn: list[tuple[object, Callable[[], float]]] = [
            ("read", read),
            ("largest", chain(largest, dtype)),
            ("products", chain(of_step, dtype)),
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
    """A product of a row [1, width] with a matrix of the model."""

    multiply: Callable[[mx.array], mx.array]
    width: int
    bytes: int


def products(model: T5) -> list[Product]:
    """The matrix-vector products over the weights that a step reads, the head's last."""
    matrices = []
    for layer in model.decoder.layers:
        for block in (layer.attention, layer.cross_attention, layer.feed_forward):
            unread = ("key", "value") if block is layer.cross_attention else ()
            matrices += [m for name, m in block.children().items() if name not in unread]
    found = [Product(m, _input_width(m), _bytes(m)) for m in matrices]
    c, embedding = model.config, model.embedding
    head = (embedding.as_linear, embedding) if c.tied_head else (model.head, model.head)
    return [*found, Product(head[0], c.d_model, _bytes(head[1]))]


def chain(products: Sequence[Product], dtype: mx.Dtype) -> Callable[[], float]:
    """What takes the seconds of these products, each waiting for the one before, and nothing else."""

    def multiply() -> float:
        began, one = time.perf_counter(), mx.ones((1, 1), dtype)
        for product in products:
            row = mx.broadcast_to(one, (1, product.width))
            one = mx.clip(product.multiply(row)[:, :1], -1, 1)
        mx.eval(one)
        return time.perf_counter() - began

    return multiply


def _bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in dict(tree_flatten(module.parameters())).values())


# ---------------------------------------------------------------------------------------------
# What drafting could reach


def oracle_rate(plain: Sequence[Row], draft: T5, costs: Costs) -> float:
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


def known_to_draft(draft: T5, row: Row) -> tuple[np.ndarray, float]:
    """For each token of a text whether the draft model would draft it after those before, which is all it
    takes to know how many pass from anywhere; and the seconds that reading the prompt takes."""
    began = time.perf_counter()
    cache = draft.start(mx.array([row.prompt]))
    cache.wait()
    reading = time.perf_counter() - began
    tokens = np.array(row.tokens, np.int32)
    positions = np.arange(len(tokens) - 1, dtype=np.int32)
    logits = draft.decode(mx.array(tokens[None, :-1]), positions[None], cache)
    drafted = np.array(mx.argmax(logits, axis=-1))[0]
    return drafted[row.prefix_size - 1 :] == tokens[row.prefix_size :], reading


def least_seconds(known: np.ndarray, by_length: Sequence[float]) -> float:
    """For a text of which the draft model knows these tokens, where a step that drafts k takes
    by_length[k]: the best way through it, from behind."""
    least = [0.0] * (len(known) + 1)
    for at in range(len(known) - 1, -1, -1):
        ahead = [*known[at : at + len(by_length) - 1].tolist(), False]
        passing = min(ahead.index(False), len(known) - 1 - at)
        least[at] = min(by_length[k] + least[at + k + 1] for k in range(passing + 1))
    return least[0]


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
