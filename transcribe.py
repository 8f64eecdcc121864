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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from decoder import BATCH_SIZE
from demo.pair import demo_model
from distributed.ranks import session
from errors import InputError
from speculative.options import DECLARED
from speech import audio
from speech.features import RATE
from speech.formats import FORMATS, Layout, Segment, Transcript
from speech.rules import TASKS, language_code
from speech.transcriber import Transcriber
from speech.transcript import Asked
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
    flag, asked = parser.add_argument, Asked()
    text = "an audio file, or a video; - reads standard input"
    flag("audio", nargs="+", metavar="FILE", help=text)
    flag("--model", type=cli.name, help=f"{cli.MODEL} (default: the demo models)")
    text = "a smaller one with the same vocabulary, such as distil-large-v3 (default: none, or the demo models' own)"
    flag("--draft-model", type=cli.name, help=text)
    text = f"{DECLARED['num_draft'].help} (default: auto)"
    flag("--num-draft", default="auto", help=text, **reading("num_draft"))
    text = "files to transcribe in one batch (default: %(default)s)"
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N", help=text)
    text = "translate: into English (default: %(default)s)"
    flag("--task", choices=TASKS, default=asked.task, help=text)
    text = "spoken language: a code or its English name (default: detected in the first window)"
    flag("--language", help=text)
    text = "0: greedy; a window that fails is retried at 0.2 more, up to 1 (default: %(default)s)"
    flag("--temperature", "--temp", type=float, default=asked.temperature, metavar="X", help=text)
    text = "at temperatures above 0, keep the best of N texts (default: %(default)s)"
    flag("--best-of", type=cli.positive, default=asked.best_of, metavar="N", help=text)
    flag("--seed", type=cli.whole, default=asked.seed, metavar="N", help="random seed")
    text = "text that could precede the audio, with names spelled as you want them"
    flag("--initial-prompt", default="", metavar="TEXT", help=text)
    how: dict[str, Any] = dict(action=argparse.BooleanOptionalAction, default=True)
    text = "prompt each window with the text before it (default: yes)"
    flag("--condition-on-previous-text", **how, help=text)
    for name, text in THRESHOLDS.items():
        default = getattr(asked, f"{name.replace('-', '_')}_threshold")
        text = f"{text}; none: never (default: %(default)s)"
        flag(f"--{name}-threshold", type=number, default=default, metavar="X", help=text)
    text = "parts to transcribe, in seconds: start,end,start,... (default: all)"
    flag("--clip-timestamps", type=seconds, default=(), metavar="LIST", help=text)
    text = "transcribe only what a voice detector takes for speech"
    flag("--vad", action="store_true", help=text)
    text = "decode windows cut at pauses in one batch; the text may differ; needs --vad"
    flag("--batched", action="store_true", help=text)
    text = "find when each word is spoken, for subtitles and JSON"
    flag("--word-timestamps", action="store_true", help=text)
    text = "leave out words invented in a silence of at least X s; needs --word-timestamps"
    flag("--hallucination-silence-threshold", type=float, metavar="X", help=text)
    text = "break the lines of subtitles after X characters at most"
    flag("--max-line-width", type=cli.positive, metavar="X", help=text)
    text = "lines of a subtitle, for --max-line-width; needs --word-timestamps"
    flag("--max-line-count", type=cli.positive, metavar="N", help=text)
    text = "words of a subtitle; needs --word-timestamps"
    flag("--max-words-per-line", type=cli.positive, metavar="N", help=text)
    text = "underline each word of a subtitle while it is spoken; needs --word-timestamps"
    flag("--highlight-words", action="store_true", help=text)
    text = "all: one file per format, needs --output-dir (default: txt)"
    flag("--output-format", "-f", choices=(*FORMATS, "all"), default="txt", help=text)
    text = "write files here, named after the audio file (default: print)"
    flag("--output-dir", "-o", type=cli.path, metavar="FOLDER", help=text)
    text = "name of the output, for a single audio file"
    flag("--output-name", type=cli.name, metavar="NAME", help=text)
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
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


def names_of(args) -> list[str]:
    """The names of each sound's files, without the format. InputError if two are the same."""
    names = ["stdin" if name == STDIN else Path(name).stem for name in args.audio]
    if args.output_name:
        if len(names) > 1:
            raise InputError("--output-name works for one file only")
        if not args.output_dir:
            print("--output-name has no effect without --output-dir", file=sys.stderr)
        names = [args.output_name]
    twice, times = Counter(names).most_common(1)[0]
    if args.output_dir and times > 1:
        raise InputError(f"{times} files would be written as {twice}; transcribe them one by one")
    return names


def titled(name: str, form: str, text: str) -> str:
    """One of several transcripts that are printed, with its sound's name."""
    if form == "json":
        return json.dumps({"file": name} | json.loads(text), ensure_ascii=False) + "\n"
    return text.replace("WEBVTT", f"NOTE {name}", 1) if form == "vtt" else f"{name}:\n{text}"


def fields(args, kind: type) -> dict[str, Any]:
    """The flags that are fields of a dataclass."""
    return {name: value for name, value in vars(args).items() if name in kind.__annotations__}


def write_files(transcript: Transcript, path: Path, format: str, layout: Layout) -> None:
    """Write `path` with the format, or one file for each format if it is "all"."""
    for each in FORMATS if format == "all" else [format]:
        Path(f"{path}.{each}").write_text(FORMATS[each](transcript, layout), encoding="utf-8")


def transcribe_files(args, transcriber: Transcriber, asked: Asked, names: list[str]) -> None:
    """Transcribe all files: to stdout in their order, txt segment by segment, or to files under these names. Report
    those that cannot be read; they make the exit code 1."""
    failed, summary, played = 0, Summary(unit="windows"), 0.0
    began = time.perf_counter()
    output = InOrder(partial(cli.write, end=""))
    layout = Layout(**fields(args, Layout))
    streamed = args.output_format == "txt" and not args.output_dir
    several = len(names) > 1 and not args.output_dir
    if several and args.output_format == "vtt":  # one header for all
        cli.write("WEBVTT\n\n", end="")

    def complain(line: str) -> None:
        cli.write(cli.one_line(line), sys.stderr)

    def open_sound(index: int, name: str, bar):
        samples = audio.read(name, report=complain)
        if streamed and several:
            output.put(index, f"{name}:\n", finished=False)
        length = len(samples) / RATE
        if (late := max(asked.clip_timestamps[::2], default=0)) > length:
            what = f"--clip-timestamps has no effect from {late:g} s on"
            complain(f"{name}: {what}: the audio ends at {length:.1f} s")
        bar.total = (bar.total or 0) + length
        before = [0.0]

        def heard(segments: Sequence[Segment], seconds: float, _) -> None:
            if streamed:
                text = "".join(f"{each.text.strip()}\n" for each in segments)
                output.put(index, text, finished=False)
            bar.update(seconds - before[0])
            before[0] = seconds

        return samples, heard

    with tqdm(desc="audio", unit="s", disable=None) as bar:
        sounds = (partial(open_sound, i, name, bar) for i, name in enumerate(args.audio))
        for index, found in transcriber.transcribe_all(sounds, asked, args.batch_size):
            if isinstance(found, InputError):
                failed += 1
                complain(str(found))
                output.put(index, "")
                continue
            if args.output_dir:
                write_files(found, args.output_dir / names[index], args.output_format, layout)
            printed = not (streamed or args.output_dir)
            text = FORMATS[args.output_format](found, layout) if printed else ""
            title = cli.one_line(args.audio[index])
            output.put(index, titled(title, args.output_format, text) if several and text else text)
            summary.texts += 1
            summary.stats += found.stats
            played += found.duration
            if args.verbose and bar.disable:
                complain(f"{summary.texts}/{len(names)} files, {played:.0f} s of audio")
    if args.verbose:
        import mlx.core as mx  # after decoder, which loads a faster BLAS first

        seconds = time.perf_counter() - began
        summary.peak_memory = mx.get_peak_memory() / 1e9
        print(f"{played:.1f} s of audio in {seconds:.1f} s", file=sys.stderr)
        print("\n".join(summary.lines(seconds)), file=sys.stderr)
    if failed:
        raise InputError(f"{failed} of {len(args.audio)} files were not transcribed")


def answer(args) -> None:
    """Do what the command line asks for."""
    given = fields(args, Asked)
    given["no_speech_probs"] = args.output_format in ("json", "all")
    asked, names = Asked(**given), names_of(args)
    if args.output_dir:
        args.output_dir.mkdir(parents=True, exist_ok=True)
    model, draft = args.model, args.draft_model
    if model is None:
        model, draft = (demo_model(f"speech/{role}") for role in ("target", "draft"))
    transcriber = Transcriber(model, draft if args.num_draft else None)
    cli.note_types(transcriber.model, transcriber.decoder.draft_model)
    if args.language:
        code = language_code(args.language, transcriber.special.languages)
        asked = replace(asked, language=code)
    transcribe_files(args, transcriber, asked, names)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("transcribe.py runs as one process, not under mlx.launch")
        answer(parse_args())


if __name__ == "__main__":
    cli.run(main)
