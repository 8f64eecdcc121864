"""transcribe.py's flags for the options of a transcript and of its subtitles, which speech/options.py declares."""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from speculative.options import declared_in
from speech.options import Layout, TranscribeOptions
from terminal import cli
from terminal.flags import add_options

_LAYOUT = declared_in(Layout)
_CUES = ("min_cue_seconds", "max_cue_seconds", "reading_speed", "cue_gap")
_OF_WORDS = ("max_line_count", "max_words_per_line", "highlight_words")
_OF_FILES = ("audio_track", "reference", "clip_timestamps", "vad", "batched", "resume")


def add_transcript_flags(parser: cli.Parser) -> None:
    add_options(parser, options=declared_in(TranscribeOptions) | _LAYOUT)


def layout_of(args: argparse.Namespace) -> Layout:
    return Layout(**_given(args, Layout))


def options_of(args: argparse.Namespace, **others: Any) -> TranscribeOptions:
    """The options given as flags, and others. --subtitles brings the times of words."""
    given = _given(args, TranscribeOptions) | others
    if layout_of(args).subtitles:
        given["word_timestamps"] = True
    return TranscribeOptions(**given)


def _given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name in declared_in(kind)}


def unused(args: argparse.Namespace) -> Iterator[tuple[Iterable[str], str]]:
    """Flags that have no effect beside the others, and why."""
    layout = layout_of(args)
    if args.output_format not in ("srt", "vtt", "all"):
        yield _LAYOUT, f"with --output-format {args.output_format}"
    elif layout.subtitles:
        yield ["max_words_per_line", "highlight_words"], "with --subtitles"
    else:
        yield _CUES, "without --subtitles"
        if not options_of(args).word_timestamps:
            yield _OF_WORDS, "without --word-timestamps"
        elif not layout.max_line_width:
            yield ["max_line_count"], "without --max-line-width"
        elif layout.max_line_count:
            yield ["max_words_per_line"], "with --max-line-width and --max-line-count"
    if args.live:
        yield _OF_FILES, "with --live"
    if not args.live or "-" in args.audio:
        yield ["device"], "without --live and a microphone"
    if "initial_prompt" not in args:
        yield ["carry_initial_prompt"], "without --initial-prompt"
    if not args.output_dir:
        yield ["output_name", "force", "resume"], "without --output-dir"
    yield ["hallucination_silence_threshold"], "here: --vad leaves out what is invented in silence"
    yield ["fp16"], "here: the weights keep the type that convert.py --dtype gave them"
