"""Transcribes sound while it arrives. The window since the last pause is decoded anew every second, drafted by its last
text. Words on which two texts in a row agree are final (Macháček et al. 2023, arXiv 2307.14743); at a pause all are."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate
from queue import SimpleQueue
from typing import Any

import numpy as np

from apps.speech.audio import RATE, floats
from apps.speech.features import FRAMES, HOP, log_mel
from apps.speech.live.sources import Piece
from apps.speech.live.utterances import Utterance, Utterances
from apps.speech.options import TranscribeOptions
from apps.speech.pipeline import Pipeline
from apps.speech.segments import Transcript, Window
from apps.speech.timeline import Timeline
from apps.speech.voice import Detector, last_pause
from apps.speech.words import has_spaces, split
from speculative.common.errors import InputError
from speculative.step.driver import Task, Work

PAUSE = 0.5  # seconds of silence that end an utterance
_GROWTH = FRAMES  # frames of new sound after which a window is decoded anew
_CLEAR = 0.8  # the probability of another language that is clearly spoken
_TOGETHER = 30 * RATE  # samples to take together, if they are there


@dataclass(frozen=True)
class Heard:
    """The text of an utterance, which lasts from pause to pause. Times are seconds since the sound began."""

    start: float
    text: str = ""  # words that have become final
    rest: str = ""  # words after them that may change
    end: float | None = None  # None: it goes on


OnHeard = Callable[[Heard], object]


class Live:
    """A sound that arrives piece by piece, of which only speech is transcribed. Clips do not apply."""

    def __init__(self, pipeline: Pipeline, on_heard: OnHeard, pause: float = PAUSE):
        """on_heard: called when speech begins, when words become final or change, and at a pause"""
        self._pipeline, self._on_heard = pipeline, on_heard
        self._detector, self._utterances = Detector(), Utterances(pause)
        self._arrived: list[np.ndarray] = []
        self._samples = np.zeros(0, np.float32)  # from the window's beginning on
        self._chances = np.zeros(0, np.float32)  # how probable speech is in each frame of them
        self._first = 0  # the number of their first frame
        self._start: float | None = None  # of the utterance, in seconds
        self._spaces = True  # whether words are what spaces separate
        self.seconds = 0.0  # of the sound so far
        self._begin_window(0)

    def _begin_window(self, frame: int) -> None:
        self._samples = self._samples[(frame - self._first) * HOP :]
        self._chances = self._chances[frame - self._first :]
        self._first = frame
        self._grown = 0  # the frames of the last text
        self._draft: list[int] = []  # its tokens
        self._final: list[int] = []  # tokens that are final
        self._words: list[str] = []  # their words
        self._rest_words: list[str] = []  # the last text's words after them

    def configure(self, options: TranscribeOptions, pause: float) -> None:
        self._pipeline.configure(options)
        self._utterances.set_pause(pause)

    def append(self, samples: np.ndarray) -> None:
        """Add what has arrived, as `floats` takes it."""
        self._arrived.append(floats(samples))
        self.seconds += len(samples) / RATE

    def clear(self) -> None:
        """Forget the sound since the last pause."""
        self._hear()
        self._utterances.clear()
        self._start = None
        self._begin_window(self._utterances.frames)

    def listen(self, pieces: SimpleQueue[Piece]) -> Task:
        """Transcribe samples as they arrive, until None does. Raises an InputError that does."""
        while (piece := pieces.get()) is not None:
            if isinstance(piece, InputError):
                raise piece
            self.append(piece)
            if pieces.empty() or sum(map(len, self._arrived)) > _TOGETHER:
                yield from self.advance()
        yield from self.advance(is_end=True)
        return self.transcript()

    def transcript(self) -> Transcript:
        return self._pipeline.transcript(self.seconds)

    def _hear(self) -> list[Utterance]:
        """The utterances that end in what has arrived."""
        arrived = np.concatenate([np.zeros(0, np.float32), *self._arrived])
        self._arrived = []
        chances = self._detector.hear(arrived)
        self._samples = np.append(self._samples, arrived)
        self._chances = np.append(self._chances, chances)
        return self._utterances.hear(chances)

    def advance(self, is_end: bool = False) -> Generator[Work, Any, None]:
        """Transcribe what has arrived; is_end: make all words final, as a pause does."""
        over = self._hear()
        if is_end:
            over += self._utterances.end()
        for utterance in over:
            yield from self._follow(utterance, is_over=True)
        if self._utterances.ongoing:
            yield from self._follow(self._utterances.ongoing, is_over=False)
        else:
            self._begin_window(self._utterances.free)

    def _follow(self, utterance: Utterance, is_over: bool) -> Generator[Work, Any, None]:
        """Transcribe what is new of an utterance, which goes on in another window before it is longer than one."""
        if self._start is None:
            self._begin_window(utterance.begin)
            self._start = utterance.begin / FRAMES
            self._on_heard(Heard(self._start))
        longest = self._pipeline.longest
        while utterance.voiced - self._first > longest:
            size = longest // 2 + last_pause(self._chances[longest // 2 : longest])
            text = yield from self._end_window(size)
            self._on_heard(Heard(self._start, text))
            self._begin_window(self._first + size)
        size = min(utterance.end - self._first, longest)
        if is_over:
            text = ""
            if utterance.voiced > self._first:
                text = yield from self._end_window(size)
            self._on_heard(Heard(self._start, text, end=utterance.end / FRAMES))
            self._start = None
            self._begin_window(utterance.end)
        elif size - self._grown >= _GROWTH:
            yield from self._grow(size)

    def _grow(self, size: int) -> Generator[Work, Any, None]:
        """Decode the window's first frames; what two texts agree on is final."""
        attempt = (yield from self._decode(size, tries=1)).attempt
        self._grown = size
        options = self._pipeline.options
        if attempt.is_speech(options) and not attempt.fails(options):
            text = self._settle(attempt.tokens, is_end=False)
            self._on_heard(Heard(self._start or 0.0, text, "".join(self._rest_words)))

    def _end_window(self, size: int) -> Generator[Work, Any, str]:
        """Decode the window's first frames, and make final what they say. Returns the words that were not yet."""
        window = yield from self._decode(size)
        attempt = window.attempt
        is_speech = attempt.is_speech(self._pipeline.options)
        text = self._settle(attempt.tokens if is_speech else [], is_end=True)
        if self._final:
            silence = attempt.no_speech_prob if is_speech else None
            attempt = replace(attempt, tokens=self._final, no_speech_prob=silence)
            timeline = Timeline(self._features(size), None, self._first)
            windows = [replace(window, attempt=attempt)]
            (window,) = yield from self._pipeline.cut(windows, timeline)
            least = 1 / FRAMES  # so that none that was heard is left out
            heard = (replace(s, end=max(s.end, s.start + least)) for s in window.segments)
            self._pipeline.append(replace(window, segments=tuple(heard)), timeline)
        return text

    def _features(self, size: int) -> np.ndarray:
        return log_mel(self._samples[: size * HOP], self._pipeline.config.num_mel_bins)

    def _decode(self, size: int, tries: int | None = None) -> Generator[Work, Any, Window]:
        """The window's first frames, with their text. Each utterance has its own language, unless the user gives one."""
        pipeline = self._pipeline
        window = pipeline.window(self._features(size), draft=self._draft)
        language = pipeline.language
        unknown = pipeline.options.language is None and pipeline.special.languages
        if unknown and self._first / FRAMES == self._start:
            found, chance = yield from pipeline.detect(window)
            language = found if language is None or chance > _CLEAR else language
        assert language
        if tries is None:
            pipeline.speak(language)
        (window,) = yield from pipeline.decode([window], language, tries)
        self._spaces = has_spaces(language, pipeline.options.task)
        self._draft = window.attempt.tokens
        return window

    def _settle(self, tokens: list[int], is_end: bool) -> str:
        """Make words of a text final, of those that are not yet: those of the last text too or, at the end, all."""
        places = [i for i, token in enumerate(tokens) if self._pipeline.special.is_text(token)]
        pieces = list(split([tokens[i] for i in places], self._pipeline.text, self._spaces))
        words = [word for word, _ in pieces]
        ends = [0, *(places[n - 1] + 1 for n in accumulate(size for _, size in pieces))]
        matches = SequenceMatcher(None, self._words, words, autojunk=False).get_matching_blocks()
        at, place, _ = [(0, 0, 0), *matches][-2]
        first = min(place + len(self._words) - at, len(words))  # the first word that is not final
        rest = words[first:]
        same = [a == b for a, b in zip(rest, self._rest_words, strict=False)]
        agreed = len(rest) if is_end else [*same, False].index(False)
        self._final += tokens[ends[first] : None if is_end else ends[first + agreed]]
        self._words += rest[:agreed]
        self._rest_words = rest[agreed:]
        return "".join(rest[:agreed])
