"""Measure how much speculation gains on this machine, and why.

python benchmark.py --check          a minute: is all well on this machine?
python benchmark.py                  the demo models, widened to t5-large and t5-small
python benchmark.py --model flan-t5-xl --draft-model flan-t5-small
python benchmark.py --baselines      next to transformers and CTranslate2
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import blas  # noqa: F401 (before mlx)

# isort: split
import json
import sys
from typing import Any

from benchmarks import causal, report
from benchmarks.check import all_is_well
from benchmarks.limits import CallTimes, oracle_rate
from benchmarks.measure import OtherWay, Way, decoder, decoding, take_turns, widened_pair
from benchmarks.report import Setting
from decoder import Options, load
from demo.examples import KINDS, SHORT_KINDS, examples
from demo.widen import CAUSAL_SHAPES, SHAPES
from errors import InputError
from speculative.sampling import RowSeeds
from terminal import cli
from terminal.chat import Conversation
from terminal.flags import check_models, reading
from terminal.prompt_files import PromptFile
from text.prompts import check_prompt

USUAL = ("t5-large", "t5-small")


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="benchmark.py", description="Measure plain and speculative decoding on this machine."
    )
    flag, named = parser.add_argument, ", ".join(SHAPES | CAUSAL_SHAPES)
    flag("--check", action="store_true", help="check this machine; it goes with no other flag")
    flag("--model", help=f"{cli.MODEL} (default: the demo models, widened to --sizes)")
    flag("--draft-model", help="a smaller model with the same vocabulary")
    flag("--source-lang", metavar="CODE", help="language of the source, if multilingual")
    flag("--target-lang", metavar="CODE", help="language of the output, if multilingual")
    sizes: Any = dict(nargs=2, choices=[*SHAPES, *CAUSAL_SHAPES], metavar=("TARGET", "DRAFT"))
    flag(
        "--sizes",
        **sizes,
        help=f"widen the demo models to these sizes, to time large models without a download; two of {named} "
        f"(default: {' '.join(USUAL)})",
    )
    flag("--prompt-file", help="one prompt per line (default: the demo's)")
    few = "how many of the demo's prompts per task (default: %(default)s)"
    flag("--examples", type=cli.positive, default=6, help=few)
    number: Any = reading("num_draft") | dict(nargs="+", default=[*range(1, 9), "auto"])
    flag("--num-draft", **number, help="draft lengths (default: 1 to 8, and auto)")
    drafts = "what drafts (default: model, plus both with auto; lookup without a draft model)"
    flag("--drafter", nargs="+", choices=["model", "lookup", "both"], help=drafts)
    sizes = dict(nargs="+", type=cli.positive, default=[1], metavar="B")
    flag("--batch-size", **sizes, help="batch sizes (default: 1)")
    turn = "the ways of decoding take turns of N prompts; raise it if a prompt takes so little time that noise hides it (default: the largest batch; with --baselines all prompts, in two rounds with pauses)"
    flag("--per-turn", type=cli.positive, metavar="N", help=turn)
    flag(
        "--kinds",
        nargs="+",
        choices=KINDS,
        help="the demo's tasks to measure, each in a table of its own (default: all but paragraph, in one table)",
    )
    flag("--max-tokens", type=cli.positive, default=128, help="per output (default: %(default)s)")
    beside = "compare with transformers and CTranslate2, or with mlx-lm, if installed"
    flag("--baselines", action="store_true", help=beside)
    args = parser.parse_args(argv)
    if args.check and len(argv or sys.argv[1:]) > 1:
        parser.error("--check goes with no other flag")
    check(args, parser)
    return args


def check(args, parser: cli.Parser) -> None:
    """Check the command line before anything is measured, and set `args.ways`: drafters and draft lengths."""
    if args.sizes and args.model:
        parser.error("--sizes widens the demo models; it does not go with --model")
    args.sizes = args.sizes or USUAL
    if len({size in CAUSAL_SHAPES for size in args.sizes}) > 1:
        parser.error("--sizes must be two T5 sizes or two Llama sizes")
    has_draft = bool(args.draft_model or not args.model)
    drafters = args.drafter or (["model"] if has_draft else ["lookup"])
    args.ways = [(d, k) for d in drafters for k in args.num_draft]
    if has_draft and not args.drafter:  # `auto` as in main.py
        args.ways += [("both", k) for k in args.num_draft if k == "auto"]
    check_models(args, parser)
    if not has_draft and {"model", "both"} & set(drafters):
        parser.error("--drafter model and --drafter both need --draft-model")
    if args.baselines and args.model:
        parser.error("--baselines works with the demo models only, not with --model")
    if args.kinds and args.prompt_file:
        parser.error("--kinds selects the demo's prompts; it does not go with --prompt-file")
    for num_draft in args.num_draft:
        Options(num_draft=num_draft)  # or InputError


def texts(args) -> dict[str, list[str]]:
    """Table name -> its prompts."""
    if args.prompt_file is not None:
        file = PromptFile(args.prompt_file, lambda line, reason: None)
        prompts = [check_prompt(prompt).content for prompt in file]
        if not prompts:
            raise InputError(f"{args.prompt_file}: no prompts")
        return {"": prompts}
    tables = {kind: [kind] for kind in args.kinds} if args.kinds else {"": SHORT_KINDS}
    return {name: [e.prompt for e in examples(args.examples, of)] for name, of in tables.items()}


def others(args, target: Any, draft: Any) -> dict[str, OtherWay]:
    """Name -> a way of another library to decode tokens."""
    if not args.baselines:
        return {}
    if args.sizes[0] in CAUSAL_SHAPES:
        numbers = [k for k in args.num_draft if k != "auto"]
        return causal.ways(target, draft, args.max_tokens, args.batch_size, numbers)
    from benchmarks import baselines

    return baselines.ways(args.sizes, args.max_tokens, args.batch_size)


def speed(args) -> dict:
    """Print a table of ways to decode, and their limits, for each kind of text; return all of it as data."""
    asked, reports = texts(args), {}
    if args.model:
        target, draft = (load(name)[0] if name else None for name in (args.model, args.draft_model))
        cli.note_types(target, draft)
    else:
        target, draft = widened_pair(args.sizes)
    theirs = others(args, target, draft)
    for kind, prompts in asked.items():
        print(f"\n## {kind}\n" if kind else "", end="")
        reports[kind] = compare(args, target, draft, prompts, theirs)
    return reports.get("") or {"kinds": reports}


def compare(
    args, target: Any, draft: Any | None, prompts: list[str], theirs: dict[str, OtherWay]
) -> dict:
    """Print one table, of our ways and theirs; return it as data."""
    options = {name: getattr(args, name) for name in ("max_tokens", "source_lang", "target_lang")}
    rows, settings, seed = decoder(target), Options(**options), RowSeeds(0)
    framed = Conversation.of(rows.text, None, None, ignore_chat_template=False).prompt
    tokens = {prompt: rows.row(framed(prompt), settings, seed).prompt for prompt in prompts}
    found: dict[str, Any] = report.describe() | report.sizes(target, draft, tokens)
    print("\n".join(f"{key}: {value}" for key, value in found.items()), end="\n\n", flush=True)

    times = CallTimes(target, draft, tokens[prompts[0]])
    ways: dict[Setting | str, Way] = {}
    for batch_size in args.batch_size:
        for drafter, num_draft in [("", 0), *args.ways]:
            drafting = draft if drafter in ("model", "both") else None
            how = options | dict(num_draft=num_draft, lookup=drafter in ("lookup", "both"))
            way = decoding(target, drafting, batch_size, **how)
            ways[Setting(drafter, num_draft, batch_size)] = way

    def of_tokens(way: OtherWay) -> Way:
        return lambda prompts: way([tokens[prompt] for prompt in prompts])

    ways |= {name: of_tokens(way) for name, way in theirs.items()}
    # Beside other libraries: whole blocks, and no program's threads spin while another's work.
    blocks: Any = dict(rounds=2, pause=1.0) if theirs else {}
    per_turn = args.per_turn or (len(prompts) if theirs else max(args.batch_size))
    runs = take_turns(ways, prompts, per_turn, times.measure, **blocks)
    found |= times.report()
    if draft and args.batch_size[0] == 1:
        found["oracle"] = oracle_rate(next(iter(runs.values())).rows, draft, times)
    return found | report.compare(runs, times, found.get("oracle"))


def main() -> None:
    args = parse_args()
    if args.check:
        sys.exit(not all_is_well())
    print(f"\n{json.dumps(speed(args))}")


if __name__ == "__main__":
    cli.run(main)
