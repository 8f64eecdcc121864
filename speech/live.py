"""Transcribes sound while it arrives. The window from the last pause to now is decoded anew every second, drafted by its
last text. Words that two texts in a row agree on are final (LocalAgreement-2, Macháček et al. 2023, arXiv 2307.14743); at
a pause all are, and the next window begins."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate
from queue import SimpleQueue
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from families.whisper import Whisper
from speculative.tasks import Task, Work
from speech.audio import pcm
from speech.decoding import WindowText
from speech.features import FRAMES, HOP, RATE, log_mel
from speech.options import TranscribeOptions
from speech.rules import Special
from speech.timeline import Timeline
from speech.transcript import Sound
from speech.voice import last_pause, probabilities, stretches, with_speech
from speech.words import has_spaces, split

PAUSE = 0.5  # seconds of silence that end an utterance
_GROWTH = FRAMES  # frames of new sound after which a window is decoded anew
_LEAST = FRAMES // 4  # frames that the voice detector gets at a time, at least
_BEFORE = FRAMES  # frames of silence that are kept, and that the detector hears again


@dataclass(frozen=True)
class Heard:
    """What was heard of an utterance, which lasts from pause to pause. Times are seconds since the sound began."""

    start: float
    text: str = ""  # words that have become final
    rest: str = ""  # words after them that may change
    end: float | None = None  # None: it goes on


OnHeard = Callable[[Heard], object]


class Live(Sound):
    """A sound that arrives piece by piece, of which only speech is transcribed. Options for clips and hallucinations do not
    apply."""

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        special: Special,
        options: TranscribeOptions,
        on_heard: OnHeard,
        pause: float = PAUSE,
    ):
        """on_heard: called when speech begins, when words become final or change, and at a pause"""
        options = replace(options, clip_timestamps=(), hallucination_silence_threshold=None)
        options = replace(options, vad=True, batched=True)  # no window leaves text to the next
        super().__init__(model, tokenizer, special, np.zeros(0, np.float32), options)
        self._on_heard, self._margin = on_heard, round(pause * FRAMES / 2)
        self._samples = np.zeros(0, np.float32)  # from the window's beginning on
        self._chances = np.zeros(0, np.float32)  # how probable speech is in each frame of them
        self._first = 0  # the number of their first frame
        self._start: float | None = None  # of the utterance, in seconds
        self._begin_window(0)

    def _begin_window(self, skipped: int) -> None:
        """Begin the window this many frames later."""
        self._samples = self._samples[skipped * HOP :]
        self._chances = self._chances[skipped:]
        self._first += skipped
        self._grown = 0  # the frames of the last text
        self._draft: list[int] = []  # its tokens
        self._final: list[int] = []  # tokens that are final
        self._words: list[str] = []  # their words
        self._rest_words: list[str] = []  # the last text's words after them

    @property
    def seconds(self) -> float:
        """Of the sound so far."""
        return self._duration

    def append(self, samples: np.ndarray) -> None:
        """Add what has arrived."""
        self._samples = np.append(self._samples, samples)
        self._duration += len(samples) / RATE

    def clear(self) -> None:
        """Forget the sound since the last pause."""
        self._start = None
        self._begin_window(len(self._samples) // HOP)

    def listen(self, pieces: SimpleQueue[bytes]) -> Task:
        """Transcribe raw sound (see `audio.pcm`) as it arrives, until b"" does."""
        while data := pieces.get():
            self.append(pcm(data))
            if pieces.empty():
                yield from self.advance()
        yield from self.advance(is_end=True)
        return self.transcript()

    def advance(self, is_end: bool = False) -> Generator[Work, Any, None]:
        """Transcribe what has arrived; is_end: make all words final, as a pause does."""
        known = len(self._chances)
        if len(self._samples) // HOP - known < _LEAST and not is_end:
            return
        first = max(0, known - _BEFORE)
        chances = probabilities(self._samples[first * HOP :])
        self._chances = np.append(self._chances[:first], chances)
        longest = self._config.frames
        while utterances := stretches(with_speech(self._chances, self._margin, 0)):
            begin, end = utterances[0]
            if self._start is None:
                self._start = (self._first + begin) / FRAMES
                self._on_heard(Heard(self._start))
            if begin:
                self._begin_window(begin)
            elif end > longest:
                end = longest // 2 + last_pause(self._chances[longest // 2 : longest])
                yield from self._end_window(end, is_pause=False)
            elif is_end or end + self._margin <= len(self._chances):
                yield from self._end_window(end, is_pause=True)
            else:
                if end - self._grown >= _GROWTH:
                    yield from self._grow(end)
                return
        if self._start is not None and len(self._chances) >= 2 * self._margin * (not is_end):
            self._on_heard(Heard(self._start, end=self._first / FRAMES))
            self._start = None
        self._begin_window(max(0, len(self._chances) - _BEFORE))

    def _grow(self, size: int) -> Generator[Work, Any, None]:
        """Decode the window's first frames; what two texts agree on is final."""
        attempt = (yield from self._decode(size, tries=1)).attempt
        self._grown = size
        if self._decoder.is_speech(attempt) and not self._decoder.fails(attempt):
            text = self._settle(attempt.tokens, is_end=False)
            self._on_heard(Heard(self._start or 0.0, text, "".join(self._rest_words)))

    def _end_window(self, size: int, is_pause: bool) -> Generator[Work, Any, None]:
        """Decode the window's first frames; what they say is final."""
        window = yield from self._decode(size)
        attempt = window.attempt
        is_speech = self._decoder.is_speech(attempt)
        text = self._settle(attempt.tokens if is_speech else [], is_end=True)
        if self._final:
            silence = attempt.no_speech_prob if is_speech else None
            window.attempt = replace(attempt, tokens=self._final, no_speech_prob=silence)
            part = self._cut(window)
            yield from self._time_words([window], [part])
            least = 1 / FRAMES  # so that none that was heard is left out
            self._append(
                window, [replace(s, end=max(s.end, s.start + least)) for s in part.segments]
            )
            self._go_on_from(self._final, attempt.temperature)
        end = (self._first + size) / FRAMES if is_pause else None
        self._on_heard(Heard(self._start or 0.0, text, end=end))
        self._start = None if is_pause else self._start
        self._begin_window(size)

    def _decode(self, size: int, tries: int | None = None) -> Generator[Work, Any, WindowText]:
        self._features = log_mel(self._samples[: size * HOP], self._config.num_mel_bins)
        self._timeline = Timeline(self._features, None, self._first)
        window = WindowText(self._window(0, size), 0, size, draft=self._draft)
        language = self._language or (yield from self._detect(window.prompt))
        yield from self._decoder.decode([window], language, self._text_before(), tries)
        if tries is None:  # an utterance is enough to know it
            self._language = language
        self._draft = window.attempt.tokens
        return window

    def _settle(self, tokens: list[int], is_end: bool) -> str:
        """Make words of a text final, of those that are not yet: those of the last text too or, at the end, all."""
        spaces = has_spaces(self._language or "en", self._options.task)
        places = [i for i, token in enumerate(tokens) if self._special.is_text(token)]
        pieces = list(split([tokens[i] for i in places], self._decoder.text, spaces))
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
