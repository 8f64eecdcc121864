"""Loads a Whisper pair and transcribes sounds window by window, many together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from apps.speech.audio import RATE, floats
from apps.speech.features import HOP, log_mel
from apps.speech.live.live import PAUSE, Live, OnHeard
from apps.speech.options import TranscribeOptions
from apps.speech.pipeline import Pipeline
from apps.speech.reference import Reference
from apps.speech.rules import TASKS, Special
from apps.speech.segments import Segment, Transcript, Window
from apps.speech.timeline import Timeline
from apps.speech.voice import first_speech, last_pause, probabilities
from decoder import SpeculativeDecoder, load
from speculative.checkpoints.folder import read_json
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.loading import find
from speculative.models.whisper import Whisper
from speculative.step.driver import Task, result_of
from speculative.step.row import Row, Stats
from speculative.text.generation import FILE as GENERATION

_TOGETHER = 32  # windows of a sound, if batched: their features stay in memory

OnWindow = Callable[[Sequence[Segment], float, Stats], object]


class Sound:
    def __init__(
        self, pipeline: Pipeline, samples: np.ndarray, on_window: OnWindow = lambda *_: None
    ):
        """samples: mono, in [-1, 1], at RATE; on_window: gets each window's segments, the seconds done, and the stats so far"""
        options = pipeline.options
        self._pipeline, self._on_window = pipeline, on_window
        self._duration = len(samples) / RATE
        self._features = log_mel(samples, pipeline.config.num_mel_bins)
        self._speech = probabilities(samples) if options.vad else None  # of each frame
        self._timeline = Timeline(self._features, self._speech)
        if self._speech is not None:
            self._features = self._features[self._timeline.frames]
            self._speech = self._speech[self._timeline.frames]
        self._clips = self._timeline.clips(options.clip_timestamps)
        self._first_speech = 0  # a frame
        if pipeline.language is None and not options.vad:
            begin = self._clips[0][0]
            self._first_speech = begin + first_speech(samples[begin * HOP :])
        about = pipeline.tokens, pipeline.special, pipeline.max_tokens
        self._reference = Reference(options.reference, *about)

    def steps(self) -> Task:
        pipeline = self._pipeline
        rest: list[int] = []  # the unfinished text at the end of the last window
        for seek, end in self._clips:
            while seek < end:
                windows = self._next_windows(seek, end, rest)
                if pipeline.language is None:
                    spoken = windows[0]
                    first = self._first_speech
                    if first - seek > pipeline.longest // 2:
                        spoken = pipeline.window(self._features[first : first + pipeline.longest])
                    pipeline.language, _ = yield from pipeline.detect(spoken)
                windows = yield from pipeline.decode(windows, pipeline.language)
                windows = yield from pipeline.cut(windows, self._timeline)
                for window in windows:
                    segments = pipeline.append(window, self._timeline)
                    rest = window.rest
                    self._reference.follow([token for s in segments for token in s.tokens])
                    seek += window.advance
                    self._on_window(segments, self._timeline.seconds(seek), pipeline.stats)
        return pipeline.transcript(self._duration)

    def _next_windows(self, seek: int, end: int, rest: list[int]) -> list[Window]:
        """The next window; or with `batched` some that end in pauses, in their second halves. rest: how its text begins"""
        pipeline = self._pipeline
        batched = pipeline.options.batched
        windows = list[Window]()
        while seek < end and len(windows) < (_TOGETHER if batched else 1):
            size = min(pipeline.longest, end - seek)
            if batched and self._speech is not None and end - seek > size:
                half = size // 2
                size = half + last_pause(self._speech[seek + half : seek + size])
            draft = self._reference.draft(self._timeline.seconds(seek), rest)
            windows.append(pipeline.window(self._features[seek : seek + size], seek, draft))
            seek += size
        return windows


class Transcriber:
    """A Whisper model with an optional draft model. Raises InputError for models that are not Whisper's."""

    def __init__(self, model: str | Path, draft_model: str | Path | None = None):
        self.name = str(model)
        self.model, self.tokenizer = _load(model)
        settings = find(str(model)) / GENERATION
        if not settings.exists():  # as of 2022
            settings = settings.with_name("config.json")
        config = self.model.config
        self.special = Special.read(self.tokenizer, read_json(settings), config)
        if self.special.end not in config.eos_token_ids:  # the tokenizer knows it
            self.model.config = replace(config, eos_token_ids=(self.special.end,))
        draft = None if draft_model is None else _load(draft_model, drafts=True)[0]
        self.decoder = SpeculativeDecoder(self.model, self.tokenizer, draft)
        if not self.special.has_timestamps:
            reporter.note(f"{model}: no timestamps in its vocabulary: segments are whole windows")

    def resolve(self, options: TranscribeOptions) -> TranscribeOptions:
        """The options with the language's code and the task, by default the checkpoint's own; no language: to be detected. Raises
        InputError if the model lacks the language or the task."""
        language = self.special.language if options.language is None else options.language
        if not language or language.lower() == "auto":
            language = None
        else:
            language = self.special.language_code(language)
        task = options.task or self.special.task
        config = self.model.config
        is_short = config.decoder_layers < config.encoder_layers
        if is_short and task == TASKS[1] and task != self.special.task:
            raise InputError(f"{self.name}: a model with a shortened decoder cannot translate")
        self.special.prefix(language or next(iter(self.special.languages), "en"), task)
        return replace(options, language=language, task=task)

    def task(
        self, samples: np.ndarray, options: TranscribeOptions, on_window: OnWindow = lambda *_: None
    ) -> Task:
        """A task that transcribes a sound, for `transcribe_all`. Arguments: as for `Sound`, but samples as `floats` takes."""
        pipeline = self._pipeline(options, leaves_rest=not options.batched)
        return Sound(pipeline, floats(samples), on_window).steps()

    def detection(self, samples: np.ndarray) -> Task:
        """A task that finds the language that is spoken first in a sound: its code, and how probable it is."""
        pipeline = self._pipeline(TranscribeOptions("auto"), leaves_rest=False)
        heard = samples[first_speech(samples) * HOP :][: pipeline.longest * HOP]
        return pipeline.detect(pipeline.window(log_mel(heard, pipeline.config.num_mel_bins)))

    def live(self, options: TranscribeOptions, on_heard: OnHeard, pause: float = PAUSE) -> Live:
        """A sound that arrives piece by piece. Arguments: as for `Live`."""
        pipeline = self._pipeline(options, leaves_rest=False)
        return Live(pipeline, on_heard, pause)

    def _pipeline(self, options: TranscribeOptions, leaves_rest: bool) -> Pipeline:
        options = self.resolve(options)
        special = self.special
        if options.without_timestamps:
            special = replace(special, last_timestamp=special.no_timestamps)
        return Pipeline(self.model, self.tokenizer, special, options, leaves_rest)

    def transcribe(
        self, samples: np.ndarray, options: TranscribeOptions | None = None
    ) -> Transcript:
        """Transcribe one sound. Arguments: as for `task`."""
        options = options or TranscribeOptions()
        return result_of(self.transcribe_all([self.task(samples, options)], options, 1))

    def transcribe_all(
        self,
        tasks: Iterable[Task],
        options: TranscribeOptions,
        batch_size: int,
        on_row: Callable[[Row], object] = lambda row: None,
    ) -> Iterator[tuple[int, Transcript | InputError]]:
        """Transcribe many sounds, `batch_size` together; yield (index, transcript) as each finishes, or (index, InputError)
        if it fails. Raises InputError for options that the model lacks. tasks: as `task`, which may read their sounds when
        they begin; on_row: gets each window's row once it is decoded"""
        self.resolve(options)
        decoding = self.special.options(num_draft=options.num_draft)
        rows = max(batch_size, options.best_of)
        return self.decoder.run(tasks, decoding, rows, batch_size, on_row)


def is_speech(name: str | Path) -> bool:
    """Whether this is a Whisper model. InputError if there is none of this name."""
    return read_json(find(str(name)) / "config.json").get("model_type") == "whisper"


def _load(name: str | Path, drafts: bool = False) -> tuple[Any, Tokenizer]:
    model, tokenizer = load(name)
    if not (isinstance(model, Whisper) or (drafts and model.draft_of)):
        fault = "is not a speech model such as whisper-large-v3"
        raise InputError(f"{name} {fault}; for text, use main.py")
    return model, tokenizer
