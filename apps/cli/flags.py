"""Flags shared by the commands: the models, and the options that speculative/step/options.py declares."""

import argparse
import json
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from apps.cli import cli
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.options import DECLARED, EARLY, TEXTS, Declared, Options, Values
from speculative.text.memory import TABLES, XML, load_memory

_GROUPS = {  # groups of options with their own heading in --help
    "controls": "Defaults come from the checkpoint's generation_config.json, if it sets them.",
    "beams": "Beam search, if --num-beams is above 1.",
}

# Arguments that are files; a memory that grows may be one that is before it, which is read first
FILES = ("draft_vocabulary", "terms", "memory", "reference", "prompt_file")
DOCUMENTS = ("documents", "document", "audio")

MODELS = ("--model", "--adapter-path", "--draft-model", "--draft-vocabulary")
# fmt: off
SHARED: dict[str, dict[str, Any]] = {  # flags of several commands
    "--model": dict(type=cli.name, help=f"{cli.MODEL} (default: the demo models)"),
    "--adapter-path": dict(
        type=cli.name, action=cli.Once, help="an adapter of --model, a folder or a name on the hub (default: none)"),
    "--draft-model": dict(
        type=cli.name, help="a smaller model with the same vocabulary (default: none, or the demo's)"),
    "--draft-vocabulary": dict(
        type=cli.name, metavar="FILE",
        help="make a draft model faster, with the same output: it chooses only among the tokens in this text file or translation "
        "memory; auto: those written so far, once few are new (default: all; auto if it is made from the model itself)"),
    "--distill": dict(
        type=cli.folder, nargs="?", const=Path(), metavar="FOLDER",
        help="make a draft model from this run's own outputs while it runs, once the work that is left pays for training; "
        "kept in FOLDER (or where distill.py writes) for the next run (default: off)"),
    "--memory": dict(
        type=cli.path, metavar="FILE",
        help="a translation memory: draft tokens are copied from the output of a similar earlier prompt; JSON lines, "
        f"or a file with a name in {', '.join(TABLES + XML)} (default: none)"),
    "--memory-append": dict(action="store_true", help="add this run's prompts and outputs to it"),
    "--prefix-cache": dict(
        type=cli.gigabytes, metavar="GB",
        help="RAM for what a decoder-only model has read: a prompt that begins as an earlier one did is not read "
        "again from its start; 0: keep nothing (default: a tenth of the RAM)"),
    "--chat-template-config": dict(
        type=lambda text: json_value(dict, text, key=str), metavar="JSON",
        help='arguments for the chat template: {"enable_thinking": false}'),
    "--extra-eos-token": dict(
        nargs="+", metavar="TOKEN", help="further tokens that end an output, by name: </answer>"),
}
# fmt: on


def add_shared(parser: cli.Parser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, **SHARED[name])


def read_draft_vocabulary(name: str, tokenizer: Tokenizer) -> Collection[int] | str:
    """The tokens in a file, in the texts of a translation memory (.jsonl, .csv, .tsv, .tmx, .tbx) or else in all lines; "auto"
    if that is its name. Errors as in text.memory.load_memory, and InputError if there are none."""
    if name == "auto":
        return name
    path = Path(name)
    if path.suffix.lower() in (".jsonl", ".csv", ".tsv", *XML):
        texts = [pair.text for pair in load_memory(path, reporter.note).pairs]
    else:
        texts = path.read_text(encoding="utf-8-sig", errors="ignore").splitlines()
    encoded = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    tokens = {token for ids in encoded for token in ids}
    if not tokens:
        raise InputError(f"{path} holds no text")
    return tokens


def check_apart(args, written: Iterable[tuple[str, Path | None]]) -> None:
    """InputError if a file that a command writes would be another one that it writes or reads. written: with their
    flags; the report and a memory that grows are added."""
    given = vars(args)
    read = {f"--{name.replace('_', '-')}": given.get(name) for name in FILES}
    if not isinstance(given.get("reference"), Path):  # main.py's is a text
        del read["--reference"]
    read |= {document: document for name in DOCUMENTS for document in given.get(name) or ()}
    owners = {_identity(Path(path)): owner for owner, path in read.items() if path}
    memory = given["memory"] if given.get("memory_append") else None
    for owner, path in (*written, ("--report", given.get("report")), ("--memory", memory)):
        other = owners.setdefault(_identity(path), owner) if path else owner
        if other != owner:
            raise InputError(f"{other} and {owner} would both be {path}; name another file")


def _identity(path: Path) -> str:
    """The same for all names of a file."""
    with suppress(OSError):  # it is not there, or has a name that no file can have
        stat = path.stat()
        return repr((stat.st_dev, stat.st_ino))
    name = str(path.resolve())
    # A Mac's file systems ignore case and how accents are encoded.
    return unicodedata.normalize("NFC", name).casefold() if sys.platform == "darwin" else name


def note_unused(given: Mapping[str, Any], rules: Iterable[tuple[Iterable[str], str]]) -> None:
    """Say which flags have no effect. given: the values of flags; None: not given; rules: names of flags and a reason."""
    for names, reason in rules:
        for name in names:
            if given.get(name) is not None:
                reporter.note(f"--{name.replace('_', '-')} has no effect {reason}")


def check_models(args, parser: cli.Parser) -> None:
    given = vars(args)  # not every command has all of these flags
    distills = given.get("distill") is not None
    if given.get("memory_append") and not args.memory:
        parser.error("--memory-append needs --memory")
    if args.adapter_path and not args.model:
        parser.error("--adapter-path needs --model, its base; or name the adapter as --model")
    if given.get("draft_model") and not args.model:
        parser.error("--draft-model needs --model; the demo models bring their own")
    if distills and args.draft_model:
        parser.error("--distill makes a draft model: it goes without --draft-model")
    if given.get("draft_vocabulary") and args.model and not (args.draft_model or distills):
        parser.error("--draft-vocabulary needs --draft-model")


def options_of(args) -> Options:
    """The options given as flags. InputError for values out of range."""
    return Options(**{name: value for name, value in vars(args).items() if name in DECLARED})


def add_options(
    parser: cli.Parser, without: Collection[str] = (), options: Mapping[str, Declared] = DECLARED
) -> None:
    """A flag for each option but those in `without`."""
    shown = {name: d for name, d in options.items() if d.flags is not None and name not in without}
    groups: dict[str, Any] = {}
    for name, declared in shown.items():
        heading = _GROUPS.get(declared.group)
        if heading and declared.group not in groups:
            groups[declared.group] = parser.add_argument_group(declared.group, heading)
        _add_option(groups.get(declared.group, parser), name, declared)


def add_languages(parser: cli.Parser) -> None:
    """--source-lang and --target-lang, as a command's only options. None: not given"""
    for name in ("source_lang", "target_lang"):
        _add_option(parser, name, DECLARED[name])
    parser.set_defaults(source_lang=None, target_lang=None)


def _add_option(parser: Any, name: str, declared: Declared) -> None:
    """A flag for an option, on a parser or in a group of its flags."""
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        *declared.flags or (),
        default=argparse.SUPPRESS,
        help=f"{declared.help} (default: {declared.default})".replace("%", "%%"),
        **reading(declared.values),
    )


def reading(values: Values) -> dict[str, Any]:
    """The arguments with which argparse reads an option's value."""
    if values.kind is bool:
        return dict(action=argparse.BooleanOptionalAction)
    if values is EARLY:  # without a value it means True
        return dict(nargs="?", const=True, choices=values.choices)
    if values is TEXTS:
        return dict(action="append", metavar="TEXT")
    if values.metavar == "JSON":
        return dict(type=partial(json_value, values.kind), metavar="JSON")
    if values.metavar == "TEXT/@FILE":
        return dict(type=_text_in_utf8, metavar=values.metavar)
    if values.kind is str:
        return dict(choices=values.choices or None, metavar=values.metavar)
    return dict(type=values.parse, metavar=values.metavar)


def _text_in_utf8(text: str) -> str:
    """The type of a flag that takes a text, or @ and the name of a file that holds it. OSError if it cannot be read."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{text[1:]} is not text in UTF-8") from None


def json_value(kind: Any, text: str, key: Callable = int) -> Any:
    """The value of a flag that takes a JSON list, or a JSON object with such keys."""
    try:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError
        return {key(k): v for k, v in value.items()} if kind is dict else value
    except (ValueError, RecursionError):
        ids = " with token ids as keys" if key is int else ""
        expected = f"an object in JSON{ids}" if kind is dict else "a list in JSON"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {expected}") from None
