"""The texts to learn from that a speech model writes for sounds."""

from collections.abc import Sequence

from common.errors import InputError
from common.reporting import reporter
from distillation.texts import TrainingText
from speculative.driver import Task
from speculative.row import Row
from speech import audio
from speech.options import TranscribeOptions
from speech.transcriber import Transcriber


def texts_from_audio(
    transcriber: Transcriber, files: Sequence[str], batch_size: int
) -> list[TrainingText]:
    """The texts that a speech model writes for windows of sounds. A sound that cannot be read is left out, with a note."""
    texts: list[TrainingText] = []

    def add(row: Row) -> None:
        if not row.options.temp and len(row.generated) > 1:  # no retry, no language to detect
            texts.append(TrainingText.from_row(row))

    options = TranscribeOptions()

    def read(file: str) -> Task:
        return (yield from transcriber.task(audio.read(file), options))

    with reporter.bar("transcribing", len(files), "file", 0) as advance:
        for number, result in transcriber.transcribe_all(
            map(read, files), options, batch_size, add
        ):
            if isinstance(result, InputError):
                reporter.note(f"{files[number]}: {result}")
            advance(1)
    return texts
