"""Loads a Whisper pair and transcribes many sounds together."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from checkpoints.folder import read_json
from common.errors import InputError
from common.reporting import reporter
from decoder import SpeculativeDecoder, load
from families.loading import find
from families.whisper import Whisper
from speculative.row import Row
from speculative.tasks import Task, result_of
from speech.live import PAUSE, Live, OnHeard
from speech.options import TranscribeOptions
from speech.pipeline import Pipeline
from speech.rules import TASKS, Special
from speech.segments import Transcript
from speech.transcript import OnWindow, Sound
from text.generation import FILE as GENERATION

Result = Transcript | InputError
OpenSound = Callable[[], tuple[np.ndarray, OnWindow]]
Resume = Callable[[int, np.ndarray, Task], Task]


class Transcriber:
    """A Whisper model with an optional draft model. Raises InputError for models that are not Whisper's."""

    def __init__(self, model: str | Path, draft_model: str | Path | None = None):
        self.name = str(model)
        self.model, self.tokenizer = _load(model)
        settings = find(str(model)) / GENERATION
        if not settings.exists():  # as of 2022
            settings = settings.with_name("config.json")
        generation = read_json(settings)
        self.special = Special.read(self.tokenizer, generation, self.model.config)
        config = self.model.config
        if self.special.end not in config.eos_token_ids:  # the tokenizer knows it
            self.model.config = replace(config, eos_token_ids=(self.special.end,))
        draft = None if draft_model is None else _load(draft_model, drafts=True)[0]
        self.decoder = SpeculativeDecoder(self.model, self.tokenizer, draft)
        if not self.special.has_timestamps:
            why = f"{model}: no timestamps in its vocabulary: segments are whole windows"
            reporter.note(f"{why}; --word-timestamps times the words")

    def resolve(self, options: TranscribeOptions) -> TranscribeOptions:
        """The options with the language's code: the checkpoint's own without one, and none for "auto" and "". Raises InputError if
        the model lacks the language or the task."""
        language = self.special.language if options.language is None else options.language
        if language in ("", "auto"):
            language = None
        elif language:
            language = self.special.language_code(language)
        options = replace(options, language=language)
        config = self.model.config
        if options.task == TASKS[1] and config.decoder_layers < config.encoder_layers:
            raise InputError(f"{self.name}: a model with a shortened decoder cannot translate")
        self.special.prefix(
            options.language or next(iter(self.special.languages), "en"), options.task
        )
        return options

    def sound(
        self,
        samples: np.ndarray,
        options: TranscribeOptions,
        on_window: OnWindow = lambda *_: None,
    ) -> Sound:
        """A sound to transcribe. Arguments: as for `Sound`, the options from `resolve`."""
        return Sound(self._pipeline(options, leaves_rest=not options.batched), samples, on_window)

    def live(self, options: TranscribeOptions, on_heard: OnHeard, pause: float = PAUSE) -> Live:
        """A sound that arrives piece by piece. Arguments: as for `Live`."""
        pipeline = self._pipeline(self.resolve(options), leaves_rest=False)
        return Live(pipeline, on_heard, pause)

    def _pipeline(self, options: TranscribeOptions, leaves_rest: bool) -> Pipeline:
        return Pipeline(self.model, self.tokenizer, self.special, options, leaves_rest)

    def transcribe(
        self,
        samples: np.ndarray,
        options: TranscribeOptions | None = None,
        on_window: OnWindow = lambda *_: None,
    ) -> Transcript:
        """Transcribe one sound. Arguments: as for `Sound`."""
        options = self.resolve(options or TranscribeOptions())
        return self.decode(self.sound(samples, options, on_window).steps(), options)

    def decode(self, task: Task, options: TranscribeOptions) -> Transcript:
        """The transcript of one sound, of its task. Raises InputError if there is none."""
        return result_of(self.run([task], options, 1))

    def transcribe_all(
        self,
        sounds: Iterable[OpenSound],
        options: TranscribeOptions,
        batch_size: int,
        resume: Resume = lambda index, samples, steps: steps,
        on_row: Callable[[Row], object] = lambda row: None,
    ) -> Iterator[tuple[int, Result]]:
        """Transcribe many sounds, `batch_size` together; yield (index, transcript) as each finishes, or
        (index, InputError) if it cannot be read.

        sounds: functions that return a sound's samples and its `on_window` (see `Sound`)
        resume: returns the steps to take for a sound, given its own (see `journal.resumed`)
        on_row: gets each window's row once it is decoded
        """
        options = self.resolve(options)

        def open_sound(index: int, sound: OpenSound) -> Task | InputError:
            try:
                samples, on_window = sound()
            except InputError as error:
                return error
            return resume(index, samples, self.sound(samples, options, on_window).steps())

        tasks = (open_sound(*each) for each in enumerate(sounds))
        return self.run(tasks, options, batch_size, on_row)

    def run(
        self,
        tasks: Iterable[Task | InputError],
        options: TranscribeOptions,
        batch_size: int,
        on_row: Callable[[Row], object] = lambda row: None,
    ) -> Iterator[tuple[int, Result]]:
        """As `transcribe_all`, from the tasks of sounds, or why a sound has none."""
        decoding = self.special.options(num_draft=options.num_draft)
        rows = max(batch_size, options.best_of)
        return self.decoder.run(tasks, decoding, rows, batch_size, on_row)


def is_speech(name: str | Path) -> bool:
    """Whether this is a Whisper model. InputError if there is none of this name."""
    return read_json(find(str(name)) / "config.json").get("model_type") == "whisper"


def _load(name: str | Path, drafts: bool = False) -> tuple[Any, Tokenizer]:
    model, tokenizer = load(name)
    if not (isinstance(model, Whisper) or (drafts and model.draft_of)):
        raise InputError(
            f"{name} is not a speech model such as whisper-large-v3; for text, use main.py"
        )
    return model, tokenizer
