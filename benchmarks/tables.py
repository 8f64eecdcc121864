"""The README's tables on the embedded pair, but for that of speed: what rules, options and formats
give and cost. benchmark.py prints them."""

import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from benchmarks.measure import (
    acceptance,
    decoder,
    examples,
    rounds_rate,
    table,
    take_turns,
    tokens_of,
    tokens_per_call,
    widened_pair,
)
from checkpoints.quantization import BITS, MODES, Quantization
from decoder import load
from demo.pair import demo_model
from demo.tasks import Example
from demo.widen import widen
from model import T5
from speculative.cache import MASKED, CrossCache
from speculative.drafting import CombinedDrafter, Drafter, InputDrafter, ModelDrafter
from speculative.options import Options
from speculative.rounds import Decoding, Row, decode
from speculative.sampling import RULES, RowSeeds, Sampler

# Name: how many examples of each kind of task it takes.
TABLES = {
    "rules": 300,
    "delta": 300,
    "quantization": 20,
    "batches": 12,
    "lengths": 20,
    "lookup": 16,
}
BATCH_SIZE = 32
NUM_DRAFT = 5


class IndependentDraws:
    """What sampling would be if target and draft each drew on their own and a drafted token passed
    only when both drew the same: lossless, and accepts sum(p q) where the rules reach sum(min(p, q)).
    """

    def __init__(self, row_seeds: list[bytes], temp: float):
        self.propose = Sampler("token", row_seeds, temp=temp).propose
        self.accept = Sampler("coupled", row_seeds, temp=temp).accept


def decode_all(
    target: T5,
    draft: T5,
    sources: Sequence[list[int]],
    options: Options,
    sampler: Callable | None = None,
) -> list[Row]:
    """The decoded rows of all sources; `sampler(row_seeds)` in place of the options' own."""
    seed, decoded = RowSeeds(options.seed), []
    for start in range(0, len(sources), BATCH_SIZE):
        rows = [Row(source, seed(source)) for source in sources[start : start + BATCH_SIZE]]
        decoding = Decoding(target, ModelDrafter(draft), rows, options)
        if sampler:
            decoding.sampler = sampler([row.seed for row in rows])
        while not decoding.finished:
            decoding.round()
        decoded += rows
    return decoded


def compare_rules(target: T5, draft: T5, sources: list, num_draft: int) -> None:
    temps = (0.3, 0.7, 1.0, 1.5, 2.0)
    lines = []
    for rule in (*RULES, "independent draws"):
        cells = [rule]
        for temp in temps:
            known = rule if rule in RULES else None
            options = Options(num_draft=num_draft, temp=temp, acceptance=known, max_tokens=64)
            draws = None if known else functools.partial(IndependentDraws, temp=temp)
            rows = decode_all(target, draft, sources, options, draws)
            cells.append(f"{tokens_per_call(rows):.2f}")
        lines.append(cells)
    table(["rule", *(f"temp {temp}" for temp in temps)], lines)


def compare_deltas(
    target: T5, draft: T5, tokenizer, asked: list[Example], sources: list, num_draft: int
) -> None:
    lines = []
    for temp, delta in itertools.product((0.0, 1.0), (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)):
        options = Options(num_draft=num_draft, temp=temp, delta=delta, acceptance="token")
        rows = decode_all(target, draft, sources, options)
        texts = [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in rows]
        right = sum(text == e.answer for text, e in zip(texts, asked, strict=True))
        lines.append(
            [
                f"{temp:g}",
                f"{delta:g}",
                f"{acceptance(rows):.2f}",
                f"{tokens_per_call(rows):.2f}",
                f"{100 * right / len(asked):.1f} %",
            ]
        )
    table(["temp", "delta", "acceptance", "tokens per target call", "exact match"], lines)


def compare_quantizations(
    target: T5, draft: T5, tokenizer, asked: list[Example], sources: list, num_draft: int
) -> None:
    """Both models quantized alike."""
    settings = [Quantization("affine", bits, group) for bits in BITS for group in (32, 64, 128)]
    settings += [Quantization(mode) for mode in MODES if mode != "affine"]
    options = Options(num_draft=num_draft)
    lines = []
    for setting in (None, *settings):
        pair = [rounded(model, setting) if setting else model for model in (target, draft)]
        rows = decode_all(pair[0], pair[1], sources, options)
        texts = [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in rows]
        right = sum(text == e.answer for text, e in zip(texts, asked, strict=True))
        name = f"{setting.mode}, {setting.bits} bits" if setting else "float32"
        line = [name, str(setting.group_size) if setting else ""]
        line += [f"{right / len(asked):.1%}", f"{acceptance(rows):.2f}"]
        line.append(f"{tokens_per_call(rows):.2f}")
        print(*line, file=sys.stderr)
        lines.append(line)
    table(["weights", "group", "exact match", "acceptance", "tokens per target call"], lines)


def rounded(model: T5, quantization: Quantization) -> T5:
    """`model` with the values that its quantized weights stand for, in float32: the same function, at
    the speed of float32. Rows that do not divide into groups are filled up with zeros."""

    def through(name: str, weight: mx.array) -> mx.array:
        missing = -weight.shape[-1] % quantization.group_size
        if not quantization.covers(name, (*weight.shape[:-1], weight.shape[-1] + missing)):
            return weight
        how = quantization.to_dict()
        packed = mx.quantize(mx.pad(weight, [(0, 0), (0, missing)]), **how)
        return mx.dequantize(*packed, **how).astype(mx.float32)[:, : weight.shape[1]]

    copy = T5(model.config)
    weights = dict(tree_flatten(model.parameters()))
    copy.load_weights([(name, through(name, weight)) for name, weight in weights.items()])
    return copy


def compare_batches(
    target: T5, draft: T5, sources: list, sizes: Sequence[str], num_draft: int
) -> None:
    """Tokens per second over whole runs, encoding included, against plain decoding one by one."""
    drafter = ModelDrafter(widen(draft, sizes[1]))
    target = widen(target, sizes[0])
    lines, first = [], None
    for batch_size, k in itertools.product((1, 2, 4, 8, 16), (0, num_draft)):
        options = Options(num_draft=k)
        list(decode(target, drafter, map(Row, sources[:batch_size]), options, batch_size))
        counted: Any = Counted(target)  # in the place of a T5
        began = time.perf_counter()
        rows = list(decode(counted, drafter, map(Row, sources), options, batch_size))
        seconds = time.perf_counter() - began
        rate = sum(len(row.from_draft) for row in rows) / seconds
        first = first or rate
        lines.append(
            [
                str(batch_size),
                f"num_draft {k}" if k else "plain",
                f"{rate:.1f}",
                f"{rate / first:.2f}",
                f"{tokens_per_call(rows):.2f}",
                f"{100 * counted.dead / counted.slots:.0f} %",
                f"{100 * counted.padding / counted.source:.0f} %",
            ]
        )
        print(*lines[-1], file=sys.stderr)
    header = ["batch", "decoding", "tokens/s", "ratio", "tokens per call", "dead slots", "padding"]
    table(header, lines)


def compare_lengths(target: T5, draft: T5, tokenizer, per_kind: int, sizes: Sequence[str]) -> None:
    """Tokens per second of every num_draft against plain decoding, prompt by prompt side by side."""
    target, expensive = widen(target, sizes[0]), widen(draft, sizes[1])
    copying = InputDrafter(tokenizer.id_to_token)
    workloads: dict[str, tuple[str, Drafter]] = {
        "sentences, cheap draft": ("sentence", ModelDrafter(draft)),
        "sentences, dear draft": ("sentence", ModelDrafter(expensive)),
        "numbers, cheap draft": ("number", ModelDrafter(draft)),
        "numbers, dear draft": ("number", ModelDrafter(expensive)),
        "sentences, useless draft": ("sentence", ModelDrafter(useless(draft))),
        "repairs, lookup": ("repair", copying),
        "sentences, lookup": ("sentence", copying),
        "repairs, both": ("repair", CombinedDrafter(copying, ModelDrafter(draft))),
    }
    settings = (*range(9), "auto")
    lines = []
    for name, (kind, drafter) in workloads.items():
        sources = [tokenizer.encode(e.prompt).ids for e in examples(per_kind) if e.kind == kind]
        ways = {setting: decoder(target, drafter, setting) for setting in settings}
        rates = {setting: run.rate for setting, run in take_turns(ways, sources).items()}
        ratios = {setting: rate / rates[0] for setting, rate in rates.items()}
        best = max(range(9), key=ratios.__getitem__)
        cells = [f"{ratios[setting]:.2f}" for setting in settings[1:]]
        lines.append([name, *cells, f"{ratios['auto'] / ratios[best]:.2f} (of {best})"])
        print(*lines[-1], file=sys.stderr)
    table(["ratio to plain", *map(str, settings[1:]), "auto to best"], lines)


def compare_lookup(tokenizer, per_kind: int, sizes: Sequence[str]) -> None:
    """Copying on repairs, with transformers' prompt lookup on the same weights and prompts."""
    from benchmarks.baselines import peers

    target, _ = widened_pair(sizes)
    sources = [tokenizer.encode(e.prompt).ids for e in examples(per_kind) if e.kind == "repair"]
    copying = InputDrafter(tokenizer.id_to_token)
    ways = {"plain": decoder(target, None, 0)}
    for k in (4, 8, 12, 16, "auto"):
        ways[f"lookup, num_draft {k}"] = decoder(target, copying, k)
    with peers(sizes, Options.max_tokens) as theirs:
        runs = take_turns(ways | theirs, sources)
    plain = runs["plain"]
    lines: list[list[str]] = []
    expected = [tokens_of(row) for row in plain.results]
    for name, run in runs.items():
        ours = isinstance(run.results[0], Row)
        same = sum(tokens_of(a) == b for a, b in zip(run.results, expected, strict=True))
        rounds = rounds_rate(run.results) / rounds_rate(plain.results) if ours else None
        lines.append(
            [
                name,
                f"{run.rate:.1f}",
                f"{run.rate / plain.rate:.2f}",
                f"{rounds:.2f}" if ours else "",
                f"{1 / tokens_per_call(run.results):.2f}" if ours else "",
                f"{same} of {len(sources)}",
            ]
        )
    header = ["decoding", "tokens/s", "ratio", "rounds alone", "calls per token", "same text"]
    table(header, lines)


def useless(draft: T5) -> T5:
    """A draft model that is hardly ever right: its embedding's rows are out of order."""
    shuffled = T5(draft.config)
    weights = dict(tree_flatten(draft.parameters()))
    weights["embedding.weight"] = weights["embedding.weight"][::-1]
    shuffled.load_weights(list(weights.items()))
    return shuffled


class Counted:
    """A model that counts what share of the slots and of the source that it attends to is dead or
    padding."""

    def __init__(self, model: T5):
        self._model, self.config = model, model.config
        self.start, self.agreed = model.start, model.agreed
        self.slots = self.dead = self.source = self.padding = 0

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        logits = self._model.decode(tokens, positions, cache)
        slots = cache.position[:, : cache.cursor]
        self.slots, self.dead = self.slots + slots.size, self.dead + (slots == MASKED).sum()
        self.source, self.padding = (
            self.source + cache.mask.size,
            self.padding + (~cache.mask).sum(),
        )
        return logits


def show(name: str, per_kind: int | None, sizes: Sequence[str]) -> None:
    """Print one of TABLES, from so many examples of each kind, the pair widened to `sizes` where
    time is measured."""
    per_kind = per_kind or TABLES[name]
    target, tokenizer = load(demo_model("target"))
    draft, _ = load(demo_model("draft"))
    asked = examples(per_kind)
    sources = [tokenizer.encode(example.prompt).ids for example in asked]
    tokens = sum(map(len, sources)) / len(sources)
    print(f"{len(sources)} held-out prompts of {tokens:.0f} tokens\n")
    if name == "rules":
        compare_rules(target, draft, sources, NUM_DRAFT)
    elif name == "delta":
        compare_deltas(target, draft, tokenizer, asked, sources, NUM_DRAFT)
    elif name == "quantization":
        compare_quantizations(target, draft, tokenizer, asked, sources, NUM_DRAFT)
    elif name == "batches":
        compare_batches(target, draft, sources, sizes, NUM_DRAFT)
    elif name == "lengths":
        compare_lengths(target, draft, tokenizer, per_kind, sizes)
    else:
        compare_lookup(tokenizer, per_kind, sizes)
