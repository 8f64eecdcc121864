"""Decoding next to other libraries and to an oracle: the tables of docs/benchmarks.md.

python -m docs.tools.baselines --kinds number sentence repair paragraph --examples 3 --drafter model both --num-draft 4 auto
python -m docs.tools.baselines --sizes llama-700m llama-60m --num-draft 2 4 auto --drafter model --batch-size 1 8

The demo models, with benchmark.py's flags for them: T5's beside transformers and CTranslate2, Llama's beside mlx-lm. Each way
decodes all prompts in one block, in two rounds.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import benchmark
from apps.benchmarks import machine, tables
from apps.benchmarks.measuring import Setting, Way, WayRun, decoder, rows_of
from apps.benchmarks.widening import CAUSAL_SHAPES
from apps.cli import cli
from decoder import Options
from docs.tools import oracle
from docs.tools.other_way import OtherWay
from speculative.common.errors import InputError
from speculative.step.row import Row
from speculative.step.timing import CallTimes

ROUNDS = 2
PAUSE = 1.0  # seconds before a block, longer than a library's threads spin when its work has ended (Intel's OpenMP: 0.2 s)


def parse_args() -> argparse.Namespace:
    args = benchmark.parse_args()
    if args.check or args.model or args.per_turn:
        raise InputError("--check, --model and --per-turn are benchmark.py's alone")
    args.sizes = args.sizes or benchmark.USUAL
    return args


def their_ways(
    args: argparse.Namespace, target: Any, draft: Any, processes: ExitStack
) -> dict[str, OtherWay]:
    """Name -> a way of another library to decode with the pair. processes: where its own end."""
    try:
        if args.sizes[0] in CAUSAL_SHAPES:
            lengths = [k for k in dict.fromkeys(args.num_draft) if isinstance(k, int)]
            library = import_module("docs.tools.mlx_lm_ways")
            return library.mlx_lm_ways(target, draft, args.max_tokens, args.batch_size, lengths)
        library = import_module("docs.tools.torch_ways")
        return library.ways(args.sizes, args.max_tokens, args.batch_size, processes)
    except ImportError as error:
        hint = "pip install -r requirements-dev.txt"
        raise InputError(f"this needs {error.name}: {hint}") from None


def in_blocks(
    ways: Mapping[Any, Way], prompts: list[str], beside: Callable[[], None]
) -> dict[Any, WayRun]:
    """Decode all prompts in each way, after a warm-up, with pauses: no program's threads spin while another's work. `beside` is
    called once per round."""
    runs = {name: WayRun() for name in ways}
    for way in ways.values():
        way(prompts[:1])
    names = list(ways)
    for i in range(ROUNDS):
        beside()
        for name in names[i % len(names) :] + names[: i % len(names)]:
            time.sleep(PAUSE)
            runs[name].take_turn(ways[name], prompts)
    return runs


def compare(
    args: argparse.Namespace,
    target: Any,
    draft: Any,
    prompts: list[str],
    theirs: Mapping[str, OtherWay],
) -> dict:
    """Print one table, of our ways and theirs, and how fast an oracle is; return it as data."""
    options = Options(**benchmark.common(args))
    tokens = [row.prompt for row in rows_of(decoder(target), prompts, options)]
    by_prompt = dict(zip(prompts, tokens, strict=True))
    facts = machine.describe() | machine.sizes(target, draft, tokens)
    print("\n".join(f"{key}: {value}" for key, value in facts.items()), end="\n\n", flush=True)

    def of_texts(way: OtherWay) -> Way:
        return lambda prompts: [Row([], tokens=t) for t in way([by_prompt[p] for p in prompts])]

    times = CallTimes(target, draft, tokens[0], benchmark.WIDTHS)
    ways: dict[Any, Way] = {**benchmark.our_ways(args, target, draft)}
    ways |= {name: of_texts(way) for name, way in theirs.items()}
    runs = in_blocks(ways, prompts, times.measure)
    report = facts | tables.costs(times) | tables.compare(runs)
    if args.batch_size[0] == 1:
        by_length = [times.step(drafted) for drafted in range(max(benchmark.WIDTHS))]
        report["oracle"] = of_oracle(runs, draft, by_length)
    return report


def of_oracle(
    runs: Mapping[Setting | str, WayRun], draft: Any, by_length: list[float]
) -> dict[str, float]:
    """Print and return the speed of an oracle, and which share of that the draft model's ways reach, one prompt at a time."""
    plain = next(iter(runs.values()))
    rate = oracle.oracle_rate(plain.rows, draft, by_length)
    shares = {
        str(name): run.rate / rate
        for name, run in runs.items()
        if isinstance(name, Setting) and name.drafter == "model" and name.batch_size == 1
    }
    print(
        f"\nAn oracle: {rate:.1f} tokens/s, ratio {rate / plain.rate:.2f}. Shares of it:", end=" "
    )
    print(", ".join(f"{name}: {share:.2f}" for name, share in shares.items()) or "none")
    return {"tokens/s": rate, "ratio": rate / plain.rate} | shares


def main() -> None:
    args = parse_args()
    tables_of = benchmark.prompts_by_table(args)
    with ExitStack() as processes:  # ended before Python ends: else both close their pipes
        target, draft = benchmark.models(args)
        theirs = their_ways(args, target, draft, processes)
        reports = {}
        for kind, prompts in tables_of.items():
            print(f"\n## {kind}\n" if kind else "", end="")
            reports[kind] = compare(args, target, draft, prompts, theirs)
    print(f"\n{json.dumps(reports)}")


if __name__ == "__main__":
    cli.run(main)
