"""Measure what speculation gives on this machine, and why.

python benchmark.py                  the embedded pair, widened to the size of t5-large and t5-small
python benchmark.py --model flan-t5-xl --draft-model flan-t5-small
python benchmark.py rules            another table of docs/benchmarks.md
"""

from terminal import interrupts

if __name__ == "__main__":
    interrupts.expect()  # also while what follows is imported

import blas  # noqa: F401 (before mlx)

# isort: split
import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from benchmarks import causal
from benchmarks.measure import (
    Costs,
    Run,
    decoder,
    examples,
    machine,
    step_bytes,
    synchronisations_per_step,
    table,
    take_turns,
    tokens_of,
    total,
    widened_pair,
)
from benchmarks.tables import TABLES, show
from decoder import SpeculativeDecoder, Stats, load
from demo.widen import CAUSAL_SHAPES, SHAPES
from errors import InputError
from main import draft_number
from model import T5
from speculative.drafting import Drafter
from speculative.options import Options
from terminal import cli
from terminal.prompt_files import PromptFile

SIZES = ("t5-large", "t5-small")
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17)  # numbers of tokens whose check is timed


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(prog="benchmark.py", description="Measure speculative decoding.")
    parser.add_argument(
        "what",
        nargs="?",
        default="speed",
        choices=["speed", *TABLES],
        help="speed, or a table of docs/benchmarks.md on the embedded pair (default: speed)",
    )
    parser.add_argument(
        "--model", help="a converted target (default: the embedded pair, widened to --sizes)"
    )
    parser.add_argument("--draft-model", help="a converted draft model for it")
    parser.add_argument(
        "--sizes",
        nargs=2,
        choices=sorted({*SHAPES, *CAUSAL_SHAPES}),
        metavar=("TARGET", "DRAFT"),
        help=f"of {', '.join(SHAPES)} (default: {' '.join(SIZES)}); for the table causal of "
        f"{', '.join(CAUSAL_SHAPES)} (default: {' '.join(causal.SIZES)})",
    )
    parser.add_argument("--prompt-file", help="a prompt a line (default: the demo's)")
    parser.add_argument(
        "--examples", type=positive, help="how many of the demo's prompts, of each task"
    )
    parser.add_argument(
        "--num-draft",
        nargs="+",
        type=draft_number,
        default=[1, 2, 3, 4, 5, 6, 7, 8, "auto"],
        metavar="N",
        help="(default: 1 to 8, and auto)",
    )
    parser.add_argument(
        "--drafter",
        nargs="+",
        choices=["model", "lookup", "both"],
        help="what drafts (default: the draft model; without one, lookup)",
    )
    parser.add_argument("--batch-size", nargs="+", type=positive, default=[1], metavar="B")
    parser.add_argument("--max-tokens", type=positive, default=128, help="(default: %(default)s)")
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="beside transformers and CTranslate2, if installed",
    )
    args = parser.parse_args(argv)
    check(args, parser)
    return args


def check(args, parser: cli.Parser) -> None:
    """Find the mistakes of a command line before anything is measured, and say what drafts."""
    changed = [name for name, value in vars(args).items() if value != parser.get_default(name)]
    ignored = [name for name in changed if name not in ("what", "sizes", "examples")]
    if args.what != "speed" and ignored:
        parser.error(f"the table {args.what} has no use for --{ignored[0].replace('_', '-')}")
    known, usual = (CAUSAL_SHAPES, causal.SIZES) if args.what == "causal" else (SHAPES, SIZES)
    args.sizes = args.sizes or usual
    if not set(args.sizes) <= set(known):
        parser.error(f"--sizes of this pair are {', '.join(known)}")
    has_draft = bool(args.draft_model or not args.model)
    args.drafter = args.drafter or (["model"] if has_draft else ["lookup"])
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the embedded pair has a draft of its own")
    if not has_draft and {"model", "both"} & set(args.drafter):
        parser.error("--drafter model and both need --draft-model")
    if args.baselines and args.model:
        parser.error("--baselines is for the embedded pair")
    for num_draft in args.num_draft:
        Options(num_draft=num_draft)  # or InputError


def models(args) -> tuple[T5, T5 | None, Tokenizer]:
    if args.model is None:
        target, draft = widened_pair(args.sizes)
        return target, draft, target.tokenizer
    target, tokenizer = load(args.model)
    draft = load(args.draft_model)[0] if args.draft_model else None
    return target, draft, tokenizer


def texts(args) -> list[str]:
    if args.prompt_file is None:
        return [example.prompt for example in examples(args.examples or 6)]
    found = list(PromptFile(args.prompt_file, lambda line, reason: None))
    if not found:
        raise InputError(f"{args.prompt_file}: no prompts")
    return found


@dataclass(frozen=True)
class Setting:
    """A way of ours to decode."""

    drafter: str  # "": plain decoding
    num_draft: int | str
    batch_size: int

    def __str__(self) -> str:
        name = f"{self.drafter}, num_draft {self.num_draft}" if self.drafter else "plain"
        return name if self.batch_size == 1 else f"{name}, batch {self.batch_size}"


def drafters(target: T5, draft: T5 | None, tokenizer: Tokenizer) -> dict[str, Drafter]:
    alone, pair = (SpeculativeDecoder(target, tokenizer, model) for model in (None, draft))
    known = {"": Drafter(), "lookup": alone.drafter(Options(lookup=True))}
    if draft:
        for name, lookup in (("model", False), ("both", True)):
            known[name] = pair.drafter(Options(lookup=lookup))
    return known


def settings(args) -> list[Setting]:
    found = []
    for batch_size in args.batch_size:
        found.append(Setting("", 0, batch_size))
        found += [Setting(d, k, batch_size) for d in args.drafter for k in args.num_draft]
    return found


# ---------------------------------------------------------------------------------------------
# What is reported


def description(target: T5, draft: T5 | None, prompts: Sequence[list[int]]) -> dict:
    def size(model: T5) -> str:
        weights = dict(tree_flatten(model.parameters())).values()
        c = model.config
        return (
            f"{sum(w.size for w in weights) / 1e6:.0f}M weights in {sum(w.nbytes for w in weights) / 1e9:.2f} GB, "
            f"d_model {c.d_model}, d_ff {c.d_ff}, {c.num_layers}+{c.num_decoder_layers} layers, "
            f"{str(model.embedding.weight.dtype).removeprefix('mlx.core.')}"
        )

    tokens = sum(map(len, prompts)) / len(prompts)
    about = {"prompts": f"{len(prompts)} of {tokens:.0f} tokens", "target": size(target)}
    return about | ({"draft": size(draft)} if draft else {})


def limits(target: T5, costs: Costs, has_draft: bool) -> dict:
    """What the machine allows, and what the models cost on it."""
    size = step_bytes(target)
    found = {
        "bandwidth_gb_s": size / costs["products"] / 1e9,
        "step_gb": size / 1e9,
        "least_step_ms": 1e3 * costs["products"],
        "step_ms": 1e3 * costs[1],
        "bandwidth_reached": costs["products"] / costs[1],
        "late_to_early": costs[f"at {Costs.LATE}"] / costs[f"at {Costs.EARLY}"],
        "verify_cost": {width: costs[width] / costs[1] for width in WIDTHS},
    }
    if has_draft:
        found["draft_cost"] = costs["draft"] / costs[1]
    return found


def explain(report: dict) -> None:
    """Print the limits in words."""
    print(
        f"A step reads {report['step_gb']:.2f} GB of weights: at the {report['bandwidth_gb_s']:.1f} GB/s of a "
        f"mere chain of the same products {report['least_step_ms']:.1f} ms, in the model "
        f"{report['step_ms']:.1f} ms: {report['bandwidth_reached']:.0%} of the limit. Token {Costs.LATE} costs "
        f"{report['late_to_early']:.2f} times token {Costs.EARLY}."
    )
    verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in report["verify_cost"].items())
    print(f"A target call by number of tokens, in steps: {verify}.")
    if "draft_cost" in report:
        print(f"A token of the draft model costs {report['draft_cost']:.3f} steps.")
    print()


def predicted(stats: Stats, report: dict, drafter: str) -> float:
    """The speed-up of steps that follows from the tokens per call and the costs."""
    drafted = stats.drafted_per_call
    verify = report["verify_cost"]
    checking = np.interp(drafted + 1, list(verify), list(verify.values()))
    drafting = drafted * report["draft_cost"] if drafter == "model" else 0.0
    return stats.tokens_per_call / (drafting + checking)


def figures(setting: Setting, run: Run, plain: Run, report: dict) -> dict[str, float]:
    """The figures of a way of ours."""
    stats, plainly = total(run.results), total(plain.results)
    found = of_any(run, plain) | {
        "tokens per call": stats.tokens_per_call,
        "reading, s": stats.encoding_seconds + stats.preparing_seconds,
        "steps, s": stats.seconds,
        "memory, GB": run.peak_memory,
    }
    if setting.drafter:
        found["acceptance"] = stats.acceptance
    if setting.batch_size == 1 and setting.drafter in ("model", "lookup"):
        found["steps"] = stats.tokens_per_second / plainly.tokens_per_second
        found["predicted"] = predicted(stats, report, setting.drafter)
    return found


def of_any(run: Run, plain: Run) -> dict[str, float]:
    low, high = run.spread()
    ratio = run.rate / plain.rate
    return {"tokens/s": run.rate, "low": low, "high": high, "ratio": ratio}


# Column: the figure's key and form. "low" and "high" are the quartiles of the turns; "ratio" is to
# plain decoding in the first batch size, and so is "steps", which leaves out reading prompts.
COLUMNS = {
    "tokens/s": ("tokens/s", ".1f"),
    "low": ("low", ".1f"),
    "high": ("high", ".1f"),
    "ratio": ("ratio", ".2f"),
    "steps": ("steps", ".2f"),
    "predicted": ("predicted", ".2f"),
    "acceptance": ("acceptance", ".2f"),
    "tokens/call": ("tokens per call", ".2f"),
    "s reading": ("reading, s", ".2f"),
    "in steps": ("steps, s", ".2f"),
    "GB": ("memory, GB", ".2f"),
}


def cells(name: object, found: dict[str, float]) -> list[str]:
    forms = COLUMNS.values()
    return [str(name), *(format(found[key], form) if key in found else "" for key, form in forms)]


def different_texts(runs: dict[object, Run]) -> dict[str, int]:
    """How many texts are not those of the first way."""
    first, *others = runs.items()
    expected = [tokens_of(result) for result in first[1].results]
    counts = {
        str(name): sum(tokens_of(a) != b for a, b in zip(run.results, expected, strict=True))
        for name, run in others
    }
    return {name: count for name, count in counts.items() if count}


def speed(args) -> None:
    """Print the table of ways to decode, what limits them, and all of it as a line of JSON."""
    target, draft, tokenizer = models(args)
    prompts = [tokenizer.encode(prompt).ids for prompt in texts(args)]
    report = machine() | description(target, draft, prompts)
    print("\n".join(f"{key}: {value}" for key, value in report.items()), end="\n\n", flush=True)

    costs = Costs(target, draft, prompts[0], WIDTHS)
    known = drafters(target, draft, tokenizer)
    chosen = settings(args)

    def way(s: Setting):
        drafter = known[s.drafter] if s.drafter else None
        return decoder(target, drafter, s.num_draft, s.batch_size, max_tokens=args.max_tokens)

    ways = {setting: way(setting) for setting in chosen}
    per_turn = max(args.batch_size)
    with contextlib.ExitStack() as stack:
        if args.baselines:
            from benchmarks.baselines import baselines

            ways |= stack.enter_context(baselines(args.sizes, args.max_tokens, args.batch_size))
        runs = take_turns(ways, prompts, per_turn, costs.measure)
    report |= limits(target, costs, draft is not None)
    explain(report)
    found: dict[object, dict[str, float]] = {}
    plain = runs[chosen[0]]
    for name, run in runs.items():
        if isinstance(name, Setting):
            found[name] = figures(name, run, plain, report)
        else:
            found[name] = of_any(run, plain)
    table(["decoding", *COLUMNS], [cells(name, of_name) for name, of_name in found.items()])
    report["runs"] = [{"decoding": str(name)} | of_name for name, of_name in found.items()]
    report["other texts"] = different_texts(runs)
    print(f"\nTexts other than those of {chosen[0]}: {report['other texts'] or 'none'}.")
    if "model" in args.drafter:
        report["synchronisations"] = {
            k: synchronisations_per_step(target, known["model"], prompts[0], k) for k in (0, 5)
        }
        print(f"Waits of the host per step, by num_draft: {report['synchronisations']}.")
    print(f"\n{json.dumps(report)}")


def main() -> None:
    args = parse_args()
    if args.what == "speed":
        speed(args)
    else:
        show(args.what, args.examples, args.sizes)


if __name__ == "__main__":
    cli.run(main)
