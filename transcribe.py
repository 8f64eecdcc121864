"""Transcribe audio with Whisper, speculatively if there is a draft model.

python transcribe.py talk.mp3 --model whisper-large-v3 --draft-model distil-large-v3
python transcribe.py *.m4a --model whisper-medium -f srt -o subtitles
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import argparse
import functools
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from decoder import BATCH_SIZE
from demo.pair import demo_model
from distributed.ranks import session
from errors import InputError
from speculative.options import DECLARED
from speculative.row import Stats
from speech import audio
from speech.decoding import Decode
from speech.features import RATE
from speech.formats import FORMATS, Layout, Segment, Transcript
from speech.journal import Journal
from speech.options import TranscribeOptions
from speech.outputs import Output
from speech.rules import TASKS
from speech.transcriber import Transcriber
from speech.transcript import Call, OnWindow
from terminal import cli
from terminal.flags import reading
from terminal.prompt_files import InOrder
from terminal.summary import Summary

STDIN = "-"
Switch = argparse.BooleanOptionalAction
SWITCHES = ("vad", "batched", "word_timestamps", "highlight_words", "verbose")
NEED_WORDS = ("max_line_count", "max_words_per_line", "highlight_words")
THRESHOLDS = {
    "compression-ratio": "retry a window if its text compresses better than X: it repeats itself",
    "logprob": "retry a window if its tokens' mean log-probability is below X",
    "no-speech": "take a window as silent if silence is more probable than X and its text uncertain",
}


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="transcribe.py", description="Transcribe audio with Whisper and speculative decoding."
    )
    flag = parser.add_argument
    defaults = TranscribeOptions()
    # fmt: off
    flag("audio", nargs="+", metavar="FILE",
         help="an audio file, or a video; - reads standard input")
    flag("--model", type=cli.name, help=f"{cli.MODEL} (default: the demo models)")
    flag("--draft-model", type=cli.name,
         help="a smaller one with the same vocabulary, such as distil-large-v3 (default: none, or the demo models' own)")
    flag("--num-draft", default="auto", **reading("num_draft"),
         help=f"{DECLARED['num_draft'].help} (default: auto)")
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="files to transcribe in one batch (default: %(default)s)")
    flag("--task", choices=TASKS, default=defaults.task,
         help="translate: into English (default: %(default)s)")
    flag("--language",
         help="spoken language: a code or its name in any language (default: detected in the first window)")
    flag("--temperature", "--temp", type=float, default=defaults.temperature, metavar="X",
         help="0: greedy; a window that fails is retried at 0.2 more, up to 1 (default: %(default)s)")
    flag("--best-of", type=cli.positive, default=defaults.best_of, metavar="N",
         help="at temperatures above 0, keep the best of N texts (default: %(default)s)")
    flag("--seed", type=cli.whole, default=defaults.seed, metavar="N", help="random seed")
    flag("--initial-prompt", default="", metavar="TEXT",
         help="text that could precede the audio, with names spelled as you want them")
    flag("--condition-on-previous-text", action=Switch, default=True,
         help="prompt each window with the text before it (default: yes)")
    for name, text in THRESHOLDS.items():
        flag(f"--{name}-threshold", type=optional(float), metavar="X",
             default=getattr(defaults, f"{name.replace('-', '_')}_threshold"),
             help=f"{text}; none: never (default: %(default)s)")
    flag("--clip-timestamps", type=seconds, default=(), metavar="LIST",
         help="parts to transcribe, in seconds: start,end,start,... (default: all)")
    flag("--vad", action=Switch,
         help="transcribe only what a voice detector takes for speech")
    flag("--batched", action=Switch,
         help="decode windows cut at pauses in one batch; the text may differ; needs --vad")
    flag("--word-timestamps", action=Switch,
         help="find when each word is spoken, for subtitles and JSON")
    flag("--hallucination-silence-threshold", type=optional(float), metavar="X",
         help="leave out words invented in a silence of at least X s; needs --word-timestamps")
    flag("--max-line-width", type=optional(cli.positive), metavar="X",
         help="break the lines of subtitles after X characters at most")
    flag("--max-line-count", type=optional(cli.positive), metavar="N",
         help="lines of a subtitle, for --max-line-width; needs --word-timestamps")
    flag("--max-words-per-line", type=optional(cli.positive), metavar="N",
         help="words of a subtitle; needs --word-timestamps")
    flag("--highlight-words", action=Switch,
         help="underline each word of a subtitle while it is spoken; needs --word-timestamps")
    flag("--output-format", "-f", choices=(*FORMATS, "all"), default="txt",
         help="all: one file per format, needs --output-dir (default: txt)")
    flag("--output-dir", "-o", type=cli.path, metavar="FOLDER",
         help="write files here, named after the audio file (default: print)")
    flag("--output-name", type=cli.name, metavar="NAME",
         help="name of the output, for a single audio file")
    flag("--force", action="store_true", help="replace files that exist")
    flag("--resume", action="store_true",
         help="go on with a run that was interrupted: pass over what has its files")
    flag("--verbose", action=Switch, help="print statistics to stderr at the end")
    # fmt: on
    parser.set_defaults(**dict.fromkeys(SWITCHES, False))
    args = parser.parse_with_files(argv)
    for name in NEED_WORDS:
        if getattr(args, name) and not args.word_timestamps:
            parser.error(f"--{name.replace('_', '-')} needs --word-timestamps")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the demo models bring their own")
    if args.output_format == "all" and not args.output_dir:
        parser.error("--output-format all needs --output-dir")
    for line in ineffective(args):
        complain(line)
    return args


def ineffective(args: argparse.Namespace) -> Iterator[str]:
    """A line for each flag that has no effect beside the others."""

    def given(*names: str) -> Iterator[str]:
        return (
            f"--{name.replace('_', '-')} has no effect" for name in names if getattr(args, name)
        )

    if args.output_format not in ("srt", "vtt", "all"):
        for line in given(*Layout.__annotations__):
            yield f"{line} with --output-format {args.output_format}"
    elif not args.max_line_width:
        for line in given("max_line_count"):
            yield f"{line} without --max-line-width"
    elif args.max_line_count:
        for line in given("max_words_per_line"):
            yield f"{line} with --max-line-width and --max-line-count"
    if not args.output_dir:
        for line in given("output_name", "force", "resume"):
            yield f"{line} without --output-dir"
    elif args.force:
        for line in given("resume"):
            yield f"{line} with --force"


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of a flag that is off for none, or None as mlx_whisper has it."""

    @functools.wraps(parse)
    def parse_or_none(text: str) -> Any:
        return None if text in ("none", "None") else parse(text)

    return parse_or_none


def seconds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def file_names(sources: Sequence[str], output_name: str | None, output: Output) -> list[str]:
    """The names of each sound's files, without the format. InputError if two are the same."""
    names = ["stdin" if source == STDIN else Path(source).stem for source in sources]
    if output_name:
        if len(names) > 1:
            raise InputError("--output-name works for one file only")
        before, _, format = output_name.rpartition(".")
        names = [before if before and format in output.formats else output_name]
    name, count = Counter(names).most_common(1)[0]
    if output.folder and count > 1:
        raise InputError(f"{count} files would be written as {name}; transcribe them one by one")
    return names


def complain(line: str) -> None:
    cli.write(cli.one_line(line), sys.stderr)


class Printer:
    """Prints what comes of each sound, in the order of the files."""

    def __init__(self, sources: Sequence[str], output: Output, late: float, bar: tqdm):
        """late: the last second at which a clip begins"""
        self._sources, self._output, self._late, self._bar = sources, output, late, bar
        self._several = len(sources) > 1 and not output.folder
        self._lines = InOrder(partial(cli.write, end=""))
        if self._several and output.format == "vtt":  # one header for all
            cli.write("WEBVTT\n\n", end="")

    def open_sound(self, index: int) -> tuple[np.ndarray, OnWindow]:
        """A sound's samples, and what prints its windows."""
        source = self._sources[index]
        samples = audio.read(source, report=complain)
        if self._output.streamed and self._several:
            self._lines.put(index, f"{source}:\n", finished=False)
        length = len(samples) / RATE
        if self._late > length:
            complain(
                f"{source}: --clip-timestamps has no effect from {self._late:g} s on: "
                f"the audio ends at {length:.1f} s"
            )
        self._bar.total = (self._bar.total or 0) + length
        shown = 0.0  # seconds

        def on_window(segments: Sequence[Segment], seconds: float, stats: Stats) -> None:
            nonlocal shown
            if self._output.streamed:
                text = "".join(f"{segment.text.strip()}\n" for segment in segments)
                self._lines.put(index, text, finished=False)
            self._bar.update(seconds - shown)
            shown = seconds

        return samples, on_window

    def end(self, index: int, transcript: Transcript | None) -> None:
        """Print what is left of a sound. None: it could not be read."""
        text = ""
        if transcript:
            title = cli.one_line(self._sources[index]) if self._several else None
            text = self._output.text(transcript, title)
        self._lines.put(index, text)


def transcribe_files(
    transcriber: Transcriber,
    sources: Sequence[str],
    options: TranscribeOptions,
    output: Output,
    names: Sequence[str],
    settings: int,
    batch_size: int,
    verbose: bool,
) -> None:
    """Transcribe all files: to stdout in their order, txt segment by segment, or to files under these names. Report
    those that cannot be read or written; they make the exit code 1.

    settings: a number for what texts depend on beside the sound
    """
    began = time.perf_counter()
    summary = Summary(unit="windows")
    failed = 0
    unwritten = 0
    played = 0.0
    with tqdm(desc="audio", unit="s", disable=None) as bar:
        printer = Printer(sources, output, max(options.clip_timestamps[::2], default=0), bar)

        def transcribe(index: int, decode: Decode, call: Call) -> Transcript:
            samples, on_window = printer.open_sound(index)
            sound = transcriber.sound(samples, options, on_window)
            if not output.folder:
                return sound.transcript(decode, call)
            key = zlib.crc32(samples.tobytes(), settings)
            with Journal(output.journal(names[index]), key, decode, call) as journal:
                return sound.transcript(journal.decode, journal.call)

        transcripts = (partial(transcribe, i) for i in range(len(sources)))
        for index, transcript in transcriber.run(transcripts, options, batch_size):
            if isinstance(transcript, InputError):
                failed += 1
                complain(str(transcript))
                printer.end(index, None)
                continue
            if output.folder:
                unwritten += not write_files(output, transcript, names[index])
            printer.end(index, transcript)
            summary.texts += 1
            summary.stats += transcript.stats
            played += transcript.duration
            if verbose and bar.disable:
                complain(f"{summary.texts}/{len(sources)} files, {played:.0f} s of audio")
    if verbose:
        import mlx.core as mx  # after decoder, which loads a faster BLAS first

        seconds = time.perf_counter() - began
        summary.peak_memory = mx.get_peak_memory() / 1e9
        print(f"{played:.1f} s of audio in {seconds:.1f} s", file=sys.stderr)
        print("\n".join(summary.lines(seconds)), file=sys.stderr)
    if failed:
        raise InputError(f"{failed} of {len(sources)} files were not transcribed")
    if unwritten:
        raise InputError(f"{unwritten} of {len(sources)} transcripts were printed, not written")


def write_files(output: Output, transcript: Transcript, name: str) -> bool:
    """Write a transcript's files and return whether that went well. What cannot be written is printed."""
    failures = list(output.write(transcript, name))
    for error, text in failures:
        complain(f"{error.filename}: {error.strerror}; the transcript is printed instead")
        cli.write(text, end="")
    if not failures:
        output.journal(name).unlink(missing_ok=True)
    return not failures


def fields(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The flags that are fields of a dataclass."""
    return {name: value for name, value in vars(args).items() if name in kind.__annotations__}


def run_command(args: argparse.Namespace) -> None:
    needs_silence = args.output_format in ("json", "all")
    options = TranscribeOptions(**fields(args, TranscribeOptions), no_speech_probs=needs_silence)
    layout = Layout(**fields(args, Layout))
    output = Output(args.output_format, args.output_dir, layout, args.force, args.resume)
    names = file_names(args.audio, args.output_name, output)
    if output.folder:
        output.folder.mkdir(parents=True, exist_ok=True)
    missing = [i for i, name in enumerate(names) if not output.folder or output.check(name)]
    if len(missing) < len(names):
        complain(f"{len(names) - len(missing)} of {len(names)} files were transcribed before")
    if not missing:
        return
    model = args.model
    draft_model = args.draft_model
    if model is None:
        model = demo_model("speech/target")
        draft_model = demo_model("speech/draft")
    transcriber = Transcriber(model, draft_model if args.num_draft else None)
    cli.note_types(transcriber.model, transcriber.decoder.draft_model)
    options = transcriber.resolve(options)
    texts_depend_on = repr((str(model), replace(options, num_draft=0)))
    transcribe_files(
        transcriber,
        [args.audio[i] for i in missing],
        options,
        output,
        [names[i] for i in missing],
        zlib.crc32(texts_depend_on.encode()),
        args.batch_size,
        args.verbose,
    )


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("transcribe.py runs as one process, not under mlx.launch")
        run_command(parse_args())


if __name__ == "__main__":
    cli.run(main)
