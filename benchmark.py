"""Measure what speculation gives on this machine, and why.

python benchmark.py                  the embedded pair, widened to the size of t5-large and t5-small
python benchmark.py --report         the same, in a file that can be sent
python benchmark.py --model flan-t5-xl --draft-model flan-t5-small
python benchmark.py rules            another table of docs/benchmarks.md
"""

# PYTHON_ARGCOMPLETE_OK
from terminal import interrupts

if __name__ == "__main__":
    interrupts.expect()  # also while what follows is imported

import blas  # noqa: F401 (before mlx)

# isort: split
import argparse
import contextlib
import functools
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from benchmarks import causal, machine
from benchmarks.limits import Costs, oracle_rate
from benchmarks.measure import (
    Way,
    decoder,
    examples,
    synchronisations_per_step,
    table,
    take_turns,
    widened_pair,
)
from benchmarks.report import (
    COLUMNS,
    Setting,
    cells,
    description,
    different_texts,
    explain,
    figures,
    limits,
    of_any,
)
from benchmarks.tables import TABLES, show
from decoder import SpeculativeDecoder, load
from demo.tasks import KINDS
from demo.widen import CAUSAL_SHAPES, SHAPES
from errors import InputError
from families.causal_loading import encode_prompt
from speculative.drafting import Drafter
from speculative.options import Options
from speculative.row import Row
from speculative.sampling import RowSeeds
from terminal import cli
from terminal.flags import check_models, draft_number
from terminal.prompt_files import PromptFile

SIZES = ("t5-large", "t5-small")
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17)  # numbers of tokens whose check is timed
MORE_WIDTHS = (25, 33, 49, 65, 100)  # for a report


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
    for flag in ("--source-lang", "--target-lang"):
        parser.add_argument(flag, metavar="CODE", help="for a model of several languages")
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
        help="what drafts (default: the draft model, and both with auto; without one, lookup)",
    )
    parser.add_argument("--batch-size", nargs="+", type=positive, default=[1], metavar="B")
    parser.add_argument(
        "--per-turn",
        type=positive,
        metavar="N",
        help="prompts that one way of decoding has before the next (default: the largest batch)",
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, help="of the demo's tasks, each in a table of its own"
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const="benchmark-report.md",
        metavar="FILE",
        help="write all of it to a file that can be sent, with costs of up to 100 tokens in a call "
        "(default: %(const)s)",
    )
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
    drafters = args.drafter or (["model"] if has_draft else ["lookup"])
    args.ways = [(d, k) for d in drafters for k in args.num_draft]
    if has_draft and not args.drafter:  # `auto` as main.py has it
        args.ways += [("both", k) for k in args.num_draft if k == "auto"]
    check_models(args, parser)
    if not has_draft and {"model", "both"} & set(drafters):
        parser.error("--drafter model and both need --draft-model")
    if args.baselines and args.model:
        parser.error("--baselines is for the embedded pair")
    if args.kinds and args.prompt_file:
        parser.error("--kinds are the demo's; --prompt-file has prompts of its own")
    for num_draft in args.num_draft:
        Options(num_draft=num_draft)  # or InputError


def pair(args) -> SpeculativeDecoder:
    """The models, and what makes prompts theirs."""
    if args.model is None:
        target, draft = widened_pair(args.sizes)
        return SpeculativeDecoder(target, target.tokenizer, draft)
    target, tokenizer = load(args.model)
    draft = load(args.draft_model)[0] if args.draft_model else None
    has_chat = getattr(target, "chat", None) is not None
    encode = functools.partial(encode_prompt, target) if has_chat else None
    return SpeculativeDecoder(target, tokenizer, draft, encode)


def texts(args) -> dict[str, list[str]]:
    """The prompts of each table."""
    if args.prompt_file is not None:
        found = list(PromptFile(args.prompt_file, lambda line, reason: None))
        if not found:
            raise InputError(f"{args.prompt_file}: no prompts")
        return {"": found}
    if not args.kinds:
        return {"": [example.prompt for example in examples(args.examples or 6)]}
    asked = examples(args.examples or 6, KINDS)
    return {kind: [e.prompt for e in asked if e.kind == kind] for kind in args.kinds}


def drafters(models: SpeculativeDecoder) -> dict[str, Drafter]:
    alone = SpeculativeDecoder(models.model, models.tokenizer)
    known = {"": Drafter(), "lookup": alone.drafter(Options(lookup=True))}
    if models.draft_model:
        for name, lookup in (("model", False), ("both", True)):
            known[name] = models.drafter(Options(lookup=lookup))
    return known


def settings(args) -> list[Setting]:
    found = []
    for batch_size in args.batch_size:
        found.append(Setting("", 0, batch_size))
        found += [Setting(d, k, batch_size) for d, k in args.ways]
    return found


def speed(args) -> dict:
    """Print the table of ways to decode and what limits them, for each kind of text; all of it as data."""
    models, reports = pair(args), {}
    with contextlib.ExitStack() as stack:
        theirs: dict = {}
        if args.baselines:
            from benchmarks.baselines import baselines

            theirs = stack.enter_context(baselines(args.sizes, args.max_tokens, args.batch_size))
        for kind, prompts in texts(args).items():
            print(f"\n## {kind}\n" if kind else "", end="")
            reports[kind] = compare(args, models, prompts, theirs)
    return reports.get("") or {"kinds": reports}


def compare(
    args, models: SpeculativeDecoder, prompts: list[str], theirs: Mapping[str, Way]
) -> dict:
    """One table, of our ways and theirs."""
    target, draft = models.model, models.draft_model
    asked = {name: getattr(args, name) for name in ("max_tokens", "source_lang", "target_lang")}
    options = Options(**asked)

    def row(prompt: str, options: Options) -> Row:
        return models.row(prompt, options, RowSeeds(0))

    rows = {prompt: row(prompt, options) for prompt in prompts}
    report = machine.describe() | description(target, draft, [r.prompt for r in rows.values()])
    print("\n".join(f"{key}: {value}" for key, value in report.items()), end="\n\n", flush=True)

    first = rows[prompts[0]]
    costs = Costs(target, draft, first.prompt, WIDTHS + (MORE_WIDTHS if args.report else ()))
    known = drafters(models)
    chosen = settings(args)

    def way(s: Setting) -> Way:
        drafter = known[s.drafter] if s.drafter else None
        return decoder(target, drafter, s.num_draft, s.batch_size, row, **asked)

    def of_tokens(way: Way) -> Way:
        return lambda prompts: way([rows[prompt].prompt for prompt in prompts])

    ways: dict = {setting: way(setting) for setting in chosen}
    theirs = {name: of_tokens(way) for name, way in theirs.items()}
    per_turn = args.per_turn or max(args.batch_size)
    runs = take_turns(ways | theirs, prompts, per_turn, costs.measure)
    report |= limits(costs, draft is not None)
    explain(report)
    found: dict[object, dict[str, float]] = {}
    plain = runs[chosen[0]]
    if draft and chosen[0].batch_size == 1:
        report["oracle"] = oracle_rate(plain.results, draft, costs)
        found["an oracle, one by one"] = {
            "tokens/s": report["oracle"],
            "ratio": report["oracle"] / plain.rate,
        }
    for name, run in runs.items():
        if isinstance(name, Setting):
            found[name] = figures(name, run, plain, report)
        else:
            found[name] = of_any(run, plain)
    table(["decoding", *COLUMNS], [cells(name, of_name) for name, of_name in found.items()])
    report["runs"] = [{"decoding": str(name)} | found[name] for name in runs]
    report["other texts"] = different_texts(runs)
    print(f"\nTexts other than those of {chosen[0]}: {report['other texts'] or 'none'}.")
    if any(drafter == "model" for drafter, _ in args.ways):
        report["synchronisations"] = {
            k: synchronisations_per_step(target, known["model"], row(prompts[0], options), k)
            for k in (0, 5)
        }
        print(f"Waits of the host per step, by num_draft: {report['synchronisations']}.")
    return report


class Tee(io.StringIO):
    """Keeps what it passes on."""

    def __init__(self, beside: TextIO):
        super().__init__()
        self._beside = beside

    def write(self, text: str) -> int:
        self._beside.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._beside.flush()


def main() -> None:
    args = parse_args()
    if args.what != "speed":
        show(args.what, args.examples, args.sizes)
        return
    with contextlib.redirect_stdout(Tee(sys.stdout)) as printed:
        data = json.dumps(speed(args))
    print(f"\n{data}")
    if args.report:
        words = f"# What speculation gives here\n\n{printed.getvalue()}\n```json\n{data}\n```\n"
        Path(args.report).write_text(words, encoding="utf-8")
        print(f"The report is in {args.report}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
