"""transcribe.py's flags for the options of a transcript and of its subtitles: one for each field that has a text here."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from speech.formats import Layout
from speech.options import TranscribeOptions
from speech.rules import TASKS
from speech.subtitles import Rules
from terminal import cli

Switch = argparse.BooleanOptionalAction
_DEFAULT = "(default: %(default)s)"
_OPTIONS = {
    "language": "spoken language: a code or its name in any language (default: detected in the first window)",
    "task": f"translate: into English {_DEFAULT}",
    "temperature": f"0: greedy; a window that fails is retried at 0.2 more, up to 1 {_DEFAULT}",
    "best_of": f"at temperatures above 0, keep the best of N texts {_DEFAULT}",
    "seed": "random seed",
    "initial_prompt": "text that could precede the audio, with names spelled as you want them",
    "carry_initial_prompt": "show every window the initial prompt, not the first only",
    "hotwords": "words to show every window before its prompt",
    "condition_on_previous_text": "prompt each window with the text before it (default: yes)",
    "suppress_tokens": "tokens never to write, as --suppress-tokens=-1,50; -1: those of the checkpoint (default: -1)",
    "compression_ratio_threshold": "retry a window if its text compresses better than X: it repeats itself; "
    f"none: never {_DEFAULT}",
    "logprob_threshold": f"retry a window if its tokens' mean log-probability is below X; none: never {_DEFAULT}",
    "no_speech_threshold": "take a window as silent if silence is more probable than X and its text uncertain; "
    f"none: never {_DEFAULT}",
    "clip_timestamps": "parts to transcribe, in seconds: start,end,start,... (default: all)",
    "vad": "transcribe only what a voice detector takes for speech",
    "batched": "decode windows cut at pauses in one batch; the text may differ; needs --vad",
    "word_timestamps": "find when each word is spoken, for subtitles and JSON",
    "prepend_punctuations": f"marks that belong to the next word {_DEFAULT}",
    "append_punctuations": f"marks that belong to the word before {_DEFAULT}",
    "hallucination_silence_threshold": "leave out words invented in a silence of at least X s; needs --word-timestamps",
}
_LAYOUT = {
    "max_line_width": "break the lines of subtitles after N characters at most",
    "max_line_count": "lines of a subtitle, for --max-line-width; needs --word-timestamps",
    "max_words_per_line": "words of a subtitle; needs --word-timestamps",
    "highlight_words": "underline each word of a subtitle while it is spoken; needs --word-timestamps",
}
_CUES = {  # the numbers of --subtitles that have no flag otherwise
    "min_cue_seconds": "least time that a cue stays, where there is room",
    "max_cue_seconds": "most time that a cue stays",
    "reading_speed": "characters a second to read at most, where there is room",
    "cue_gap": "seconds between two cues",
}
_NEED_WORDS = ("max_line_count", "max_words_per_line", "highlight_words")
_NOT_LIVE = (
    *("audio_track", "reference", "clip_timestamps", "vad", "batched", "resume"),
    "hallucination_silence_threshold",
)


def number(text: str) -> float | None:
    return None if text in ("none", "None") else float(text)


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(token) for token in text.split(",") if token)


def seconds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


_READ: dict[Any, dict[str, Any]] = {  # the values of a field, by its type
    bool: dict(action=Switch),
    str: dict(metavar="TEXT"),
    str | None: dict(type=cli.name, metavar="NAME"),
    int: dict(type=cli.integer, metavar="N"),
    int | None: dict(type=cli.positive, metavar="N"),
    float: dict(type=float, metavar="X"),
    float | None: dict(type=number, metavar="X"),
    tuple[int, ...]: dict(type=ids, metavar="IDS"),
    tuple[float, ...]: dict(type=seconds, metavar="LIST"),
}


def add_transcript_flags(parser: cli.Parser) -> None:
    """A flag for each option, and for each number of subtitles."""
    _add(parser, TranscribeOptions, _OPTIONS, {"task": dict(choices=TASKS)})
    _add(parser, Layout, _LAYOUT)
    parser.add_argument(
        "--subtitles",
        action=Switch,
        default=False,
        help="make cues for reading, of srt and vtt, from the times of words and by the numbers below",
    )
    helps = {
        name: f"{text}; with --subtitles (default: {getattr(Rules, name)})"
        for name, text in _CUES.items()
    }
    _add(parser, Rules, helps, {name: dict(default=None) for name in helps})


def _add(
    parser: cli.Parser,
    kind: type,
    helps: Mapping[str, str],
    more: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """A flag for each field of a dataclass that has a help text. more: other arguments of some"""
    for field in fields(kind):
        if field.name in helps:
            names = [f"--{field.name.replace('_', '-')}"]
            if field.name == "temperature":
                names.append("--temp")
            given = {"default": field.default, **_READ[field.type], **more.get(field.name, {})}
            if "choices" in given:
                del given["metavar"]
            parser.add_argument(*names, help=helps[field.name], **given)


def of_kind(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The flags that are fields of a dataclass."""
    return {name: value for name, value in vars(args).items() if name in kind.__annotations__}


def layout_of(args: argparse.Namespace) -> Layout:
    """How subtitles are to look. InputError for values out of range."""
    rules = {name: value for name, value in of_kind(args, Rules).items() if value is not None}
    return Layout(**of_kind(args, Layout), reading=Rules(**rules) if args.subtitles else None)


def check_words(args: argparse.Namespace, parser: cli.Parser) -> None:
    """Exit with a message if a flag lacks --word-timestamps, which --subtitles brings."""
    args.word_timestamps |= args.subtitles
    for name in _NEED_WORDS:
        if getattr(args, name) and not args.word_timestamps:
            parser.error(f"--{name.replace('_', '-')} needs --word-timestamps")


def unused(args: argparse.Namespace) -> Iterator[tuple[Iterable[str], str]]:
    """Flags that have no effect beside the others, and why."""
    if args.output_format not in ("srt", "vtt", "all"):
        yield [*_LAYOUT, "subtitles"], f"with --output-format {args.output_format}"
    elif args.subtitles:
        yield ["max_words_per_line", "highlight_words"], "with --subtitles"
    elif not args.max_line_width:
        yield ["max_line_count"], "without --max-line-width"
    elif args.max_line_count:
        yield ["max_words_per_line"], "with --max-line-width and --max-line-count"
    if args.live:
        yield _NOT_LIVE, "with --live"
    if not args.live or "-" in args.audio:
        yield ["device"], "without --live and a microphone"
    if not args.subtitles:
        yield _CUES, "without --subtitles"
    if not args.initial_prompt:
        yield ["carry_initial_prompt"], "without --initial-prompt"
    if not args.output_dir:
        yield ["output_name", "force", "resume"], "without --output-dir"
    yield ["fp16"], "here: the weights keep the type that convert.py --dtype gave them"
