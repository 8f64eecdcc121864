"""Transcribe audio with Whisper, speculatively if there is a draft model.

python transcribe.py talk.mp3 --model openai/whisper-large-v3 --draft-model distil-whisper/distil-large-v3
python transcribe.py *.m4a --model openai/whisper-medium -f srt -o subtitles
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli
from apps.cli.flags import add_options, add_shared, check_apart, check_models, note_unused
from apps.cli.live_transcript import LiveTranscript
from apps.cli.models import Models
from apps.cli.transcripts import LANGUAGE, AudioFiles, Output, open_transcriber
from apps.speech.formats import FORMATS
from apps.speech.options import Layout, TranscribeOptions
from apps.speech.reference import parse
from apps.speech.rules import TASKS
from decoder import BATCH_SIZE
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.options import declared_in
from speculative.text.languages import tag_of

STDIN, MICROPHONE = "-", "microphone"
_OF_CUES = [name for name in declared_in(Layout) if name != "times"]
_CUES = ("min_cue_seconds", "max_cue_seconds", "reading_speed", "cue_gap")
_OF_FILES = ("audio_track", "channels", "reference", "clip_timestamps", "vad", "batched", "resume")


def channels(text: str) -> dict[int, str]:
    """Their speakers, by the number of the channel."""
    sides = {"left": 1, "right": 2}
    named = (map(str.strip, part.partition("=")) for part in text.split(","))
    return {int(sides.get(channel, channel)): name or channel for channel, _, name in named}


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(prog="transcribe.py", description="Transcribe audio, speculatively.")
    flag = parser.add_argument
    # fmt: off
    flag("audio", nargs="*", metavar="FILE", help="an audio file, or a video; - reads standard input")
    flag("--live", action="store_true",
         help="transcribe the microphone while somebody speaks (needs sounddevice), or with - standard input: raw PCM, 16 kHz, "
         "mono, 16 bits, little-endian")
    flag("--device", type=cli.name,
         help="the microphone of --live: its name, a part of that, or its number (default: the system's)")
    add_shared(parser, "--model", "--adapter-path", "--draft-model", "--distill")
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="files to transcribe in one batch (default: %(default)s)")
    flag("--audio-track", metavar="TRACK",
         help="sound track of a video: its number, from 1, or its language (default: the file's default)")
    flag("--channels", type=channels, metavar="LIST", default={},
         help="channels to transcribe apart, with their speakers' names: left=Anna,right=Ben; or 1,2,3 (default: mixed)")
    flag("--reference", type=cli.path, metavar="FILE",
         help="a text that the audio's will resemble (txt, srt, vtt, json): drafts are copied from it; for one file")
    add_options(parser, options=declared_in(TranscribeOptions) | declared_in(Layout))
    flag("--output-format", "-f", choices=(*FORMATS, "all"), default="txt",
         help="all: one file per format, needs --output-dir (default: txt)")
    flag("--output-dir", "-o", type=cli.path, metavar="FOLDER",
         help="write files here, named after the audio file; {folder}: beside it (default: print)")
    flag("--output-name", type=cli.name, metavar="NAME",
         help="name of the output, for a single audio file; or for all a pattern, such as {name}.{language}")
    flag("--force", action="store_true", help="replace files that exist")
    flag("--resume", action="store_true", help="go on with a run that was interrupted: pass over what has its files")
    flag("--verbose", action=argparse.BooleanOptionalAction, default=False, help="print statistics to stderr at the end")
    # fmt: on
    args = parser.parse_with_files(argv)
    if args.live:
        args.audio = args.audio or [MICROPHONE]
        if args.audio not in ([MICROPHONE], [STDIN]):
            parser.error("--live takes no file: it hears the microphone, or with - standard input")
    elif not args.audio:
        parser.error("the following arguments are required: FILE")
    if args.reference and len(args.audio) > 1:
        parser.error("--reference is for one audio file")
    check_models(args, parser)
    if args.distill is not None and args.live:
        parser.error("--distill learns from files: it goes without --live")
    if args.output_format == "all" and not args.output_dir:
        parser.error("--output-format all needs --output-dir")
    given = {name: x for name, x in vars(args).items() if x != parser.get_default(name)}
    note_unused(given, unused(args))
    return args


def _given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name in declared_in(kind)}


def unused(args: argparse.Namespace) -> Iterator[tuple[Iterable[str], str]]:
    """Flags that have no effect beside the others, and why."""
    if args.output_format not in ("txt", "all"):
        yield ["times"], f"with --output-format {args.output_format}"
    if args.output_format not in ("srt", "vtt", "all"):
        yield _OF_CUES, f"with --output-format {args.output_format}"
    elif not Layout(**_given(args, Layout)).makes_cues:
        yield _CUES, "without --subtitles"
    if args.live:
        yield _OF_FILES, "with --live"
    if not args.live or "-" in args.audio:
        yield ["device"], "without --live and a microphone"
    if "initial_prompt" not in args:
        yield ["carry_initial_prompt"], "without --initial-prompt"
    if not args.output_dir:
        yield ["output_name", "force", "resume"], "without --output-dir"


def sounds_and_names(args: argparse.Namespace, output: Output) -> list[tuple[str, str]]:
    """The sounds whose files are not all there, each with its files without formats. Errors: as of `Output.check`."""
    pattern = f"{args.output_dir}/{args.output_name or '{name}'}"
    if len(args.audio) > 1 and "{name}" not in pattern:
        raise InputError("--output-name works for one file only, unless {name} is in it")
    for each in output.formats:
        pattern = pattern.removesuffix(f".{each}")
    spoken = "English" if vars(args).get("task") == TASKS[1] else vars(args).get("language", "")
    pattern = pattern.replace(LANGUAGE, tag_of(spoken) or LANGUAGE)
    sounds = []
    for source in args.audio:
        path = Path("stdin" if source == STDIN else source).absolute()
        name = pattern.replace("{folder}", str(path.parent)).replace("{name}", path.stem)
        sounds.append((source, name))
    if not output.folder:
        return sounds
    written = [
        (f"the transcript of {source}", path)
        for source, name in sounds
        for path in output.files(name).values()
    ]
    check_apart(args, written)
    for _, path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    missing = [(source, name) for source, name in sounds if output.check(name)]
    done = len(sounds) - len(missing)
    if done:
        reporter.note(f"{done} of {len(sounds)} files were transcribed before")
    return missing


def main() -> None:
    args = parse_args()
    has_probs = args.output_format in ("json", "all")
    layout = Layout(**_given(args, Layout))
    given = _given(args, TranscribeOptions) | {"no_speech_probs": has_probs}
    if layout.makes_cues:
        given["word_timestamps"] = True
    if args.reference:  # a byte that is not UTF-8 costs a draft
        given["reference"] = parse(args.reference.read_text(encoding="utf-8-sig", errors="replace"))
    options = TranscribeOptions(**given)
    output = Output(args.output_format, args.output_dir, layout, args.force, args.resume)
    sounds = sounds_and_names(args, output)
    if not sounds:
        return
    transcriber = open_transcriber(Models.of(args, demo="speech/"), bool(options.num_draft))
    if args.live:
        source, name = sounds[0]
        live = LiveTranscript(transcriber, options, output, name)
        live.transcribe(source, args.device, args.verbose)
        return
    files = AudioFiles(transcriber, sounds, options, output, args.audio_track, args.channels)
    files.transcribe(args.batch_size, args.verbose)
    if transcriber.decoder.learner:
        transcriber.decoder.learner.report()


if __name__ == "__main__":
    cli.run(main)
