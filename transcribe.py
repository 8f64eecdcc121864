"""Transcribe audio with Whisper, speculatively if there is a draft model.

python transcribe.py talk.mp3 --model whisper-large-v3 --draft-model distil-large-v3
python transcribe.py *.m4a --model whisper-medium -f srt -o subtitles
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from speech.features import RATE
from speech.formats import FORMATS, Layout, Segment, Transcript
from speech.options import TranscribeOptions
from speech.rules import TASKS
from speech.transcriber import Transcriber
from speech.transcript import OnWindow
from terminal import cli
from terminal.flags import reading
from terminal.prompt_files import InOrder
from terminal.summary import Summary

STDIN = "-"
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
    flag("--audio-track", metavar="TRACK",
         help="sound track of a video: its number, from 1, or its language (default: the file's default)")
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
    flag("--condition-on-previous-text", action=argparse.BooleanOptionalAction, default=True,
         help="prompt each window with the text before it (default: yes)")
    for name, text in THRESHOLDS.items():
        flag(f"--{name}-threshold", type=number, metavar="X",
             default=getattr(defaults, f"{name.replace('-', '_')}_threshold"),
             help=f"{text}; none: never (default: %(default)s)")
    flag("--clip-timestamps", type=seconds, default=(), metavar="LIST",
         help="parts to transcribe, in seconds: start,end,start,... (default: all)")
    flag("--vad", action="store_true",
         help="transcribe only what a voice detector takes for speech")
    flag("--batched", action="store_true",
         help="decode windows cut at pauses in one batch; the text may differ; needs --vad")
    flag("--word-timestamps", action="store_true",
         help="find when each word is spoken, for subtitles and JSON")
    flag("--hallucination-silence-threshold", type=float, metavar="X",
         help="leave out words invented in a silence of at least X s; needs --word-timestamps")
    flag("--max-line-width", type=cli.positive, metavar="X",
         help="break the lines of subtitles after X characters at most")
    flag("--max-line-count", type=cli.positive, metavar="N",
         help="lines of a subtitle, for --max-line-width; needs --word-timestamps")
    flag("--max-words-per-line", type=cli.positive, metavar="N",
         help="words of a subtitle; needs --word-timestamps")
    flag("--highlight-words", action="store_true",
         help="underline each word of a subtitle while it is spoken; needs --word-timestamps")
    flag("--output-format", "-f", choices=(*FORMATS, "all"), default="txt",
         help="all: one file per format, needs --output-dir (default: txt)")
    flag("--output-dir", "-o", type=cli.path, metavar="FOLDER",
         help="write files here, named after the audio file (default: print)")
    flag("--output-name", type=cli.name, metavar="NAME",
         help="name of the output, for a single audio file")
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    # fmt: on
    args = parser.parse_intermixed_args(argv)
    for name in NEED_WORDS:
        if getattr(args, name) and not args.word_timestamps:
            parser.error(f"--{name.replace('_', '-')} needs --word-timestamps")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the demo models bring their own")
    if args.output_format == "all" and not args.output_dir:
        parser.error("--output-format all needs --output-dir")
    return args


def number(text: str) -> float | None:
    return None if text == "none" else float(text)


def seconds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


@dataclass(frozen=True)
class Output:
    """Where transcripts go, and in which format."""

    format: str  # one of FORMATS, or all
    folder: Path | None  # None: they are printed
    layout: Layout

    @property
    def streamed(self) -> bool:
        """Whether segments are printed as they come."""
        return self.format == "txt" and not self.folder

    def write_files(self, transcript: Transcript, name: str) -> None:
        """Write a file of this name, or one for each format."""
        for each in FORMATS if self.format == "all" else [self.format]:
            text = FORMATS[each](transcript, self.layout)
            Path(f"{self.folder}/{name}.{each}").write_text(text, encoding="utf-8")

    def text(self, transcript: Transcript, title: str | None) -> str:
        """What is printed of a transcript at its end, with a title if it is one of several."""
        if self.streamed or self.folder:
            return ""
        text = FORMATS[self.format](transcript, self.layout)
        if not text or title is None:
            return text
        if self.format == "json":
            return json.dumps({"file": title} | json.loads(text), ensure_ascii=False) + "\n"
        if self.format == "vtt":
            return text.replace("WEBVTT", f"NOTE {title}", 1)
        return f"{title}:\n{text}"


def file_names(sources: Sequence[str], output_name: str | None, folder: Path | None) -> list[str]:
    """The names of each sound's files, without the format. InputError if two are the same."""
    names = ["stdin" if source == STDIN else Path(source).stem for source in sources]
    if output_name:
        if len(names) > 1:
            raise InputError("--output-name works for one file only")
        if not folder:
            print("--output-name has no effect without --output-dir", file=sys.stderr)
        names = [output_name]
    name, count = Counter(names).most_common(1)[0]
    if folder and count > 1:
        raise InputError(f"{count} files would be written as {name}; transcribe them one by one")
    return names


def complain(line: str) -> None:
    cli.write(cli.one_line(line), sys.stderr)


class Printer:
    """Prints what comes of each sound, in the order of the files."""

    def __init__(
        self, sources: Sequence[str], output: Output, late: float, track: str | None, bar: tqdm
    ):
        """late: the last second at which a clip begins; track: see audio.read"""
        self._sources, self._output, self._late, self._bar = sources, output, late, bar
        self._track = track
        self._several = len(sources) > 1 and not output.folder
        self._lines = InOrder(partial(cli.write, end=""))
        if self._several and output.format == "vtt":  # one header for all
            cli.write("WEBVTT\n\n", end="")

    def open_sound(self, index: int) -> tuple[np.ndarray, OnWindow]:
        """A sound's samples, and what prints its windows."""
        source = self._sources[index]
        samples = audio.read(source, report=complain, track=self._track)
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
    batch_size: int,
    track: str | None,
    verbose: bool,
) -> None:
    """Transcribe all files: to stdout in their order, txt segment by segment, or to files under these names. Report
    those that cannot be read; they make the exit code 1."""
    began = time.perf_counter()
    summary = Summary(unit="windows")
    failed = 0
    played = 0.0
    with tqdm(desc="audio", unit="s", disable=None) as bar:
        late = max(options.clip_timestamps[::2], default=0)
        printer = Printer(sources, output, late, track, bar)
        sounds = (partial(printer.open_sound, i) for i in range(len(sources)))
        for index, transcript in transcriber.transcribe_all(sounds, options, batch_size):
            if isinstance(transcript, InputError):
                failed += 1
                complain(str(transcript))
                printer.end(index, None)
                continue
            if output.folder:
                output.write_files(transcript, names[index])
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


def fields(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The flags that are fields of a dataclass."""
    return {name: value for name, value in vars(args).items() if name in kind.__annotations__}


def run_command(args: argparse.Namespace) -> None:
    needs_silence = args.output_format in ("json", "all")
    options = TranscribeOptions(**fields(args, TranscribeOptions), no_speech_probs=needs_silence)
    output = Output(args.output_format, args.output_dir, Layout(**fields(args, Layout)))
    names = file_names(args.audio, args.output_name, output.folder)
    if output.folder:
        output.folder.mkdir(parents=True, exist_ok=True)
    model = args.model
    draft_model = args.draft_model
    if model is None:
        model = demo_model("speech/target")
        draft_model = demo_model("speech/draft")
    transcriber = Transcriber(model, draft_model if args.num_draft else None)
    cli.note_types(transcriber.model, transcriber.decoder.draft_model)
    options = transcriber.resolve(options)
    batch_size = args.batch_size
    track = args.audio_track
    transcribe_files(
        transcriber, args.audio, options, output, names, batch_size, track, args.verbose
    )


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("transcribe.py runs as one process, not under mlx.launch")
        run_command(parse_args())


if __name__ == "__main__":
    cli.run(main)
