"""Sound to text with Whisper, speculatively where there is a draft model.

python transcribe.py talk.mp3 --model whisper-large-v3 --draft-model distil-large-v3
python transcribe.py *.m4a --model whisper-medium -f srt -o subtitles
"""

from terminal import interrupts

if __name__ == "__main__":
    interrupts.expect()  # also while what follows is imported

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from decoder import BATCH_SIZE
from demo.pair import demo_model
from distributed.ranks import session
from errors import InputError
from speculative.options import DECLARED
from speech import audio
from speech.features import RATE
from speech.formats import FORMATS, Segment, Transcript
from speech.rules import TASKS, language_code
from speech.transcriber import Transcriber
from speech.transcript import Asked
from terminal import cli
from terminal.flags import reading
from terminal.summary import Summary

STDIN = "-"
THRESHOLDS = {
    "compression-ratio": "try again where text compresses better than this: it is a loop",
    "logprob": "try again where tokens' mean log-probability is lower",
    "no-speech": "silence where it is more probable, and the text unsure",
}
NOT_HERE = {
    "word-timestamps": "timestamps of words",
    "hallucination-silence-threshold": "timestamps of words",
    "vad-filter": "detectors of voices",
}


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(prog="transcribe.py", description="Speculative transcription on MLX.")
    flag, asked = parser.add_argument, Asked()
    flag("audio", nargs="+", metavar="FILE", help="sound, or video with sound; - for stdin")
    flag("--model", type=cli.name, help="a converted Whisper model (default: the embedded pair)")
    text = "a smaller one of the same vocabulary, such as distil-large-v3 (default: none)"
    flag("--draft-model", type=cli.name, help=text)
    text = f"{DECLARED['num_draft'].help} (default: auto)"
    flag("--num-draft", default="auto", help=text, **reading("num_draft"))
    flag(
        "--batch-size",
        type=cli.positive,
        default=BATCH_SIZE,
        metavar="N",
        help="files side by side",
    )
    flag("--task", choices=TASKS, default=asked.task, help="translate: into English")
    flag(
        "--language", help="spoken: a code or an English name (default: as the first window has it)"
    )
    text = "0: greedy; a text that fails is tried again 0.2 higher, up to 1 (default: %(default)s)"
    flag("--temperature", type=float, default=asked.temperature, metavar="X", help=text)
    text = "texts to choose from at temperatures above 0 (default: %(default)s)"
    flag("--best-of", type=cli.positive, default=asked.best_of, metavar="N", help=text)
    flag("--seed", type=cli.whole, default=asked.seed, metavar="N", help="of what is sampled")
    text = "text that might come before, with names as you spell them"
    flag("--initial-prompt", default="", metavar="TEXT", help=text)
    flag(
        "--condition-on-previous-text",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let each window go on from the text before it (default: yes)",
    )
    for name, text in THRESHOLDS.items():
        default = getattr(asked, f"{name.replace('-', '_')}_threshold")
        text = f"{text}; none: never (default: %(default)s)"
        flag(f"--{name}-threshold", type=number, default=default, metavar="X", help=text)
    text = "parts to transcribe, in seconds: start,end,start,... (default: all)"
    flag("--clip-timestamps", type=seconds, default=(), metavar="LIST", help=text)
    text = "all: a file of each; needs --output-dir (default: txt)"
    flag("--output-format", "-f", choices=(*FORMATS, "all"), default="txt", help=text)
    text = "write files here, named as the sound (default: print)"
    flag("--output-dir", "-o", type=cli.path, metavar="FOLDER", help=text)
    flag("--output-name", type=cli.name, metavar="NAME", help="another name for the one file")
    flag("--verbose", action="store_true", help="end with statistics on stderr")
    for name in NOT_HERE:
        flag(f"--{name}", nargs="?", const=True, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args(argv)
    for name, what in NOT_HERE.items():
        if getattr(args, name.replace("-", "_")) is not None:
            parser.error(f"--{name}: there are no {what} here")
    if args.draft_model and not args.model:
        parser.error("--draft-model needs --model; the embedded pair has a draft of its own")
    if args.output_format == "all" and not args.output_dir:
        parser.error("--output-format all needs --output-dir")
    return args


def number(text: str) -> float | None:
    return None if text == "none" else float(text)


def seconds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def names_of(args) -> list[str]:
    """What each sound's files are called, without the format. InputError for two of one name."""
    names = ["stdin" if name == STDIN else Path(name).stem for name in args.audio]
    if args.output_name:
        if len(names) > 1:
            raise InputError("--output-name is for one file")
        names = [args.output_name]
    twice, times = Counter(names).most_common(1)[0]
    if args.output_dir and times > 1:
        raise InputError(f"{times} files would be written as {twice}: transcribe them one by one")
    return names


class Output:
    """Transcripts on stdout in the order of the sounds, those in txt as soon as there is a segment, or in files."""

    def __init__(self, args):
        self._format, self._folder = args.output_format, args.output_dir
        self._names = names_of(args)
        self._texts = ["" for _ in args.audio]
        self._done = [False for _ in args.audio]
        self._next = 0  # whose text is printed as it comes
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)

    def heard(self, index: int, segments: Sequence[Segment]) -> None:
        """Of this sound there are more segments."""
        if self._format == "txt" and not self._folder:
            self._texts[index] += "".join(f"{each.text.strip()}\n" for each in segments)
            self._print()

    def finished(self, index: int, transcript: Transcript | None) -> None:
        """A sound is done, or failed."""
        if transcript and self._folder:
            formats = FORMATS if self._format == "all" else [self._format]
            for each in formats:
                file = self._folder / f"{self._names[index]}.{each}"
                file.write_text(FORMATS[each](transcript), encoding="utf-8")
        elif transcript and self._format != "txt":
            self._texts[index] = FORMATS[self._format](transcript)
        self._done[index] = True
        self._print()

    def _print(self) -> None:
        while self._next < len(self._texts):
            if text := self._texts[self._next]:
                with tqdm.external_write_mode(sys.stdout):
                    print(text, end="", flush=True)
                self._texts[self._next] = ""
            if not self._done[self._next]:
                return
            self._next += 1


def transcribe_files(args, transcriber: Transcriber, asked: Asked, output: Output) -> None:
    """Transcribe all files; those that cannot be read are reported, and make the exit code 1."""
    failed, summary, played = 0, Summary(unit="windows"), 0.0
    began = time.perf_counter()

    def complain(line: str) -> None:
        with tqdm.external_write_mode(sys.stderr):
            print(cli.one_line(line), file=sys.stderr)

    def open_sound(index: int, name: str, bar):
        samples = audio.read(name, report=complain)
        bar.total = (bar.total or 0) + len(samples) / RATE
        before = [0.0]

        def heard(segments: Sequence[Segment], seconds: float, _) -> None:
            output.heard(index, segments)
            bar.update(seconds - before[0])
            before[0] = seconds

        return samples, heard

    with tqdm(desc="sound", unit="s", disable=None) as bar:
        sounds = (partial(open_sound, i, name, bar) for i, name in enumerate(args.audio))
        for index, found in transcriber.transcribe_all(sounds, asked, args.batch_size):
            if isinstance(found, InputError):
                failed += 1
                complain(str(found))
                output.finished(index, None)
                continue
            output.finished(index, found)
            summary.texts += 1
            summary.stats += found.stats
            played += found.duration
    if args.verbose:
        import mlx.core as mx  # after decoder, which has it find a faster BLAS

        seconds = time.perf_counter() - began
        summary.peak_memory = mx.get_peak_memory() / 1e9
        print(f"{played:.1f} s of sound in {seconds:.1f} s", file=sys.stderr)
        print("\n".join(summary.lines(seconds)), file=sys.stderr)
    if failed:
        raise InputError(f"{failed} of {len(args.audio)} files were not transcribed")


def answer(args) -> None:
    """Do what the command line asks for."""
    given = {name: value for name, value in vars(args).items() if name in Asked.__annotations__}
    given["no_speech_probs"] = args.output_format in ("json", "all")
    asked, output = Asked(**given), Output(args)
    model, draft = args.model, args.draft_model
    if model is None:
        model, draft = (demo_model(f"speech/{role}") for role in ("target", "draft"))
    transcriber = Transcriber(model, draft if args.num_draft else None)
    if args.language:
        code = language_code(args.language, transcriber.special.languages)
        asked = replace(asked, language=code)
    transcribe_files(args, transcriber, asked, output)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("transcribe.py runs in one process, not under mlx.launch")
        answer(parse_args())


if __name__ == "__main__":
    cli.run(main)
