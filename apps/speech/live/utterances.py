"""Utterances of a sound that arrives: speech from one pause to the next."""

from dataclasses import dataclass

import numpy as np

from apps.speech.features import FRAMES
from apps.speech.voice import PAUSE_CHANCE, SPEECH_CHANCE


@dataclass(frozen=True)
class Utterance:
    begin: int  # in frames, as all of it
    voiced: int  # where the last word ends
    end: int  # as far as it is known


class Utterances:
    """Finds utterances in a sound that arrives, frame by frame, so that they do not depend on how it arrives."""

    def __init__(self, pause: float):
        self.set_pause(pause)
        self.frames = 0  # so far
        self._begin: int | None = None  # of the one that goes on
        self._voiced = 0
        self._run: int | None = None  # where frames in which somebody may speak begin
        self._is_speech = False  # whether somebody speaks in these
        self._free = 0  # where the last one ends

    def set_pause(self, seconds: float) -> None:
        """Let so much silence end an utterance; half of it is part of it, before and after."""
        self._margin = round(seconds * FRAMES / 2)

    def hear(self, chances: np.ndarray) -> list[Utterance]:
        """Go on; those that end. chances: how probable speech is in each further frame"""
        over = list[Utterance]()
        for chance in chances.tolist():
            if chance < PAUSE_CHANCE:
                self._run = None
                self._is_speech = False
            elif self._run is None:
                self._run = self.frames
            self._is_speech = self._is_speech or chance >= SPEECH_CHANCE
            self.frames += 1
            if self._is_speech:
                if self._begin is None:
                    self._begin = self.free
                self._voiced = self.frames
            elif self._begin is not None and self.frames >= self._voiced + 2 * self._margin:
                over += self.end()
        return over

    @property
    def free(self) -> int:
        """The first frame that the next utterance may have."""
        run = self.frames if self._run is None else self._run
        return max(self._free, run - self._margin)

    @property
    def ongoing(self) -> Utterance | None:
        if self._begin is None:
            return None
        return Utterance(self._begin, self._voiced, min(self._voiced + self._margin, self.frames))

    def end(self) -> list[Utterance]:
        """End the utterance that goes on, if there is one, as a pause does."""
        ongoing = self.ongoing
        if ongoing:
            self._begin = None
            self._free = ongoing.end
        self._run = None
        self._is_speech = False
        return [ongoing] if ongoing else []

    def clear(self) -> None:
        self.end()
        self._free = self.frames
