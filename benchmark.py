"""Measure how much speculation gains on this machine, and why.

python benchmark.py --check          a minute: is all well on this machine?
python benchmark.py                  the demo models, widened to t5-large and t5-small
python benchmark.py --model google/flan-t5-xl --draft-model google/flan-t5-small
"""

import argparse
import json
import sys
from itertools import product
from typing import Any

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.benchmarks import machine, tables
from apps.benchmarks.measuring import Setting, Way, decoder, decoding, rows_of, take_turns
from apps.benchmarks.widening import CAUSAL_SHAPES, SHAPES, widened_pair
from apps.cli import cli
from apps.cli.check import all_is_well
from apps.cli.flags import add_languages, add_shared, check_models, reading
from apps.cli.models import merge_adapter, note_types
from apps.cli.prompt_files import PromptFile
from decoder import Options, load
from demo.pair import KINDS, SHORT_KINDS, examples
from speculative.common.errors import InputError
from speculative.step.options import DRAFT
from speculative.step.timing import CallTimes
from speculative.text.text_side import check_prompt

USUAL = ("t5-large", "t5-small")
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17)  # tokens per target call that are timed


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.Parser(
        prog="benchmark.py", description="Measure plain and speculative decoding on this machine."
    )
    flag = parser.add_argument
    # fmt: off
    flag("--check", action="store_true", help="check this machine; it goes with no other flag")
    flag("--model", help=f"{cli.MODEL} (default: the demo models, widened to --sizes)")
    add_shared(parser, "--adapter-path", "--draft-model")
    add_languages(parser)
    flag("--sizes", nargs=2, choices=[*SHAPES, *CAUSAL_SHAPES], metavar=("TARGET", "DRAFT"),
         help="widen the demo models to these sizes, to time large models without a download; two of "
         f"{', '.join([*SHAPES, *CAUSAL_SHAPES])} (default: {' '.join(USUAL)})")
    flag("--prompt-file", help="one prompt per line (default: the demo's)")
    flag("--examples", type=cli.positive, default=6, help="how many of the demo's prompts per task (default: %(default)s)")
    flag("--num-draft", **reading(DRAFT), nargs="+", default=[*range(1, 9), "auto"],
         help="draft lengths (default: 1 to 8, and auto)")
    flag("--drafter", nargs="+", choices=["model", "lookup", "both"],
         help="what drafts (default: model, plus both with auto; lookup without a draft model)")
    flag("--batch-size", nargs="+", type=cli.positive, default=[1], metavar="B", help="batch sizes (default: 1)")
    flag("--per-turn", type=cli.positive, metavar="N",
         help="the ways of decoding take turns of N prompts; raise it if a prompt takes so little time that noise hides it "
         "(default: the largest batch)")
    flag("--kinds", nargs="+", choices=KINDS,
         help="the demo's tasks to measure, each in a table of its own (default: all but paragraph, in one table)")
    flag("--max-tokens", type=cli.positive, default=128, help="per output (default: %(default)s)")
    # fmt: on
    args = parser.parse_args(argv)
    if args.check and len(argv or sys.argv[1:]) > 1:
        parser.error("--check goes with no other flag")
    check(args, parser)
    return args


def check(args: argparse.Namespace, parser: cli.Parser) -> None:
    check_models(args, parser)
    if args.model and args.sizes:
        parser.error("--sizes is for the demo models, not for --model")
    if len({size in CAUSAL_SHAPES for size in args.sizes or USUAL}) > 1:
        parser.error("--sizes must be two T5 sizes or two Llama sizes")
    if args.model and not args.draft_model and {"model", "both"} & set(args.drafter or ()):
        parser.error("--drafter model and --drafter both need --draft-model")
    if args.kinds and args.prompt_file:
        parser.error("--kinds selects the demo's prompts; it does not go with --prompt-file")
    for num_draft in args.num_draft:
        Options(num_draft=num_draft)  # or InputError


def models(args: argparse.Namespace) -> tuple[Any, Any | None]:
    """Target and draft model."""
    if not args.model:
        return widened_pair(args.sizes or USUAL)
    target, _ = load(args.model)
    draft = load(args.draft_model)[0].for_target(target) if args.draft_model else None
    note_types(target, draft)
    return target, draft


def common(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("max_tokens", "source_lang", "target_lang")}


def our_ways(args: argparse.Namespace, target: Any, draft: Any | None) -> dict[Setting, Way]:
    """Our ways to decode, the first of them plain: each drafter with each draft length."""
    drafters = args.drafter or ["model" if draft else "lookup"]
    pairs = [("", 0), *product(drafters, args.num_draft)]
    if draft and not args.drafter and "auto" in args.num_draft:  # as in main.py
        pairs.append(("both", "auto"))
    ways = {}
    for batch_size, (drafter, num_draft) in product(args.batch_size, pairs):
        draft_model = draft if drafter in ("model", "both") else None
        options = common(args) | dict(num_draft=num_draft, lookup=drafter in ("lookup", "both"))
        way = decoding(target, draft_model, batch_size, **options)
        ways[Setting(drafter, num_draft, batch_size)] = way
    return ways


def prompts_by_table(args: argparse.Namespace) -> dict[str, list[Any]]:
    """Table name -> its prompts: those of the file, or the demo's in one table or in one for each kind."""
    if args.prompt_file is not None:
        file = PromptFile(args.prompt_file, lambda *_: None)
        prompts = [check_prompt(prompt).content for prompt in file]
        if not prompts:
            raise InputError(f"{args.prompt_file}: no prompts")
        return {"": prompts}
    tables = {kind: [kind] for kind in args.kinds or ()} or {"": [*SHORT_KINDS]}
    return {
        name: [example.prompt for example in examples(args.examples, kinds)]
        for name, kinds in tables.items()
    }


def compare(args: argparse.Namespace, target: Any, draft: Any | None, prompts: list[Any]) -> dict:
    """Print what the figures depend on, and the table of all ways; return it as data."""
    tokens = [row.prompt for row in rows_of(decoder(target), prompts, Options(**common(args)))]
    facts = machine.describe() | machine.sizes(target, draft, tokens)
    print("\n".join(f"{key}: {value}" for key, value in facts.items()), end="\n\n", flush=True)
    times = CallTimes(target, draft, tokens[0], WIDTHS)
    per_turn = args.per_turn or max(args.batch_size)
    runs = take_turns(our_ways(args, target, draft), prompts, per_turn, times.measure)
    return facts | tables.costs(times) | tables.compare(runs)


def main() -> None:
    args = parse_args()
    merge_adapter(args)
    if args.check:
        sys.exit(not all_is_well())
    prompts = prompts_by_table(args)
    target, draft = models(args)
    reports = {}
    for kind, of_kind in prompts.items():
        print(f"\n## {kind}\n" if kind else "", end="")
        reports[kind] = compare(args, target, draft, of_kind)
    print(f"\n{json.dumps(reports.get('') or {'kinds': reports})}")


if __name__ == "__main__":
    cli.run(main)
