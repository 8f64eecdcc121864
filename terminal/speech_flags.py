"""transcribe.py's flags for the options of a transcript and of its subtitles, which speech/options.py declares."""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from speculative.options import declared_in
from speech.options import Layout, TranscribeOptions
from terminal import cli
from terminal.flags import add_options

_LAYOUT = declared_in(Layout)
FOREIGN = {  # mlx_whisper's flags
    "fp16": "the weights keep the type that convert.py --dtype gave them",
    "hallucination_silence_threshold": "--vad leaves out what is invented in silence",
    "prepend_punctuations": "the marks are openai-whisper's",
    "append_punctuations": "the marks are openai-whisper's",
}
_CUES = ("min_cue_seconds", "max_cue_seconds", "reading_speed", "cue_gap")
_OF_FILES = ("audio_track", "reference", "clip_timestamps", "vad", "batched", "resume")


def add_transcript_flags(parser: cli.Parser) -> None:
    add_options(parser, options=declared_in(TranscribeOptions) | _LAYOUT)


def layout_of(args: argparse.Namespace) -> Layout:
    return Layout(**_given(args, Layout))


def options_of(args: argparse.Namespace, **others: Any) -> TranscribeOptions:
    """The options given as flags, and others. Cues for reading bring the times of words."""
    given = _given(args, TranscribeOptions) | others
    if layout_of(args).makes_cues:
        given["word_timestamps"] = True
    return TranscribeOptions(**given)


def _given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name in declared_in(kind)}


def unused(args: argparse.Namespace) -> Iterator[tuple[Iterable[str], str]]:
    """Flags that have no effect beside the others, and why."""
    if args.output_format not in ("srt", "vtt", "all"):
        yield _LAYOUT, f"with --output-format {args.output_format}"
    elif not layout_of(args).makes_cues:
        yield _CUES, "without --subtitles"
    if args.live:
        yield _OF_FILES, "with --live"
    if not args.live or "-" in args.audio:
        yield ["device"], "without --live and a microphone"
    if "initial_prompt" not in args:
        yield ["carry_initial_prompt"], "without --initial-prompt"
    if not args.output_dir:
        yield ["output_name", "force", "resume"], "without --output-dir"
    for name, reason in FOREIGN.items():
        yield [name], f"here: {reason}"
