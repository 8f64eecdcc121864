"""The flags of commands that decode: the models, and the fields of `Options`, which have the defaults."""

import argparse
import functools
import json
from dataclasses import fields

from speculative.options import MAX_TOKENS, RULES, Options
from terminal import cli


def add_models(parser: cli.Parser) -> None:
    """--model and --draft-model."""
    parser.add_argument(
        "--model",
        type=cli.name,
        help="a converted folder, or its name under mlx_models/ (default: the embedded pair)",
    )
    parser.add_argument(
        "--draft-model",
        type=cli.name,
        help="a smaller converted model of the same vocabulary (default: none)",
    )


def check_models(args, parser: cli.Parser) -> None:
    """End with a message where they do not go together."""
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the embedded pair has a draft of its own")


def options_of(args) -> Options:
    """The options that were given. InputError for values out of range."""
    given = vars(args)
    flags = {field.name for field in fields(Options)} & given.keys()
    return Options(**{flag: given[flag] for flag in flags})


def add_option(parser, flag: str, *aliases: str, help: str, **how) -> None:
    """A flag for the field of `Options` of the same name, which has the default."""
    default = getattr(Options, flag.removeprefix("--").replace("-", "_"))
    if default is not None and default is not False and default != ():
        help += f" (default: {default})"
    parser.add_argument(flag, *aliases, default=argparse.SUPPRESS, help=help, **how)


def draft_number(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def json_list(text: str) -> list:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list in JSON")
    return value


def biases(text: str) -> dict[int, float]:
    """The type of --logit-bias: JSON's keys are texts."""
    try:
        return {int(token): bias for token, bias in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise argparse.ArgumentTypeError(
            f'{text[:40]!r} is not JSON such as {{"1234": -5.0}}'
        ) from None


def add_decoding_options(parser: cli.Parser) -> None:
    option = functools.partial(add_option, parser)
    option(
        "--max-tokens",
        "-m",
        type=cli.count,
        help=f"tokens to generate at most (default: what the checkpoint says, or {MAX_TOKENS})",
    )
    option(
        "--num-draft",
        "--num-draft-tokens",
        type=draft_number,
        metavar="N",
        help="tokens to draft per step; 0: plain decoding; auto: as many as measured to pay",
    )
    option(
        "--lookup",
        action=argparse.BooleanOptionalAction,
        help="draft by copying from the source; a draft model is asked where there is nothing to copy "
        "(default: with a draft model and --num-draft auto)",
    )
    option("--source-lang", metavar="CODE", help="the text's language, for a model of several")
    option("--target-lang", metavar="CODE", help="the language to write, for a model of several")
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
    add_controls(parser)


def add_controls(parser: cli.Parser) -> None:
    """The flags of what is asked of a text besides the model."""
    about = "A checkpoint's generation_config.json has the defaults."
    option = functools.partial(add_option, parser.add_argument_group("controls", about))
    option(
        "--repetition-penalty", type=float, metavar="X", help="of tokens that are there; 1: none"
    )
    option("--repetition-context-size", type=int, metavar="N", help="... among the last N (all)")
    option("--no-repeat-ngram-size", type=int, metavar="N", help="no N tokens twice; 0: any")
    option("--min-tokens", type=int, metavar="N", help="tokens before the text may end")
    option("--logit-bias", type=biases, metavar="JSON", help='by token: {"1234": -5.0, "42": 2}')
    option(
        "--bad-words-ids", type=json_list, metavar="JSON", help="sequences of tokens: [[5], [6, 7]]"
    )
    option("--suppress-tokens", type=json_list, metavar="JSON", help="tokens not to write: [5, 6]")
    option("--forced-bos-token-id", type=int, metavar="ID", help="the first token; -1: any")
    option("--forced-eos-token-id", type=int, metavar="ID", help="the last at the limit; -1: any")
    option("--stop", action="append", metavar="TEXT", help="end before TEXT; may be repeated")
    option(
        "--logprobs",
        type=cli.count,
        metavar="N",
        help="with --json: the tokens' log-probabilities, and those of the N best",
    )
    option(
        "--num-samples",
        type=cli.count,
        metavar="N",
        help="texts of each prompt, with --temp; or the best ones of so many beams",
    )
    option(
        "--num-beams",
        type=cli.count,
        metavar="N",
        help="above 1: the text of the highest score that a search with N beams finds; nothing is drafted",
    )
    option(
        "--length-penalty",
        type=float,
        metavar="X",
        help="of beams: the score is log-probability / length ** X (1)",
    )
    option(
        "--early-stopping",
        nargs="?",
        const=True,
        choices=["never"],
        help="of beams: end with N texts; never: when no better one can come",
    )
