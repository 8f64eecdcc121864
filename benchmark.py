"""Measure speculative decoding on the embedded pair; the tables of the README come from here.

python benchmark.py rules    tokens per target call by acceptance rule and temperature
python benchmark.py delta    what delta > 0 gives, and what it costs in right answers
python benchmark.py batches  tokens per second by batch size
python benchmark.py lengths  tokens per second of num_draft 0 to 8 and auto on several workloads
python benchmark.py lookup   copying from the source on repairs, beside transformers
python benchmark.py quantization
                             right answers and acceptance by bits and group size
"""

import functools
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

import cli
from cache import DEAD, Cache
from decoder import load
from demo.tasks import KINDS, Example, held_out_example
from demo.widen import SHAPES, widen
from drafting import CombinedDrafter, InputDrafter, ModelDrafter
from main import demo_model
from model import T5
from options import Options
from quantization import BITS, MODES, Quantization
from rounds import Decoding, Row, decode, draft_length
from sampling import RULES, RowSeeds, Sampler

BATCH_SIZE = 32


class IndependentDraws:
    """What sampling would be if target and draft each drew on their own and a drafted token passed
    only when both drew the same: lossless, and accepts sum(p q) where the rules reach sum(min(p, q)).
    """

    def __init__(self, row_seeds: list[bytes], temp: float):
        self.propose = Sampler("token", row_seeds, temp=temp).propose
        self.accept = Sampler("coupled", row_seeds, temp=temp).accept


def examples(per_kind: int) -> list[Example]:
    """Held-out examples, as many of each kind."""
    rng = random.Random(0)
    return [held_out_example(rng, kind) for kind in KINDS for _ in range(per_kind)]


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


def tokens_per_call(rows: list) -> float:
    tokens = sum(len(row.from_draft) for row in rows)
    return tokens / sum(row.stats.target_calls for row in rows)


def acceptance(rows: list) -> float:
    return sum(row.stats.accepted for row in rows) / sum(row.stats.drafted for row in rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")


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
        rows = decode_all(*pair, sources, options)
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
    weights = tree_flatten(model.parameters())
    copy.load_weights([(name, through(name, weight)) for name, weight in weights])
    return copy


def compare_batches(
    target: T5, draft: T5, sources: list, sizes: tuple[str, str], num_draft: int
) -> None:
    """Tokens per second over whole runs, encoding included, against plain decoding one by one."""
    drafter = ModelDrafter(widen(draft, sizes[1]))
    target = widen(target, sizes[0])
    lines, first = [], None
    for batch_size, k in itertools.product((1, 2, 4, 8, 16), (0, num_draft)):
        options = Options(num_draft=k)
        list(decode(target, drafter, map(Row, sources[:batch_size]), options, batch_size))
        counted, began = Counted(target), time.perf_counter()
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


def compare_lengths(
    target: T5, draft: T5, tokenizer, per_kind: int, sizes: tuple[str, str]
) -> None:
    """Tokens per second of every num_draft against plain decoding, prompt by prompt side by side."""
    target, expensive = widen(target, sizes[0]), widen(draft, sizes[1])
    copying = InputDrafter(lambda token: tokenizer.id_to_token(token))
    workloads = {
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
        rates = {name: rate for name, (rate, _) in take_turns(ways, sources).items()}
        ratios = {setting: rate / rates[0] for setting, rate in rates.items()}
        best = max(range(9), key=ratios.get)
        cells = [f"{ratios[setting]:.2f}" for setting in settings[1:]]
        lines.append([name, *cells, f"{ratios['auto'] / ratios[best]:.2f} (of {best})"])
        print(*lines[-1], file=sys.stderr)
    table(["ratio to plain", *map(str, settings[1:]), "auto to best"], lines)


def decoder(target: T5, drafter, num_draft: int | str) -> Callable[[list[int]], Row]:
    """A function that decodes one source."""
    options = Options(num_draft=num_draft)
    length = draft_length(target, options)

    def run(source: list[int]) -> Row:
        (row,) = decode(target, drafter, [Row(source)], options, 1, length)
        return row

    return run


def take_turns(ways: dict, sources: Sequence[list[int]]) -> dict:
    """Tokens per second and the results of each way, a function of a source, taking turns at every
    prompt; each is warmed up with the first one."""
    seconds, tokens, results = Counter(), Counter(), {name: [] for name in ways}
    for way in ways.values():
        way(sources[0])
    names = list(ways)
    for i, source in enumerate(sources):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            result = ways[name](source)
            seconds[name] += time.perf_counter() - began
            tokens[name] += len(result.from_draft if isinstance(result, Row) else result)
            results[name].append(result)
    return {name: (tokens[name] / seconds[name], results[name]) for name in ways}


def widened_pair(sizes: Sequence[str]) -> tuple[T5, T5]:
    """The embedded pair in these sizes."""
    models = (load(demo_model(role))[0] for role in ("target", "draft"))
    return tuple(widen(model, size) for model, size in zip(models, sizes, strict=True))


def compare_lookup(tokenizer, per_kind: int, sizes: Sequence[str]) -> None:
    """Copying on repairs, with transformers' prompt lookup on the same weights and prompts."""
    from peers import Transformers

    target, _ = widened_pair(sizes)
    sources = [tokenizer.encode(e.prompt).ids for e in examples(per_kind) if e.kind == "repair"]
    copying = InputDrafter(tokenizer.id_to_token)
    ways = {"plain": decoder(target, None, 0)}
    for k in (4, 8, 12, 16, "auto"):
        ways[f"lookup, num_draft {k}"] = decoder(target, copying, k)
    with Transformers(functools.partial(widened_pair, sizes)) as transformers:
        ways["transformers, plain"] = transformers.generate
        for n in (5, 10):
            name = f"transformers, prompt lookup of {n}"
            ways[name] = functools.partial(transformers.generate, lookup=n)
        found = take_turns(ways, sources)
    rate_of_plain, plain = found["plain"]
    expected, lines = [row.tokens[1:] for row in plain], []
    for name, (rate, results) in found.items():
        rows = [result for result in results if isinstance(result, Row)]
        tokens = [row.tokens[1:] for row in rows] or results
        same = sum(a == b for a, b in zip(tokens, expected, strict=True))
        calls = f"{1 / tokens_per_call(rows):.2f}" if rows else ""
        ratio = f"{rate / rate_of_plain:.2f}"
        rounds = f"{rounds_rate(rows) / rounds_rate(plain):.2f}" if rows else ""
        lines.append([name, f"{rate:.1f}", ratio, rounds, calls, f"{same} of {len(sources)}"])
    header = [
        "decoding",
        "tokens/s",
        "ratio",
        "rounds alone",
        "target calls per token",
        "same text",
    ]
    table(header, lines)


def rounds_rate(rows: list[Row]) -> float:
    """Tokens per second of the rounds: without the encoder."""
    return sum(len(row.from_draft) for row in rows) / sum(row.stats.seconds for row in rows)


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
        self._model, self.config, self.start = model, model.config, model.start
        self.slots = self.dead = self.source = self.padding = 0

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: Cache) -> mx.array:
        logits = self._model.decode(tokens, positions, cache)
        slots = cache.position[:, : cache.cursor]
        self.slots, self.dead = self.slots + slots.size, self.dead + (slots == DEAD).sum()
        self.source, self.padding = (
            self.source + cache.mask.size,
            self.padding + (~cache.mask).sum(),
        )
        return logits


def main() -> None:
    parser = cli.Parser(prog="benchmark.py", description="Measure the embedded pair.")
    parser.add_argument(
        "what", choices=["rules", "delta", "batches", "lengths", "lookup", "quantization"]
    )
    parser.add_argument("--examples", type=int, default=300, help="of each kind (default: 300)")
    parser.add_argument("--num-draft", type=int, default=5)
    parser.add_argument(
        "--sizes",
        nargs=2,
        choices=SHAPES,
        default=("t5-large", "t5-small"),
        metavar=("TARGET", "DRAFT"),
        help=f"what batches widens the pair to: {', '.join(SHAPES)} (default: t5-large t5-small)",
    )
    args = parser.parse_args()
    target, tokenizer = load(demo_model("target"))
    draft, _ = load(demo_model("draft"))
    asked = examples(args.examples)
    sources = [tokenizer.encode(example.prompt).ids for example in asked]
    tokens = sum(map(len, sources)) / len(sources)
    print(f"{len(sources)} held-out prompts of {tokens:.0f} tokens, num_draft {args.num_draft}\n")
    if args.what == "rules":
        compare_rules(target, draft, sources, args.num_draft)
    elif args.what == "quantization":
        compare_quantizations(target, draft, tokenizer, asked, sources, args.num_draft)
    elif args.what == "lookup":
        compare_lookup(tokenizer, args.examples, args.sizes)
    elif args.what == "lengths":
        compare_lengths(target, draft, tokenizer, args.examples, args.sizes)
    elif args.what == "batches":
        compare_batches(target, draft, sources, args.sizes, args.num_draft)
    else:
        compare_deltas(target, draft, tokenizer, asked, sources, args.num_draft)


if __name__ == "__main__":
    cli.run(main)
