"""Decode a prompt with a T5-type model, speculatively where there is a draft model.

python main.py --prompt "translate number to German: 1284"
python main.py --model t5-11b --draft-model t5-small --prompt "summarize: ..."
"""

import sys
from pathlib import Path

import cli
from checkpoint import InputError
from decoder import Options, Response, load, stream_generate
from model import MODELS, WEIGHTS

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
    parser.add_argument(
        "--max-tokens",
        "-m",
        type=cli.at_least(1),
        default=Options.max_tokens,
        help="tokens to generate at most (default: %(default)s)",
    )
    parser.add_argument(
        "--num-draft",
        "--num-draft-tokens",
        type=cli.at_least(0),
        help=f"tokens to draft per round, 0 for plain decoding (default: {Options.num_draft})",
    )
    parser.add_argument("--verbose", action="store_true", help="print statistics to stderr")
    args = parser.parse_args(argv)
    if args.prompt is None:
        parser.error("nothing to do: give a text with --prompt")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the embedded pair has a draft of its own")
    if args.num_draft and args.model and not args.draft_model:
        parser.error("--num-draft needs --draft-model")
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
            f"(rounds by number accepted {histogram}), "
            f"{stats.drafting_seconds:.3f} s drafting, {stats.verifying_seconds:.3f} s verifying"
        )
    return f"{line}, peak memory {response.peak_memory:.2f} GB"


def main() -> None:
    args = parse_args()
    prompt = read_prompt(args.prompt)
    num_draft = Options.num_draft if args.num_draft is None else args.num_draft
    if args.model is None:
        args.model, args.draft_model = demo_model("target"), demo_model("draft")
    model, tokenizer = load(args.model)
    draft_model = None
    if args.draft_model and num_draft:
        draft_model, _ = load(args.draft_model)
    responses = stream_generate(
        model,
        tokenizer,
        prompt,
        draft_model=draft_model,
        num_draft=num_draft,
        max_tokens=args.max_tokens,
    )
    for response in responses:
        print(response.text, end="", flush=True)
    print()
    if args.verbose:
        print(statistics(response), file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
