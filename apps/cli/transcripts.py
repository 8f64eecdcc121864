"""Transcripts of files: printed in the order of the files, or written beside each other."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path

import mlx.core as mx
import numpy as np

from apps.cli import cli
from apps.cli.display import Summary
from apps.cli.models import Models, learning_draft, note_types
from apps.speech import audio
from apps.speech.audio import RATE
from apps.speech.call import joined
from apps.speech.formats import FORMATS, lines
from apps.speech.options import Layout, TranscribeOptions
from apps.speech.segments import Segment, Transcript
from apps.speech.transcriber import Transcriber
from decoder import SpeculativeDecoder
from speculative.checkpoints.folder import stamp
from speculative.common.errors import InputError
from speculative.common.files import check_free, hidden, replacing
from speculative.common.reporting import reporter
from speculative.models.loading import find
from speculative.step.driver import Task
from speculative.step.journal import RowJournal, kept
from speculative.step.row import Stats

LANGUAGE = "{language}"  # in a name: the transcript's
WINDOW_SECONDS = 28  # about what a window's text covers


def open_transcriber(models: Models, drafts: bool, serves: bool = False) -> Transcriber:
    """Load a model that transcribes and, if it `drafts`, its draft model, or let it learn one. serves: for serve.py"""
    transcriber = Transcriber(models.model, models.draft_model if drafts else None)
    model = transcriber.model
    if models.distill is not None and drafts:
        draft = learning_draft(model, transcriber.name, models.distill, serves)
        if draft:
            transcriber.decoder = SpeculativeDecoder(model, transcriber.tokenizer, draft)
    note_types(model, transcriber.decoder.draft_model)
    return transcriber


def _there(path: Path) -> Iterator[Path]:
    """What is there of a path, in any language while that is not known."""
    return path.parent.glob(escape(path.name).replace(LANGUAGE, "*"))


@dataclass(frozen=True)
class Output:
    format: str  # one of FORMATS, or all
    folder: Path | None  # None: they are printed
    layout: Layout
    force: bool = False  # replace files that exist
    resume: bool = False  # write only those that do not

    @property
    def streamed(self) -> bool:
        """Whether segments are printed as they come."""
        return self.format == "txt" and not self.folder

    @property
    def formats(self) -> list[str]:
        return [*FORMATS] if self.format == "all" else [self.format]

    def files(self, name: str) -> dict[str, Path]:
        """The files of this name, by format, but with `resume` only those that do not exist."""
        files = {each: Path(f"{name}.{each}") for each in self.formats}
        for each, path in [*files.items()]:
            if self.resume and not self.force and any(map(Path.is_file, _there(path))):
                del files[each]
        return files

    def check(self, name: str) -> bool:
        """Whether there is a file to write. InputError if one may not be replaced, OSError if one cannot be written."""
        files = self.files(name)
        for path in files.values():
            if not path.is_dir():
                for each in _there(path):
                    check_free(each, self.force)
                path.open("ab").close()
                if not path.stat().st_size:
                    path.unlink()
        return bool(files)

    def write(self, transcript: Transcript, name: str) -> Iterator[tuple[str, str]]:
        """Write each file whole or not at all; yield the reason and the text of each that could not be written."""
        for each, path in self.files(name.replace(LANGUAGE, transcript.language)).items():
            text = FORMATS[each](transcript, self.layout)
            try:
                with replacing(path, self.force) as partial:
                    partial.write_text(text, encoding="utf-8")
            except (InputError, OSError) as error:
                yield cli.line_of(error) or "", text
        hidden(Path(name), "journal").unlink(missing_ok=True)

    def save(self, transcript: Transcript, name: str) -> bool:
        """Write the files, if there is a folder; print what could not be written. Return whether all were."""
        unwritten = [*self.write(transcript, name)] if self.folder else []
        for reason, text in unwritten:
            reporter.note(f"{reason}; the transcript is printed instead")
            cli.write(text, end="")
        return not unwritten

    def text(self, transcript: Transcript, title: str | None) -> str:
        """The text to print of a transcript at its end, with a title if it is one of several."""
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


@dataclass
class AudioFiles:
    """Transcribes files: to stdout in their order, txt segment by segment, or to files under their names."""

    transcriber: Transcriber
    sounds: Sequence[tuple[str, str]]  # each with its files, without their formats
    options: TranscribeOptions
    output: Output
    track: str | None  # see audio.read
    speakers: Mapping[int, str]  # by the number of the channel; {}: channels are mixed

    def __post_init__(self):
        self._bar = cli.meter("audio", 0, "s")
        self._opened = 0
        self._done = [0.0] * len(self.sounds)  # seconds
        self._several = len(self.sounds) > 1 and not self.output.folder
        self._lines = cli.InOrder(partial(cli.write, end=""))
        if self._several and self.output.format == "vtt":  # one header for all
            cli.write("WEBVTT\n\n", end="")

    def _task(self, index: int) -> Task:
        """Read and transcribe a sound. Raises InputError if it cannot be read."""
        source, name = self.sounds[index]
        channels = [*self.speakers]
        samples = audio.read(source, report=reporter.note, track=self.track, channels=channels)
        if self.output.streamed and self._several:
            self._lines.put(index, f"{source}:\n", finished=False)
        length = samples.size / RATE
        self._opened += 1
        self._bar.total += length
        learner = self.transcriber.decoder.learner
        if learner:
            windows = self._bar.total / WINDOW_SECONDS
            learner.total = windows * len(self.sounds) / self._opened
        if self.speakers:
            task = self._of_speakers(index, samples)
        else:
            task = self.transcriber.task(samples, self.options, partial(self.show, index))
        del samples  # of an hour 230 MB
        if not self.output.folder:
            return (yield from task)
        model = stamp(find(self.transcriber.name))
        with closing(RowJournal(Path(name), model, seeded=True)) as journal:
            return (yield from kept(task, journal))

    def _of_speakers(self, index: int, channels: np.ndarray) -> Task:
        """Transcribe each channel, [channels, samples], and put what was said in the order of time."""
        each = list[Transcript]()
        for samples in channels:
            each.append((yield from self.transcriber.task(samples, self.options)))
            self.show(index, (), len(each) * len(samples) / RATE, Stats())
        transcript = joined(each, [*self.speakers.values()], channels)
        self.show(index, transcript.segments, self._done[index], transcript.stats)
        return transcript

    def show(self, index: int, segments: Sequence[Segment], seconds: float, stats: Stats) -> None:
        """Print what was said in a window."""
        if self.output.streamed:
            self._lines.put(index, lines(segments, self.output.layout), finished=False)
        self._bar.update(seconds - self._done[index])
        self._done[index] = seconds

    def transcribe(self, batch_size: int, verbose: bool) -> None:
        """Transcribe all. Report those that cannot be read or written; they make the exit code 1."""
        summary = Summary(unit="windows")
        played = 0.0
        failed = 0
        tasks = map(self._task, range(len(self.sounds)))
        with self._bar:
            for index, result in self.transcriber.transcribe_all(tasks, self.options, batch_size):
                if isinstance(result, InputError):
                    reporter.note(str(result))
                    self._lines.put(index, "")
                    failed += 1
                    continue
                source, name = self.sounds[index]
                failed += not self.output.save(result, name)
                title = cli.one_line(source) if self._several else None
                self._lines.put(index, self.output.text(result, title))
                summary.texts += 1
                summary.stats += result.stats
                played += result.duration
        if verbose:
            print_summary(summary, played)
        if failed:
            raise InputError(f"{failed} of {len(self.sounds)} files failed")


def print_summary(summary: Summary, played: float) -> None:
    """On stderr, of so many seconds of sound."""
    summary.peak_memory = mx.get_peak_memory() / 1e9
    seconds = time.perf_counter() - summary.began
    for line in (f"{played:.1f} s of audio in {seconds:.1f} s", *summary.lines()):
        reporter.note(line)
