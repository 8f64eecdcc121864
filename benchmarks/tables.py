"""The tables of docs/benchmarks.md on the embedded pairs, but for that of speed: what rules, batches and
lengths give, and what mlx-lm does. benchmark.py prints them."""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from benchmarks import causal
from benchmarks.measure import (
    decoder,
    examples,
    table,
    take_turns,
    tokens_of,
    total,
    widened_pair,
)
from decoder import Batch, load
from demo.pair import demo_model
from demo.widen import widen
from families.causal_loading import encode_prompt
from model import T5, T5Cache
from speculative.batch import decode
from speculative.cache import MASKED
from speculative.drafting import CombinedDrafter, Drafter, ModelDrafter, PromptLookup
from speculative.options import MAX_TOKENS, RULES, Options
from speculative.row import Row, Waiting
from speculative.sampling import RowSeeds, Sampler
from speculative.schedule import FixedSchedule

# Name: how many examples of each kind of task it takes.
TABLES = {
    "rules": 300,
    "batches": 12,
    "lengths": 20,
    "lookup": 16,
    "causal": 8,
}
BATCH_SIZE = 32
NUM_DRAFT = 5


class IndependentDraws(Batch):
    """What sampling would be if target and draft each drew on their own and a drafted token passed
    only when both drew the same: lossless, and accepts sum(p q) where the rules reach sum(min(p, q)).
    """

    def _set_sampler(self) -> None:
        size = self.target.config.vocab_size
        self.sampler = Sampler(self.rows, "coupled", size)
        self.sampler.propose = Sampler(self.rows, "token", size).propose  # type: ignore


def decode_all(
    target: T5, draft: T5, prompts: Sequence[list[int]], options: Options, kind: type = Batch
) -> list[Row]:
    """The decoded rows of all prompts."""
    seed = RowSeeds(options.seed)
    rows = [Row(prompt, options, seed(prompt)) for prompt in prompts]
    batch = kind(target, ModelDrafter(draft), options, FixedSchedule(int(options.num_draft)))
    list(decode(batch, Waiting(rows), BATCH_SIZE))
    return rows


def compare_rules(
    target: Any,
    draft: Any,
    prompts: list,
    num_draft: int,
    others: Mapping[str, Callable[[float], float]] = MappingProxyType({}),
) -> None:
    """Tokens per target call by temperature, under our rules and what others have."""
    temps = (0.3, 0.7, 1.0, 1.5, 2.0)
    lines = []
    for rule in (*RULES, "independent draws"):
        cells = [rule]
        for temp in temps:
            known = rule if rule in RULES else None
            options = Options(num_draft=num_draft, temp=temp, acceptance=known, max_tokens=64)
            kind = Batch if known else IndependentDraws
            rows = decode_all(target, draft, prompts, options, kind)
            cells.append(f"{total(rows).tokens_per_call:.2f}")
        lines.append(cells)
    for name, tokens_per_call in others.items():
        lines.append([name, *(f"{tokens_per_call(temp):.2f}" for temp in temps)])
    table(["rule", *(f"temp {temp}" for temp in temps)], lines)


def compare_batches(
    target: T5, draft: T5, prompts: list, sizes: Sequence[str], num_draft: int
) -> None:
    """Tokens per second over whole runs, encoding included, against plain decoding one by one."""
    drafter = ModelDrafter(widen(draft, sizes[1]))
    target = widen(target, sizes[0])
    lines, first = [], None
    for batch_size, k in itertools.product((1, 2, 4, 8, 16), (0, num_draft)):
        decoder(target, drafter, k, batch_size)(prompts[:batch_size])  # warms up
        counted: Any = Counted(target)  # in the place of a T5
        began = time.perf_counter()
        stats = total(decoder(counted, drafter, k, batch_size)(prompts))
        rate = stats.tokens / (time.perf_counter() - began)
        first = first or rate
        lines.append(
            [
                str(batch_size),
                f"num_draft {k}" if k else "plain",
                f"{rate:.1f}",
                f"{rate / first:.2f}",
                f"{stats.tokens_per_call:.2f}",
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
    lookup = PromptLookup(tokenizer.id_to_token)
    workloads: dict[str, tuple[str, Drafter]] = {
        "sentences, cheap draft": ("sentence", ModelDrafter(draft)),
        "sentences, dear draft": ("sentence", ModelDrafter(expensive)),
        "numbers, cheap draft": ("number", ModelDrafter(draft)),
        "numbers, dear draft": ("number", ModelDrafter(expensive)),
        "sentences, useless draft": ("sentence", ModelDrafter(useless(draft))),
        "repairs, lookup": ("repair", lookup),
        "sentences, lookup": ("sentence", lookup),
        "repairs, both": ("repair", CombinedDrafter(lookup, ModelDrafter(draft))),
    }
    settings = (*range(9), "auto")
    lines = []
    for name, (kind, drafter) in workloads.items():
        prompts = [tokenizer.encode(e.prompt).ids for e in examples(per_kind) if e.kind == kind]
        ways = {setting: decoder(target, drafter, setting) for setting in settings}
        rates = {setting: run.rate for setting, run in take_turns(ways, prompts).items()}
        ratios = {setting: rate / rates[0] for setting, rate in rates.items()}
        best = max(range(9), key=ratios.__getitem__)
        cells = [f"{ratios[setting]:.2f}" for setting in settings[1:]]
        lines.append([name, *cells, f"{ratios['auto'] / ratios[best]:.2f} (of {best})"])
        print(*lines[-1], file=sys.stderr)
    table(["ratio to plain", *map(str, settings[1:]), "auto to best"], lines)


def compare_lookup(tokenizer, per_kind: int, sizes: Sequence[str]) -> None:
    """Copying on repairs, with transformers' prompt lookup on the same weights and prompts."""
    from benchmarks.baselines import baselines

    target, _ = widened_pair(sizes)
    prompts = [tokenizer.encode(e.prompt).ids for e in examples(per_kind) if e.kind == "repair"]
    lookup = PromptLookup(tokenizer.id_to_token)
    ways = {"plain": decoder(target, None, 0)}
    for k in (4, 8, 12, 16, "auto"):
        ways[f"lookup, num_draft {k}"] = decoder(target, lookup, k)
    with baselines(sizes, MAX_TOKENS) as theirs:
        runs = take_turns(ways | theirs, prompts)
    plain = runs["plain"]
    steps = total(plain.results).tokens_per_second
    lines: list[list[str]] = []
    expected = [tokens_of(row) for row in plain.results]
    for name, run in runs.items():
        ours = isinstance(run.results[0], Row)
        same = sum(tokens_of(a) == b for a, b in zip(run.results, expected, strict=True))
        stats = total(run.results) if ours else None
        lines.append(
            [
                name,
                f"{run.rate:.1f}",
                f"{run.rate / plain.rate:.2f}",
                f"{stats.tokens_per_second / steps:.2f}" if stats else "",
                f"{1 / stats.tokens_per_call:.2f}" if stats else "",
                f"{same} of {len(prompts)}",
            ]
        )
    header = ["decoding", "tokens/s", "ratio", "steps alone", "calls per token", "same text"]
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
        self.start, self.prefix = model.start, model.prefix
        self.slots = self.dead = self.source = self.padding = 0

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: T5Cache) -> mx.array:
        logits = self._model.decode(tokens, positions, cache)
        slots = cache.position[:, : cache.cursor]
        self.slots, self.dead = self.slots + slots.size, self.dead + (slots == MASKED).sum()
        self.source, self.padding = (
            self.source + cache.mask.size,
            self.padding + (~cache.mask).sum(),
        )
        return logits


def compare_causal(per_kind: int, sizes: Sequence[str]) -> None:
    """The decoder-only pair beside mlx-lm: speed in these sizes, and acceptance when sampling, as they
    are, on more prompts."""

    def asked(model: Any, per_kind: int) -> list[list[int]]:
        prompts = [encode_prompt(model, example.prompt) for example in examples(per_kind)]
        tokens = sum(map(len, prompts)) / len(prompts)
        print(f"{len(prompts)} held-out prompts of {tokens:.0f} tokens\n", flush=True)
        return prompts

    pair = causal.widened_causal_pair(sizes)
    causal.compare_speed(*pair, asked(pair[0], per_kind))
    print(f"\nTokens per target call when sampling, {NUM_DRAFT} drafted; ", end="")
    pair = causal.widened_causal_pair(("demo", "demo"))
    prompts = asked(pair[0], 6 * per_kind)
    theirs = {"mlx-lm": causal.sampled_by_mlx_lm(*pair, prompts, NUM_DRAFT)}
    compare_rules(*pair, prompts, NUM_DRAFT, theirs)


def show(name: str, per_kind: int | None, sizes: Sequence[str]) -> None:
    """Print one of TABLES, from so many examples of each kind, the pair widened to `sizes` where
    time is measured."""
    per_kind = per_kind or TABLES[name]
    if name == "causal":
        return compare_causal(per_kind, sizes)
    target, tokenizer = load(demo_model("target"))
    draft, _ = load(demo_model("draft"))
    asked = examples(per_kind)
    prompts = [tokenizer.encode(example.prompt).ids for example in asked]
    tokens = sum(map(len, prompts)) / len(prompts)
    print(f"{len(prompts)} held-out prompts of {tokens:.0f} tokens\n")
    if name == "rules":
        compare_rules(target, draft, prompts, NUM_DRAFT)
    elif name == "batches":
        compare_batches(target, draft, prompts, sizes, NUM_DRAFT)
    elif name == "lengths":
        compare_lengths(target, draft, tokenizer, per_kind, sizes)
    else:
        compare_lookup(tokenizer, per_kind, sizes)
