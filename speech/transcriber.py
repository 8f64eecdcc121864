"""Whisper models that transcribe: how a pair is loaded, and how many sounds are decoded side by side."""

import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from checkpoints.folder import read_json
from decoder import SpeculativeDecoder, load
from errors import InputError
from families.folders import WEIGHTS, converted, find_model
from families.whisper import Whisper
from speculative.batch import decode
from speculative.row import Row
from speech.formats import Transcript
from speech.rules import Special
from speech.transcript import Asked, Heard, Rows, Sound
from text.generation import FILE as GENERATION

Result = Transcript | InputError


class Transcriber:
    """A Whisper model, a draft model for it or none, and what decodes with them. InputError for other models."""

    def __init__(self, model: str | Path, draft_model: str | Path | None = None):
        self.model, self.tokenizer = _load(model)
        draft = None if draft_model is None else _load(draft_model)[0]
        self.decoder = SpeculativeDecoder(self.model, self.tokenizer, draft)
        if draft is not None and draft_model is not None:
            draft.share(self.model, _encoder(model) == _encoder(draft_model))
        settings = find_model(str(model)) / GENERATION
        generation = read_json(settings) if settings.exists() else {}
        end = self.model.config.eos_token_ids[0]
        self.special = Special.read(self.tokenizer, generation, end)

    def check(self, asked: Asked) -> None:
        """InputError for a language or a task that the model has not."""
        self.special.prefix(asked.language or next(iter(self.special.languages), "en"), asked.task)

    def sound(self, samples: np.ndarray, asked: Asked, heard: Heard = lambda *_: None) -> Sound:
        """A sound to transcribe. Arguments: as `Sound`'s."""
        return Sound(self.model, self.tokenizer, self.special, samples, asked, heard)

    def transcribe(
        self, samples: np.ndarray, asked: Asked | None = None, heard: Heard = lambda *_: None
    ) -> Transcript:
        """The transcript of one sound. Arguments: as `Sound`'s."""
        ((_, found),) = self.transcribe_all([lambda: (samples, heard)], asked or Asked(), 1)
        assert isinstance(found, Transcript)
        return found

    def transcribe_all(
        self,
        sounds: Iterable[Callable[[], tuple[np.ndarray, Heard]]],
        asked: Asked,
        batch_size: int,
    ) -> Iterator[tuple[int, Result]]:
        """The transcripts of many sounds, `batch_size` side by side, as they are finished: each with its number, and
        in its place the error of one that cannot be read.

        sounds: each gives its samples, and what is told of its segments (see `Sound`)
        """
        self.check(asked)
        source = _Sounds(partial(self.sound, asked=asked), sounds, batch_size)
        rows = max(batch_size, asked.best_of)
        with self.decoder.running(self.special.options(num_draft=asked.num_draft)) as batch:
            for row in decode(batch, source, rows):
                source.finished(row)
                yield from source.results()
        yield from source.results()


def is_speech(name: str | Path) -> bool:
    """Whether a converted model transcribes sound."""
    folder = converted(str(name))
    return folder is not None and read_json(folder / "config.json").get("model_type") == "whisper"


def _load(name: str | Path) -> tuple[Whisper, Tokenizer]:
    model, tokenizer = load(name)
    if not isinstance(model, Whisper):
        raise InputError(f"{name} is no model of speech, such as whisper-large-v3: see main.py")
    return model, tokenizer


def _encoder(name: str | Path) -> dict[str, tuple[int, int]]:
    """The checksums of a model's encoder."""
    with zipfile.ZipFile(find_model(str(name)) / WEIGHTS) as archive:
        members = [m for m in archive.infolist() if m.filename.startswith("encoder.")]
    return {member.filename: (member.file_size, member.CRC) for member in members}


class _Sounds:
    """Rows of sounds, as `speculative.batch.decode` takes them."""

    def __init__(self, make: Callable[..., Sound], sounds: Iterable, most: int):
        self._make, self._most = make, most
        self._coming = enumerate(sounds)
        self._waiting: deque[Row] = deque()
        self._running: dict[int, Rows] = {}
        self._of: dict[Row, int] = {}  # rows that are not finished
        self._results: list[tuple[int, Result]] = []

    def take(self, count: int, wait: bool) -> list[Row]:
        while len(self._waiting) < count and len(self._running) < self._most:
            coming = next(self._coming, None)
            if coming is None:
                break
            index, sound = coming
            try:
                samples, heard = sound()
                self._go_on(index, self._make(samples, heard=heard).transcribed())
            except InputError as error:
                self._results.append((index, error))
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def _go_on(self, index: int, transcript: Rows) -> None:
        try:
            rows = next(transcript)
        except StopIteration as end:
            self._running.pop(index, None)
            self._results.append((index, end.value))
        else:
            self._running[index] = transcript
            self._of |= dict.fromkeys(rows, index)
            self._waiting.extend(rows)

    def finished(self, row: Row) -> None:
        """Go on with the sound whose row this is, if it was the last of its rows."""
        index = self._of.pop(row)
        if index not in self._of.values():
            self._go_on(index, self._running[index])

    def results(self) -> Iterator[tuple[int, Result]]:
        found, self._results = self._results, []
        yield from found
