"""Loads a Whisper pair and transcribes many sounds together."""

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
from families.conversion import find
from families.folders import WEIGHTS
from families.whisper import Whisper
from speculative.row import Row
from speech.formats import Transcript
from speech.rules import Special
from speech.transcript import Asked, Heard, Rows, Sound
from text.generation import FILE as GENERATION

Result = Transcript | InputError


class Transcriber:
    """A Whisper model with an optional draft model. Raises InputError for models that are not Whisper's."""

    def __init__(self, model: str | Path, draft_model: str | Path | None = None):
        self.model, self.tokenizer = _load(model)
        draft = None if draft_model is None else _load(draft_model)[0]
        self.decoder = SpeculativeDecoder(self.model, self.tokenizer, draft)
        if draft is not None and draft_model is not None:
            draft.share(self.model, _encoder(model) == _encoder(draft_model))
        settings = find(str(model)) / GENERATION
        generation = read_json(settings) if settings.exists() else {}
        end = self.model.config.eos_token_ids[0]
        self.special = Special.read(self.tokenizer, generation, end)

    def check(self, asked: Asked) -> None:
        """Raise InputError if the model lacks the language or the task."""
        self.special.prefix(asked.language or next(iter(self.special.languages), "en"), asked.task)

    def sound(self, samples: np.ndarray, asked: Asked, heard: Heard = lambda *_: None) -> Sound:
        """A sound to transcribe. Arguments: as for `Sound`."""
        return Sound(self.model, self.tokenizer, self.special, samples, asked, heard)

    def transcribe(
        self, samples: np.ndarray, asked: Asked | None = None, heard: Heard = lambda *_: None
    ) -> Transcript:
        """Transcribe one sound. Arguments: as for `Sound`."""
        ((_, found),) = self.transcribe_all([lambda: (samples, heard)], asked or Asked(), 1)
        assert isinstance(found, Transcript)
        return found

    def transcribe_all(
        self,
        sounds: Iterable[Callable[[], tuple[np.ndarray, Heard]]],
        asked: Asked,
        batch_size: int,
    ) -> Iterator[tuple[int, Result]]:
        """Transcribe many sounds, `batch_size` together; yield (index, transcript) as each finishes, or
        (index, InputError) if it cannot be read.

        sounds: functions that return a sound's samples and its `heard` (see `Sound`)
        """
        self.check(asked)
        source = _Sounds(partial(self.sound, asked=asked), sounds, batch_size)
        rows = max(batch_size, asked.best_of)
        with self.decoder.running(self.special.options(num_draft=asked.num_draft)) as driver:
            for row in driver.decode(source, rows):
                source.finished(row)
                yield from source.results()
        yield from source.results()


def is_speech(name: str | Path) -> bool:
    """Whether this is a Whisper model. InputError if there is none of this name."""
    return read_json(find(str(name)) / "config.json").get("model_type") == "whisper"


def _load(name: str | Path) -> tuple[Whisper, Tokenizer]:
    model, tokenizer = load(name)
    if not isinstance(model, Whisper):
        raise InputError(
            f"{name} is not a speech model such as whisper-large-v3; for text, use main.py"
        )
    return model, tokenizer


def _encoder(name: str | Path) -> dict[str, tuple[int, int]]:
    """The checksums of a model's encoder."""
    with zipfile.ZipFile(find(str(name)) / WEIGHTS) as archive:
        members = [m for m in archive.infolist() if m.filename.startswith("encoder.")]
    return {member.filename: (member.file_size, member.CRC) for member in members}


class _Sounds:
    """A source of rows for the driver: a row for each audio window, several sounds at a time."""

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
        """Resume this row's sound if none of its rows is left to decode."""
        index = self._of.pop(row)
        if index not in self._of.values():
            self._go_on(index, self._running[index])

    def results(self) -> Iterator[tuple[int, Result]]:
        found, self._results = self._results, []
        yield from found
