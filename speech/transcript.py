"""Transcribes a sound window by window, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356,
section 4.5 and the reference implementation), with drafts for every text. Times are mended: see timeline.py.

`Sound.steps` yields the rows to decode next. So one batch can decode many sounds together, each in its own order.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from families.whisper import Whisper, Window
from speculative.row import Stats
from speculative.tasks import Task, Work
from speech.decoding import WindowDecoder, WindowText
from speech.features import FRAMES, HOP, RATE, log_mel
from speech.options import TranscribeOptions
from speech.reference import Reference
from speech.rules import SECONDS_PER_TIMESTAMP, Special
from speech.segments import Segment, Transcript
from speech.timeline import Timeline
from speech.voice import first_speech, last_pause, probabilities
from speech.words import (
    TimedWindow,
    WindowTimes,
    attended,
    cut_segment,
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
        self._speech = probabilities(samples) if options.vad else None  # of each frame
        self._timeline = Timeline(self._features, self._speech)
        if self._speech is not None:
            self._features = self._features[self._timeline.frames]
            self._speech = self._speech[self._timeline.frames]
        self._clips = self._timeline.clips(options.clip_timestamps)
        self._language = options.language if special.languages else "en"
        self._first_speech = 0  # a frame
        if self._language is None and not options.vad:
            begin = self._clips[0][0]
            self._first_speech = begin + (first_speech(samples[begin * HOP :]) or 0)
        self._segments: list[Segment] = []
        self._carried = self._tokens(options.hotwords)  # the beginning of every window's prompt
        self._previous = self._tokens(options.initial_prompt)  # the text before the next window
        if options.carry_initial_prompt:
            self._carried += self._previous
            self._previous = []
        longest = model.config.max_positions // 2
        self._reference = Reference(options.reference, self._tokens, special, longest)
        self._rest: list[int] = []  # the unfinished text at the end of the last window
        self._spoken = 0.0  # when the last word has ended, in seconds of what is transcribed

    def _tokens(self, text: str) -> list[int]:
        """The tokens of what a user gives as text before the sound's."""
        ids = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [token for token in ids if self._special.is_text(token)] if text.strip() else []

    def steps(self) -> Task:
        """Transcribe the sound."""
        for seek, end in self._clips:
            while seek < end:
                windows = self._next_windows(seek, end)
                if self._language is None:
                    self._language = yield from self._detect(self._language_window(windows[0]))
                yield from self._decoder.decode(windows, self._language, self._text_before())
                cuts = [self._cut(window) for window in windows]
                yield from self._time_words(windows, cuts)
                for window, part in zip(windows, cuts, strict=True):
                    segments = self._append(window, part.segments)
                    self._rest = part.rest or []
                    self._reference.follow([token for s in segments for token in s.tokens])
                    seek += part.advance
                    self._on_window(segments, self._timeline.seconds(seek), self._decoder.stats)
        return self.transcript()

    def transcript(self) -> Transcript:
        """The transcript so far."""
        text = "".join(segment.text for segment in self._segments)
        language = self._language or "en"
        return Transcript(
            text, tuple(self._segments), language, self._duration, self._decoder.stats
        )

    def _detect(self, window: Window) -> Generator[Work, Any, str]:
        """The code of the most probable language of a window."""
        row = self._decoder.language_row(window)
        yield [row]
        codes = {id: code for code, id in self._special.languages.items()}
        return codes[row.generated[0]]

    def _text_before(self) -> list[int]:
        """The tokens to prompt the next window with."""
        room = self._config.max_positions // 2 - 1 - len(self._carried)
        return self._carried + self._previous[max(0, len(self._previous) - room) :]

    def _next_windows(self, seek: int, end: int) -> list[WindowText]:
        """The next window; or with `batched` some that end in pauses, each in its second half."""
        longest = self._config.frames
        windows = list[WindowText]()
        while seek < end and len(windows) < (_TOGETHER if self._options.batched else 1):
            size = min(longest, end - seek)
            if self._options.batched and self._speech is not None and end - seek > longest:
                half = longest // 2
                size = half + last_pause(self._speech[seek + half : seek + longest])
            prompt = self._window(seek, seek + size)
            draft = self._reference.draft(self._timeline.seconds(seek), self._rest)
            windows.append(WindowText(prompt, seek, size, draft=draft))
            seek += size
        return windows

    def _window(self, first: int, end: int) -> Window:
        """A window of the frames from first to end, as far as it goes."""
        features = np.zeros((self._config.frames, self._config.num_mel_bins), np.float32)
        size = min(end - first, len(features))
        features[:size] = self._features[first : first + size]
        return Window(features)

    def _language_window(self, window: WindowText) -> Window:
        """The window to detect the language in: this one, or a later one that begins where somebody speaks, if nobody does
        in the first half of this one."""
        if self._first_speech - window.seek <= self._config.frames // 2:
            return window.prompt
        return self._window(self._first_speech, len(self._features))

    def _cut(self, window: WindowText) -> Cut:
        """Cut a window's text. Two timestamps in a row end one segment and begin the next. Text after the last pair
        is left for the next window, unless one timestamp ends it; a window that is `batched` has no next one."""
        if not self._decoder.is_speech(window.attempt):
            return Cut([], window.size)
        first = self._special.first_timestamp
        tokens = window.attempt.tokens
        stamps = [self._special.is_timestamp(token) for token in tokens]
        pairs = zip(tokens, stamps, strict=True)
        frames = [(token - first) * _PER_TIMESTAMP if stamp else 0 for token, stamp in pairs]
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
        """Give segments their words, and times that are the words'; without word_timestamps, only the words and only of
        windows where silence was left out within a segment."""
        is_text = self._special.is_text
        language = self._language or "en"
        steering = self._special.prefix(language, self._options.task)
        spaces = has_spaces(language, self._options.task)
        timed = list[tuple[WindowText, Cut, TimedWindow]]()
        for window, part in zip(windows, cuts, strict=True):
            text = [t for s in part.segments for t in s.tokens if is_text(t)]
            silent = any(self._timeline.is_cut(segment) for segment in part.segments)
            if text and (silent or self._options.word_timestamps):
                positions = max(1, min(part.advance, window.size) // 2)  # not what the rest says
                timed.append((window, part, TimedWindow(window.prompt, text, positions)))
        if not timed:
            return
        marks = self._options.prepend_punctuations, self._options.append_punctuations
        given = [each for *_, each in timed]
        attention = yield lambda: attended(self._model, self._special, steering, given)
        for (window, part, each), weights in zip(timed, attention, strict=True):
            words = timed_words(split(each.tokens, self._decoder.text, spaces), *weights)
            before = window.seek / FRAMES if self._options.batched else self._spoken
            placed = place_words(part.segments, words, is_text, before, marks)
            pairs = list(zip(part.segments, placed, strict=True))
            part.segments = [replace(old, words=new.words) for old, new in pairs]
            if self._options.word_timestamps:
                part.segments = [self._timeline.near(*pair) for pair in pairs]
                self._drop_hallucinations(window, part)
                if part.segments:
                    self._spoken = last_end(part.segments)

    def _drop_hallucinations(self, window: WindowText, part: Cut) -> None:
        """Drop segments that were invented in silence, if that has a threshold, and go on after them."""
        threshold = self._options.hallucination_silence_threshold
        if threshold is None:
            return
        times = WindowTimes(
            start=window.seek / FRAMES,
            sound_end=(window.seek + window.size) / FRAMES,
            end=(window.seek + self._config.frames) / FRAMES,
            whole_end=len(self._features) / FRAMES,
        )
        if part.rest is not None and times.end - last_end(part.segments) <= threshold:
            part.advance = window.size
        part.segments, onward = drop_hallucinations(part.segments, times, self._spoken, threshold)
        if onward is not None:
            part.advance = max(1, round(onward * FRAMES) - window.seek)

    def _append(self, window: WindowText, segments: list[Segment]) -> list[Segment]:
        """Add the segments that have text and a duration to the transcript; return these."""
        spoken = [s for s in segments if s.text.strip() and s.end > s.start]
        first = window.seek / FRAMES
        end = first + window.size / FRAMES
        seek = round(self._timeline.seconds(window.seek) * FRAMES)
        cut = partial(cut_segment, is_text=self._special.is_text, decode=self._decoder.text)
        placed = self._timeline.place(spoken, first, end, cut)
        added = [replace(s, id=len(self._segments) + i, seek=seek) for i, s in enumerate(placed)]
        if not self._options.word_timestamps:
            added = [replace(segment, words=None) for segment in added]
        self._segments += added
        if self._options.batched:
            return added
        tokens = [token for segment in added for token in segment.tokens]
        self._go_on_from(tokens, window.attempt.temperature)
        return added

    def _go_on_from(self, tokens: list[int], temperature: float) -> None:
        """Let the next windows see a text. One that was sampled much may go astray, and lead them astray."""
        self._previous += tokens
        if temperature > 0.5 or not self._options.condition_on_previous_text:
            self._previous = []
