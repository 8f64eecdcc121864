"""Transcribes sound while it arrives. The window from the last pause to now is decoded anew every second, and its last
text drafts it. Words on which two texts in a row agree are final (LocalAgreement-2 of Macháček et al. 2023, arXiv
2307.14743); at a pause all are, and the next window begins."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from families.whisper import Whisper
from speech.decoding import WindowText
from speech.features import FRAMES, HOP, RATE, log_mel
from speech.options import TranscribeOptions
from speech.rules import Special
from speech.timeline import Timeline
from speech.transcript import Sound, Work
from speech.voice import last_pause, probabilities, stretches, with_speech
from speech.words import has_spaces, split

PAUSE = 0.5  # seconds of silence that end an utterance
_GROWTH = FRAMES  # frames of new sound after which a window is decoded anew
_LEAST = FRAMES // 4  # frames that the voice detector gets at a time, at least
_BEFORE = FRAMES  # frames that it hears before them, and that are kept of silence


Working = Generator[Work, Any, None]


@dataclass(frozen=True)
class Heard:
    """What was heard of an utterance, which lasts from pause to pause. Times are seconds since the sound began."""

    start: float
    text: str = ""  # words that are final now, after those that were before
    rest: str = ""  # words after them, which may change
    end: float | None = None  # None: it goes on


OnHeard = Callable[[Heard], object]


class Live(Sound):
    """A sound that arrives piece by piece. Silence is left out, and options for clips and hallucinations do not apply."""

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        special: Special,
        options: TranscribeOptions,
        on_heard: OnHeard,
    ):
        """on_heard: called when speech begins, when words become final, and when a pause begins"""
        options = replace(options, clip_timestamps=(), hallucination_silence_threshold=None)
        options = replace(options, vad=True, batched=True)  # each window is complete
        super().__init__(model, tokenizer, special, np.zeros(0, np.float32), options)
        self.pause = PAUSE
        self._on_heard = on_heard
        self._samples = np.zeros(0, np.float32)  # from the window's beginning on
        self._chances = np.zeros(0, np.float32)  # how probable speech is in each frame of them
        self._first = 0  # the number of their first frame
        self._start: float | None = None  # of the utterance, in seconds
        self._begin_window(0)

    @property
    def seconds(self) -> float:
        """Of the sound so far."""
        return self._duration

    def _begin_window(self, frames: int) -> None:
        """Go on without the first frames."""
        self._samples = self._samples[frames * HOP :]
        self._chances = self._chances[frames:]
        self._first += frames
        self._grown = 0  # the frames of the last text
        self._draft: list[int] = []  # its tokens
        self._final: list[int] = []  # those that are final
        self._words: list[str] = []  # their words
        self._rest_words: list[str] = []  # the last text's words after them

    def feed(self, samples: np.ndarray) -> Working:
        """Transcribe with more of the sound, however long."""
        self._samples = np.append(self._samples, samples)
        self._duration += len(samples) / RATE
        if len(self._samples) // HOP - len(self._chances) >= _LEAST:
            yield from self._advance()

    def finish(self) -> Working:
        """Make all words final, as at a pause. Sound may follow."""
        yield from self._advance(is_end=True)

    def clear(self) -> None:
        """Forget the sound since the last pause; words that are final stay."""
        self._start = None
        self._begin_window(len(self._samples) // HOP)

    def _advance(self, is_end: bool = False) -> Working:
        first = max(0, len(self._chances) - _BEFORE)
        chances = probabilities(self._samples[first * HOP :])
        self._chances = np.append(self._chances[:first], chances)
        margin = round(self.pause * FRAMES / 2)
        longest = self._config.frames
        while utterances := stretches(with_speech(self._chances, margin, 0)):
            begin, end = utterances[0]
            if self._start is None:
                self._start = (self._first + begin) / FRAMES
                self._on_heard(Heard(self._start))
            if begin:
                self._begin_window(begin)
            elif end > longest:
                half = longest // 2
                yield from self._end_window(half + last_pause(self._chances[half:longest]), False)
            elif is_end or end + margin <= len(self._chances):
                yield from self._end_window(end, True)
            else:
                if end - self._grown >= _GROWTH:
                    yield from self._grow(end)
                return
        if self._start is not None and (is_end or len(self._chances) >= 2 * margin):
            self._on_heard(Heard(self._start, end=self._first / FRAMES))
            self._start = None
        self._begin_window(max(0, len(self._chances) - _BEFORE))

    def _grow(self, size: int) -> Working:
        window, _ = yield from self._decode(size, tries=1)
        self._grown = size
        if self._decoder.is_speech(window.attempt) and not self._decoder.fails(window.attempt):
            text = self._settle(window.attempt.tokens, is_end=False)
            self._on_heard(Heard(self._start or 0.0, text, "".join(self._rest_words)))

    def _end_window(self, size: int, is_pause: bool) -> Working:
        window, self._language = yield from self._decode(size)
        attempt = window.attempt
        is_speech = self._decoder.is_speech(attempt)
        text = self._settle(attempt.tokens if is_speech else [], is_end=True)
        if self._final:
            silence = attempt.no_speech_prob if is_speech else None
            window.attempt = replace(attempt, tokens=self._final, no_speech_prob=silence)
            part = self._cut(window)
            yield from self._time_words([window], [part])
            self._append(window, part.segments)
            self._go_on_from(self._final, attempt.temperature)
        end = (self._first + size) / FRAMES if is_pause else None
        self._on_heard(Heard(self._start or 0.0, text, end=end))
        self._start = None if is_pause else self._start
        self._begin_window(size)

    def _decode(
        self, size: int, tries: int | None = None
    ) -> Generator[Work, Any, tuple[WindowText, str]]:
        """The text and the language of the window's first frames."""
        self._features = log_mel(self._samples[: size * HOP], self._config.num_mel_bins)
        self._timeline = Timeline(self._features, None, self._first)
        window = WindowText(self._window(0, size), 0, size, draft=self._draft)
        language = self._language or (yield from self._detect(window.prompt))
        yield from self._decoder.decode([window], language, self._text_before(), tries)
        self._draft = window.attempt.tokens
        return window, language

    def _settle(self, tokens: list[int], is_end: bool) -> str:
        """Make words final on which this text and the last agree, or with `is_end` all of this one's; return them."""
        spaces = has_spaces(self._language or "en", self._options.task)
        places = [i + 1 for i, token in enumerate(tokens) if token < self._special.end]
        words = list[str]()
        ends = [0]  # in the tokens, of as many words
        count = 0
        for word, size in split([tokens[i - 1] for i in places], self._decoder.text, spaces):
            count += size
            words.append(word)
            ends.append(places[count - 1])
        first = self._after_final(words)
        rest = words[first:]
        same = [a == b for a, b in zip(rest, self._rest_words, strict=False)]
        agreed = rest if is_end else rest[: [*same, False].index(False)]
        last = len(tokens) if is_end else ends[first + len(agreed)]
        if words[:first] == self._words:
            self._final = tokens[:last]  # with better times
        else:
            self._final = self._final + tokens[ends[first] : last]
        self._words += agreed
        self._rest_words = rest[len(agreed) :]
        return "".join(agreed)

    def _after_final(self, words: list[str]) -> int:
        """How many words of a text say what is final already."""
        final = self._words
        if words[: len(final)] == final:
            return len(final)
        matcher = SequenceMatcher(None, final, words, autojunk=False)
        *_, last = [(0, 0, 0), *matcher.get_matching_blocks()[:-1]]
        return min(last[1] + len(final) - last[0], len(words))
