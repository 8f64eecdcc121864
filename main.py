"""Decode a prompt with a T5-type model, speculatively where there is a draft model.

python main.py --prompt "translate number to German: 1284"
python main.py --model t5-11b --draft-model t5-small --prompt "summarize: ..."
"""

import functools
import sys
from dataclasses import asdict, fields
from pathlib import Path

import cli
from checkpoint import InputError
from decoder import Options, Response, load, stream_generate
from model import MODELS, WEIGHTS
from sampling import RULES

DEMO = Path(__file__).parent / "demo"


def demo_model(role: str) -> Path:
    """The converted folder of the embedded `role` ("target" or "draft"), converted on first use
    and again when the embedded one is newer."""
    source, output = DEMO / role, MODELS / f"demo-{role}"
    converted = output / WEIGHTS
    stale = converted.exists() and converted.stat().st_mtime < max(
        file.stat().st_mtime for file in source.iterdir()
    )
    if stale or not converted.exists():
        from convert import convert

        print(f"converting the embedded {role} model to {output}", file=sys.stderr)
        convert(str(source), output, dtype="float32", force=stale, exist_ok=not stale)
    return output


def add_option(parser: cli.Parser, flag: str, *aliases: str, help: str, **how) -> None:
    """A flag for the field of `Options` of the same name, with its default."""
    default = getattr(Options, flag.removeprefix("--").replace("-", "_"))
    if default is not None:
        help += f" (default: {default})"
    parser.add_argument(flag, *aliases, default=default, help=help, **how)


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(prog="main.py", description="Speculative decoding for T5 on MLX.")
    parser.add_argument(
        "--model",
        help="a converted folder, or its name under mlx_models/ (default: the embedded pair)",
    )
    parser.add_argument(
        "--draft-model", help="a smaller converted model of the same vocabulary (default: none)"
    )
    parser.add_argument("--prompt", "-p", help="the text to work on, or - for standard input")
    option = functools.partial(add_option, parser)
    option("--max-tokens", "-m", type=int, help="tokens to generate at most")
    option(
        "--num-draft",
        "--num-draft-tokens",
        type=int,
        help="tokens to draft per round; 0: plain decoding",
    )
    option("--temp", type=float, help="temperature; 0: greedy")
    option("--top-k", type=int, help="sample from the TOP_K most probable tokens; 0: from all")
    option("--top-p", type=float, help="sample from the fewest tokens of probability TOP_P")
    option("--min-p", type=float, help="sample from tokens of MIN_P times the best's probability")
    option("--seed", type=int, help="the same seed gives the same text")
    option(
        "--acceptance",
        choices=RULES,
        help="how drafted tokens are accepted when sampling; the text's law is the target's under "
        f"each (default: {Options(temp=1).rule}, or token with --delta)",
    )
    option(
        "--delta",
        type=float,
        help="above 0 the text is no longer exactly the target's: how much acceptance is eased, up "
        "to 1, which accepts every drafted token",
    )
    parser.add_argument("--verbose", action="store_true", help="print statistics to stderr")
    args = parser.parse_args(argv)
    if args.prompt is None:
        parser.error("nothing to do: give a text with --prompt")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the embedded pair has a draft of its own")
    return args


def read_prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def statistics(response: Response) -> str:
    """One line on what decoding took."""
    stats = response.stats
    line = (
        f"{response.prompt_tokens} prompt tokens at {response.prompt_tps:.0f}/s, "
        f"{response.generation_tokens} tokens at {response.generation_tps:.1f}/s "
        f"({response.finish_reason}), {stats.target_calls} target calls"
    )
    if stats.drafted:
        lengths = range(max(stats.accepted_lengths) + 1)
        histogram = " ".join(f"{n}:{stats.accepted_lengths[n]}" for n in lengths)
        line += (
            f", {stats.accepted} of {stats.drafted} drafted tokens accepted "
            f"(rounds by number accepted {histogram}), {stats.drafting_seconds:.3f} s drafting, "
            f"{stats.seconds - stats.drafting_seconds:.3f} s verifying"
        )
    return f"{line}, peak memory {response.peak_memory:.2f} GB"


def main() -> None:
    args = parse_args()
    prompt = read_prompt(args.prompt)
    flags = {field.name for field in fields(Options)} & vars(args).keys()
    options = Options(timed=args.verbose, **{flag: getattr(args, flag) for flag in flags})
    if args.model is None:
        args.model, args.draft_model = demo_model("target"), demo_model("draft")
    model, tokenizer = load(args.model)
    draft_model = None
    if args.draft_model and options.num_draft:
        draft_model, _ = load(args.draft_model)
    responses = stream_generate(model, tokenizer, prompt, draft_model, **asdict(options))
    for response in responses:
        print(response.text, end="", flush=True)
    print()
    if args.verbose:
        print(statistics(response), file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
