"""Transcripts on the terminal: printed in the order of their files or while somebody speaks, written, and summed up."""

import shutil
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import numpy as np
from tqdm import tqdm

from common.errors import InputError
from common.files import stamp
from common.reporting import reporter
from families.loading import find
from speculative.row import Stats
from speculative.tasks import Task
from speech import audio
from speech.features import RATE
from speech.journal import resumed
from speech.live import Heard
from speech.options import TranscribeOptions
from speech.outputs import Output
from speech.segments import Segment, Transcript
from speech.transcriber import Transcriber
from speech.transcript import OnWindow
from terminal import cli
from terminal.prompt_files import InOrder
from terminal.summary import Summary

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


WINDOW_SECONDS = 28  # about what a window's text covers


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
        samples = audio.read(source, report=reporter.note, track=self._track)
        if self._output.streamed and self._several:
            self._lines.put(index, f"{source}:\n", finished=False)
        length = len(samples) / RATE
        if self._late > length:
            reporter.note(
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

        windows: list[float] = []  # of the sounds that were opened

        def resume(index: int, samples: np.ndarray, task: Task) -> Task:
            windows.append(len(samples) / (WINDOW_SECONDS * RATE))
            if transcriber.decoder.learner:
                total = sum(windows) * len(sources) / len(windows)
                transcriber.decoder.learner.total = total
            if not output.folder:
                return task
            key = zlib.crc32(samples.tobytes(), zlib.crc32(settings))
            return resumed(task, output.base(names[index]), f"{key:08x}", output.force)

        for index, transcript in transcriber.transcribe_all(sounds, options, batch_size, resume):
            if isinstance(transcript, InputError):
                failed += 1
                reporter.note(str(transcript))
                printer.end(index, None)
                continue
            failed += not write_files(output, transcript, names[index])
            printer.end(index, transcript)
            summary.texts += 1
            summary.stats += transcript.stats
            played += transcript.duration
            if verbose and bar.disable:
                reporter.note(f"{summary.texts}/{len(sources)} files, {played:.0f} s of audio")
    if verbose:
        print_summary(summary, played)
    if failed:
        raise InputError(f"{failed} of {len(sources)} files failed")


def write_files(output: Output, transcript: Transcript, name: str) -> bool:
    """Write a transcript's files, if it is to have some; print what could not be written. Return whether all were."""
    unwritten = list(output.write(transcript, name)) if output.folder else []
    for reason, text in unwritten:
        reporter.note(f"{reason}; the transcript is printed instead")
        cli.write(text, end="")
    return not unwritten


def print_summary(summary: Summary, played: float) -> None:
    import mlx.core as mx  # after decoder, which loads a faster BLAS first

    seconds = time.perf_counter() - summary.began
    summary.peak_memory = mx.get_peak_memory() / 1e9
    for line in (f"{played:.1f} s of audio in {seconds:.1f} s", *summary.lines(seconds)):
        reporter.note(line)


def transcribe_live(
    transcriber: Transcriber,
    source: str,
    device: str | None,
    options: TranscribeOptions,
    output: Output,
    name: str,
    verbose: bool,
) -> None:
    """Transcribe what arrives until it ends or a signal comes: txt to stdout word by word, or on a terminal by lines, with
    the words that may still change below them. Files are written after each utterance."""
    line = ""
    is_terminal = sys.stderr.isatty() and (sys.stdout.isatty() or not output.streamed)

    def show(heard: Heard) -> None:
        nonlocal line, output
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
        writes = ended and line and output.folder  # what cannot be written is printed at the end
        if writes and not list(output.write(live.transcript(), name)):
            output = replace(output, force=True)  # they are its own
        if ended:
            line = ""

    def stop(number: int, _) -> None:
        pieces.put(None)
        signal.signal(number, befores[signal.Signals(number)])  # the second time, at once

    summary = Summary(unit="windows")
    pieces = SimpleQueue[audio.Piece]()
    source = audio.listen(source, pieces, device)
    befores = {number: signal.signal(number, stop) for number in _SIGNALS}
    reporter.note("listening; Ctrl-C ends it")
    live = transcriber.live(options, show)
    transcript = transcriber.decode(live.listen(pieces), options)
    if not write_files(output, transcript, name):
        raise InputError("the transcript could not be written")
    cli.write(output.text(transcript, None), end="")
    if verbose:
        summary.texts = len(transcript.segments)
        summary.stats = transcript.stats
        print_summary(summary, transcript.duration)
