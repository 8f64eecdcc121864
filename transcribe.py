"""Transcribe audio with Whisper, speculatively if there is a draft model.

python transcribe.py talk.mp3 --model openai/whisper-large-v3 --draft-model distil-whisper/distil-large-v3
python transcribe.py *.m4a --model openai/whisper-medium -f srt -o subtitles
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import argparse
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from tqdm import tqdm

from common.errors import InputError, naming
from common.files import stamp
from decoder import BATCH_SIZE
from demo.pair import demo_model
from distributed.ranks import session
from families.loading import find
from speculative.options import DECLARED
from speculative.row import Stats
from speculative.tasks import Task
from speech import audio
from speech.features import RATE
from speech.formats import FORMATS, Layout
from speech.journal import resumed
from speech.live import Heard
from speech.options import TranscribeOptions
from speech.outputs import Output
from speech.reference import Part, parse
from speech.rules import TASKS
from speech.segments import Segment, Transcript
from speech.subtitles import Rules
from speech.transcriber import Transcriber
from speech.transcript import OnWindow
from terminal import cli
from terminal.flags import check_apart, reading
from terminal.prompt_files import InOrder
from terminal.summary import Summary

STDIN, MICROPHONE = "-", "microphone"
Switch = argparse.BooleanOptionalAction
SWITCHES = (
    "carry_initial_prompt",
    "vad",
    "batched",
    "word_timestamps",
    "highlight_words",
    "subtitles",
    "verbose",
)
NEED_WORDS = ("max_line_count", "max_words_per_line", "highlight_words")
NOT_LIVE = (
    *("audio_track", "reference", "clip_timestamps", "vad", "batched", "resume"),
    "hallucination_silence_threshold",
)
ELSEWHERE = {  # mlx_whisper's flags for what is decided elsewhere
    "fp16": "the weights keep the type that convert.py --dtype gave them",
}
READING = {  # the numbers of --subtitles that have no flag otherwise
    "min_cue_seconds": "least time that a cue stays, where there is room",
    "max_cue_seconds": "most time that a cue stays",
    "reading_speed": "characters a second to read at most, where there is room",
    "cue_gap": "seconds between two cues",
}
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
    flag("audio", nargs="*", metavar="FILE",
         help="an audio file, or a video; - reads standard input")
    flag("--live", action="store_true",
         help="transcribe the microphone while somebody speaks (needs sounddevice), or with - standard input: raw PCM, 16 kHz, "
         "mono, 16 bits, little-endian")
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
    flag("--carry-initial-prompt", action=Switch,
         help="show every window the initial prompt, not the first only")
    flag("--hotwords", default="", metavar="TEXT", help="words to show every window before its prompt")
    flag("--reference", type=cli.path, metavar="FILE",
         help="a text that the audio's will resemble (txt, srt, vtt, json): drafts are copied from it; for one file")
    flag("--condition-on-previous-text", action=Switch, default=True,
         help="prompt each window with the text before it (default: yes)")
    flag("--suppress-tokens", type=ids, default=defaults.suppress_tokens, metavar="IDS",
         help="tokens never to write, as --suppress-tokens=-1,50; -1: those of the checkpoint (default: -1)")
    for name, text in THRESHOLDS.items():
        flag(f"--{name}-threshold", type=number, metavar="X",
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
    flag("--prepend-punctuations", default=defaults.prepend_punctuations, metavar="MARKS",
         help="marks that belong to the next word (default: %(default)s)")
    flag("--append-punctuations", default=defaults.append_punctuations, metavar="MARKS",
         help="marks that belong to the word before (default: %(default)s)")
    flag("--hallucination-silence-threshold", type=number, metavar="X",
         help="leave out words invented in a silence of at least X s; needs --word-timestamps")
    flag("--max-line-width", type=cli.positive, metavar="X",
         help="break the lines of subtitles after X characters at most")
    flag("--max-line-count", type=cli.positive, metavar="N",
         help="lines of a subtitle, for --max-line-width; needs --word-timestamps")
    flag("--max-words-per-line", type=cli.positive, metavar="N",
         help="words of a subtitle; needs --word-timestamps")
    flag("--highlight-words", action=Switch,
         help="underline each word of a subtitle while it is spoken; needs --word-timestamps")
    flag("--subtitles", action=Switch,
         help="make cues for reading, of srt and vtt, from the times of words and by the numbers below")
    for name, text in READING.items():
        flag(f"--{name.replace('_', '-')}", type=float, metavar="X",
             help=f"{text}; with --subtitles (default: {getattr(Rules, name)})")
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
    for name in ELSEWHERE:
        flag(f"--{name}", help=argparse.SUPPRESS)
    parser.set_defaults(**dict.fromkeys(SWITCHES, False))
    args = parser.parse_with_files(argv)
    if args.live:
        args.audio = args.audio or [MICROPHONE]
        if args.audio not in ([MICROPHONE], [STDIN]):
            parser.error(
                "--live takes no file: it listens to the microphone, or with - to standard input"
            )
    elif not args.audio:
        parser.error("the following arguments are required: FILE")
    if args.reference and len(args.audio) > 1:
        parser.error("--reference is for one audio file")
    args.word_timestamps |= args.subtitles
    for name in NEED_WORDS:
        if getattr(args, name) and not args.word_timestamps:
            parser.error(f"--{name.replace('_', '-')} needs --word-timestamps")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the demo models bring their own")
    if args.output_format == "all" and not args.output_dir:
        parser.error("--output-format all needs --output-dir")
    note_idle(args)
    return args


def note_idle(args: argparse.Namespace) -> None:
    """Say on stderr which flags have no effect beside the others."""
    idle: list[tuple[Iterable[str], str]] = [
        ([name.replace("-", "_")], f"here: {reason}") for name, reason in ELSEWHERE.items()
    ]
    if args.output_format not in ("srt", "vtt", "all"):
        layout = [*Layout.__annotations__, "subtitles"]
        idle.append((layout, f"with --output-format {args.output_format}"))
    elif args.subtitles:
        idle.append((["max_words_per_line", "highlight_words"], "with --subtitles"))
    elif not args.max_line_width:
        idle.append((["max_line_count"], "without --max-line-width"))
    elif args.max_line_count:
        idle.append((["max_words_per_line"], "with --max-line-width and --max-line-count"))
    if args.live:
        idle.append((NOT_LIVE, "with --live"))
    if not args.subtitles:
        idle.append((READING, "without --subtitles"))
    if not args.initial_prompt:
        idle.append((["carry_initial_prompt"], "without --initial-prompt"))
    if not args.output_dir:
        idle.append((["output_name", "force", "resume"], "without --output-dir"))
    for names, reason in idle:
        for name in filter(vars(args).get, names):
            complain(f"--{name.replace('_', '-')} has no effect {reason}")


def number(text: str) -> float | None:
    return None if text in ("none", "None") else float(text)


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(token) for token in text.split(",") if token)


def seconds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def file_names(sources: Sequence[str], output_name: str | None, output: Output) -> list[str]:
    """The names of each sound's files, without the format."""
    names = ["stdin" if source == STDIN else Path(source).stem for source in sources]
    if output_name:
        if len(names) > 1:
            raise InputError("--output-name works for one file only")
        for each in output.formats:
            output_name = output_name.removesuffix(f".{each}")
        names = [output_name]
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
    those that cannot be read or written; they make the exit code 1."""
    model = stamp(find(transcriber.name))
    settings = repr(("transcribe.py", model, replace(options, num_draft=0, reference=()))).encode()
    summary = Summary(unit="windows")
    failed = 0
    played = 0.0
    with tqdm(desc="audio", unit="s", disable=None) as bar:
        late = max(options.clip_timestamps[::2], default=0)
        printer = Printer(sources, output, late, track, bar)
        sounds = (partial(printer.open_sound, i) for i in range(len(sources)))

        def resume(index: int, samples: np.ndarray, task: Task) -> Task:
            if not output.folder:
                return task
            key = zlib.crc32(samples.tobytes(), zlib.crc32(settings))
            return resumed(task, output.base(names[index]), f"{key:08x}", output.force)

        for index, transcript in transcriber.transcribe_all(sounds, options, batch_size, resume):
            if isinstance(transcript, InputError):
                failed += 1
                complain(str(transcript))
                printer.end(index, None)
                continue
            failed += not write_files(output, transcript, names[index])
            printer.end(index, transcript)
            summary.texts += 1
            summary.stats += transcript.stats
            played += transcript.duration
            if verbose and bar.disable:
                complain(f"{summary.texts}/{len(sources)} files, {played:.0f} s of audio")
    if verbose:
        print_summary(summary, played)
    if failed:
        raise InputError(f"{failed} of {len(sources)} files failed")


def write_files(output: Output, transcript: Transcript, name: str) -> bool:
    """Write a transcript's files, if it is to have some; print what could not be written. Return whether all were."""
    unwritten = list(output.write(transcript, name)) if output.folder else []
    for reason, text in unwritten:
        complain(f"{reason}; the transcript is printed instead")
        cli.write(text, end="")
    return not unwritten


def print_summary(summary: Summary, played: float) -> None:
    import mlx.core as mx  # after decoder, which loads a faster BLAS first

    seconds = time.perf_counter() - summary.began
    summary.peak_memory = mx.get_peak_memory() / 1e9
    print(f"{played:.1f} s of audio in {seconds:.1f} s", file=sys.stderr)
    print("\n".join(summary.lines(seconds)), file=sys.stderr)


def transcribe_live(
    transcriber: Transcriber, source: str, options: TranscribeOptions, output: Output, name: str
) -> Transcript:
    """Transcribe what arrives until it ends or Ctrl-C: txt to stdout word by word, or on a terminal by lines, with the
    words that may still change below them."""
    line = ""
    is_terminal = sys.stderr.isatty() and (sys.stdout.isatty() or not output.streamed)

    def show(heard: Heard) -> None:
        nonlocal line
        new = heard.text if line else heard.text.lstrip()
        line += new
        ended = heard.end is not None
        if is_terminal:
            width = shutil.get_terminal_size().columns - 1
            shown = "" if ended else (line + heard.rest).strip()[-width:]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
            new = line if ended else ""
        if output.streamed:
            cli.write(new, end="\n" if ended and line else "")
        if ended:
            line = ""

    def stop(*_) -> None:
        pieces.put(b"")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second time, at once

    pieces = SimpleQueue[bytes]()
    source = audio.listen(source, pieces)
    signal.signal(signal.SIGINT, stop)
    complain("listening; Ctrl-C ends it")
    live = transcriber.live(options, show)
    transcript = transcriber.decode(live.listen(pieces), options)
    if not write_files(output, transcript, name):
        raise InputError("the transcript could not be written")
    cli.write(output.text(transcript, None), end="")
    return transcript


def fields(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The flags that are fields of a dataclass."""
    return {name: value for name, value in vars(args).items() if name in kind.__annotations__}


def read_reference(path: Path) -> tuple[Part, ...]:
    with naming(path):
        try:
            return parse(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text") from None


def run_command(args: argparse.Namespace) -> None:
    values = fields(args, TranscribeOptions)
    values["reference"] = read_reference(args.reference) if args.reference else ()
    needs_silence = args.output_format in ("json", "all")
    options = TranscribeOptions(**values, no_speech_probs=needs_silence)
    rules = {name: value for name, value in fields(args, Rules).items() if value is not None}
    layout = Layout(**fields(args, Layout), reading=Rules(**rules) if args.subtitles else None)
    output = Output(args.output_format, args.output_dir, layout, args.force, args.resume)
    names = file_names(args.audio, args.output_name, output)
    if output.folder:
        written = [
            (f"the transcript of {file}", Path(f"{output.base(name)}.{each}"))
            for file, name in zip(args.audio, names, strict=True)
            for each in output.formats
        ]
        check_apart(args, written)
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
    given = [name for name in ("hotwords", "initial_prompt") if getattr(options, name)]
    prompt = " ".join(getattr(options, name) for name in given)
    tokens = transcriber.tokenizer.encode(prompt, add_special_tokens=False)
    most = transcriber.model.config.max_positions // 2 - 1
    if len(tokens) > most:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        complain(f"{flags}: {len(tokens)} tokens, of which the model sees {most}")
    if args.live:
        summary = Summary(unit="windows")
        transcript = transcribe_live(transcriber, args.audio[0], options, output, names[0])
        summary.texts = len(transcript.segments)
        summary.stats = transcript.stats
        if args.verbose:
            print_summary(summary, transcript.duration)
        return
    sources = [args.audio[i] for i in missing]
    names = [names[i] for i in missing]
    batch_size = args.batch_size
    track = args.audio_track
    transcribe_files(transcriber, sources, options, output, names, batch_size, track, args.verbose)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("transcribe.py runs as one process, not under mlx.launch")
        run_command(parse_args())


if __name__ == "__main__":
    cli.run(main)
