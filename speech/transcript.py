"""Transcribes a sound window by window, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356,
section 4.5 and the reference implementation), with drafts for every text.

`Sound.steps` yields the rows to decode next. So one batch can decode many sounds together, each in its own order.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from families.whisper import Whisper, Window
from speculative.row import Row, Stats
from speech.decoding import WindowDecoder, WindowText
from speech.features import FRAMES, RATE, log_mel
from speech.formats import Segment, Transcript, Word
from speech.options import TranscribeOptions
from speech.reference import Reference
from speech.rules import SECONDS_PER_TIMESTAMP, Special
from speech.voice import last_pause, probabilities, with_speech
from speech.words import (
    TimedWindow,
    WindowTimes,
    attended,
    drop_hallucinations,
    has_spaces,
    last_end,
    place_words,
    split,
    timed_words,
)

_TOGETHER = 32  # windows of a sound, if batched: their features stay in memory

_PER_TIMESTAMP = round(SECONDS_PER_TIMESTAMP * FRAMES)  # frames

OnWindow = Callable[[Sequence[Segment], float, Stats], object]
# Rows, to go on when they are finished, or a function to call where models may be used and whose result to send back
Work = list[Row] | Callable[[], Any]
Steps = Generator[Work, Any, Transcript]


@dataclass
class Cut:
    """The segments of a window's text."""

    segments: list[Segment]
    advance: int  # frames that they cover
    rest: list[int] | None = None  # tokens after the last segment; None: the text is complete


class Sound:
    """A sound that is being transcribed."""

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        special: Special,
        samples: np.ndarray,
        options: TranscribeOptions,
        on_window: OnWindow = lambda *_: None,
    ):
        """samples: mono, in [-1, 1], 16,000 a second
        on_window: called after each window with its segments, the seconds of sound done, and the stats so far
        """
        self._model, self._config = model, model.config
        self._tokenizer, self._special = tokenizer, special
        self._options, self._on_window = options, on_window
        self._decoder = WindowDecoder(model.config, tokenizer, special, options)
        self._duration = len(samples) / RATE
        self._features = log_mel(samples, self._config.num_mel_bins)
        self._frames: np.ndarray | None = None  # with vad: the sound's, of each of the features
        if options.vad:
            speech = probabilities(samples)
            self._frames = np.flatnonzero(with_speech(speech))
            self._features = self._features[self._frames]
            self._speech = speech[self._frames]  # how probable it is in each frame
        self._language = options.language if special.languages else "en"
        self._segments: list[Segment] = []
        self._carried = self._tokens(options.hotwords)  # the beginning of every window's prompt
        self._previous = self._tokens(options.initial_prompt)  # the text before the next window
        if options.carry_initial_prompt:
            self._carried += self._previous
            self._previous = []
        longest = model.config.max_positions // 2
        last = model.config.vocab_size - 1
        self._reference = Reference(options.reference, self._tokens, special, longest, last)
        self._rest: list[int] = []  # the unfinished text at the end of the last window
        self._spoken = 0.0  # when the last word has ended, in seconds

    def _tokens(self, text: str) -> list[int]:
        """The tokens of what a user gives as text before the sound's."""
        ids = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [token for token in ids if token < self._special.end] if text.strip() else []

    def steps(self) -> Steps:
        """Transcribe the sound."""
        for seek, end in self._clips():
            while seek < end:
                windows = self._next_windows(seek, end)
                if self._language is None:
                    row = self._decoder.language_row(windows[0].prompt)
                    yield [row]
                    self._language = self._special.languages_by_id[row.generated[0]]
                room = self._config.max_positions // 2 - 1 - len(self._carried)
                previous = self._carried + self._previous[max(0, len(self._previous) - room) :]
                yield from self._decoder.decode(windows, self._language, previous)
                cuts = [self._cut(window) for window in windows]
                if self._options.word_timestamps:
                    yield from self._time_words(windows, cuts)
                for window, part in zip(windows, cuts, strict=True):
                    segments = self._append(part.segments, window.attempt.temperature <= 0.5)
                    self._rest = part.rest or []
                    self._reference.follow([token for s in segments for token in s.tokens])
                    seek += part.advance
                    seconds = self._seconds(seek / FRAMES, True)
                    self._on_window(segments, seconds, self._decoder.stats)
        text = "".join(segment.text for segment in self._segments)
        language = self._language or "en"
        return Transcript(
            text, tuple(self._segments), language, self._duration, self._decoder.stats
        )

    def _clips(self) -> Iterator[tuple[int, int]]:
        """The ranges of frames to transcribe: first and end."""
        points = [round(t * FRAMES) for t in self._options.clip_timestamps] or [0]
        if self._frames is not None:
            points = np.searchsorted(self._frames, points).tolist()
        last = len(self._features)
        points = [min(point, last) for point in points]
        if len(points) % 2:
            points.append(last)
        return zip(points[::2], points[1::2], strict=True)

    def _next_windows(self, seek: int, end: int) -> list[WindowText]:
        """The next window; or with `batched` some that end in pauses, each in its second half."""
        longest = self._config.frames
        windows = list[WindowText]()
        while seek < end and len(windows) < (_TOGETHER if self._options.batched else 1):
            size = min(longest, end - seek)
            if self._options.batched and end - seek > longest:
                half = longest // 2
                size = half + last_pause(self._speech[seek + half : seek + longest])
            features = np.zeros((longest, self._config.num_mel_bins), np.float32)
            features[:size] = self._features[seek : seek + size]
            draft = self._reference.draft(self._seconds(seek / FRAMES), self._rest)
            windows.append(WindowText(Window(features), seek, size, draft=draft))
            seek += size
        return windows

    def _seconds(self, seconds: float, end: bool = False) -> float:
        """A time in the sound, from one in what is transcribed of it."""
        if self._frames is None:
            return seconds
        index = min(max(round(seconds * FRAMES) - end, 0), len(self._frames) - 1)
        return float(self._frames[index] + end) / FRAMES

    def _cut(self, window: WindowText) -> Cut:
        """Cut a window's text. Two timestamps in a row end one segment and begin the next. Text after the last pair
        is left for the next window, unless one timestamp ends it; a window that is `batched` has no next one."""
        if not self._decoder.is_speech(window.attempt):
            return Cut([], window.size)
        first = self._special.first_timestamp
        tokens = window.attempt.tokens
        frames = [(token - first) * _PER_TIMESTAMP for token in tokens]  # of timestamps
        stamps = [token >= first for token in tokens]
        complete = self._options.batched or stamps[-2:] == [False, True]
        cuts = [i + 1 for i, pair in enumerate(pairwise(stamps)) if all(pair)]
        if not cuts:
            last = max((frame for frame in frames if frame > 0), default=window.size)
            whole = self._segment(window, 0, len(tokens), 0, last)
            return Cut([whole], window.size, None if complete else [])
        bounds = [0, *cuts]
        if complete:
            bounds.append(len(tokens))
        segments = []
        for begin, end in pairwise(bounds):
            last = frames[end - 1] if stamps[end - 1] else window.size
            segments.append(self._segment(window, begin, end, frames[begin], last))
        if complete:
            return Cut(segments, window.size)
        rest = [first, *tokens[cuts[-1] + 1 :]]
        return Cut(segments, max(1, frames[cuts[-1] - 1]), rest)

    def _segment(self, window: WindowText, begin: int, end: int, first: int, last: int) -> Segment:
        """A segment of tokens begin to end, from one frame of the window to another."""
        attempt = window.attempt
        return Segment(
            id=0,
            seek=window.seek,
            start=(window.seek + first) / FRAMES,
            end=(window.seek + last) / FRAMES,
            text=self._decoder.text(attempt.tokens[begin:end]),
            tokens=attempt.tokens[begin:end],
            origins=tuple(attempt.origins[begin:end]),
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.no_speech_prob,
        )

    def _time_words(self, windows: list[WindowText], cuts: list[Cut]) -> Generator[Work, Any, None]:
        """Give the segments their words, and times that are the words'."""
        end = self._special.end
        language = self._language or "en"
        steering = self._special.prefix(language, self._options.task)
        spaces = has_spaces(language, self._options.task)
        texts = [[t for s in part.segments for t in s.tokens if t < end] for part in cuts]
        spoken = [
            TimedWindow(window.prompt, text, max(1, window.size // 2))
            for window, text in zip(windows, texts, strict=True)
            if text
        ]
        attention = iter(())
        if spoken:
            attention = iter((yield lambda: attended(self._model, self._special, steering, spoken)))
        for window, part, text in zip(windows, cuts, texts, strict=True):
            if not part.segments:
                continue
            words = list[Word]()
            if text:
                words = timed_words(split(text, self._decoder.text, spaces), *next(attention))
            before = window.seek / FRAMES if self._options.batched else self._spoken
            part.segments = place_words(part.segments, words, end, before)
            self._follow_words(window, part)

    def _follow_words(self, window: WindowText, part: Cut) -> None:
        """Advance to the end of the last word if text is left, and drop hallucinated segments."""
        threshold = self._options.hallucination_silence_threshold
        times = WindowTimes(
            start=window.seek / FRAMES,
            sound_end=(window.seek + window.size) / FRAMES,
            end=(window.seek + self._config.frames) / FRAMES,
            whole_end=len(self._features) / FRAMES,
        )
        last = last_end(part.segments)
        if part.rest is not None and last > times.start:
            silent = threshold is not None and times.end - last <= threshold
            part.advance = window.size if silent else round(last * FRAMES) - window.seek
        if threshold is not None:
            part.segments, onward = drop_hallucinations(
                part.segments, times, self._spoken, threshold
            )
            if onward is not None:
                part.advance = round(onward * FRAMES) - window.seek
        part.advance = max(1, part.advance)
        if part.segments:
            self._spoken = last_end(part.segments)

    def _append(self, segments: list[Segment], sure: bool) -> list[Segment]:
        """Add the segments that have text and a duration to the transcript; return these. sure: they may prompt the
        next window."""
        spoken = [s for s in segments if s.text.strip() and s.end > s.start]
        added = [self._numbered(s, len(self._segments) + i) for i, s in enumerate(spoken)]
        self._segments += added
        if self._options.batched:
            return added
        self._previous += [token for segment in added for token in segment.tokens]
        if not (sure and self._options.condition_on_previous_text):
            self._previous = []
        return added

    def _numbered(self, segment: Segment, id: int) -> Segment:
        """The segment with its number and, if not all of the sound is transcribed, the sound's times. A word across a
        pause that is left out goes where its middle is."""
        seek = round(FRAMES * self._seconds(segment.seek / FRAMES))
        start = self._seconds(segment.start)
        end = self._seconds(segment.end, True)
        words = segment.words
        if words and self._frames is not None:
            for word in words:
                middle = round((word.start + word.end) / 2, 2)
                later = self._seconds(middle) - middle
                word.start = round(word.start + later, 2)
                word.end = round(word.end + later, 2)
            start = words[0].start
            end = words[-1].end
        return replace(segment, id=id, seek=seek, start=start, end=end)
