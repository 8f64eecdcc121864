"""Makes a transcript of windows of sound, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356, section
4.5 and the reference implementation), with drafts for every text. Times are mended: see timeline.py."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from families import whisper
from speculative.row import Stats
from speculative.tasks import Work
from speech.decoding import WindowDecoder
from speech.features import FRAMES
from speech.options import TranscribeOptions
from speech.rules import SECONDS_PER_TIMESTAMP, Special
from speech.segments import Segment, Transcript
from speech.timeline import Timeline
from speech.window import Window
from speech.words import (
    attended,
    cut_segment,
    drop_hallucinations,
    has_spaces,
    last_end,
    place_words,
    split,
    timed_words,
)

_CLEAR = 0.8  # the probability of another language that is clearly spoken
_PER_TIMESTAMP = round(SECONDS_PER_TIMESTAMP * FRAMES)  # frames


class Pipeline:
    """Decodes windows, cuts their texts into segments, times the words, and places the segments in the sound."""

    def __init__(
        self,
        model: whisper.Whisper,
        tokenizer: Tokenizer,
        special: Special,
        options: TranscribeOptions,
        leaves_rest: bool,
    ):
        """leaves_rest: text that no timestamp ends is left for the next window"""
        self._model, self._tokenizer = model, tokenizer
        self.config, self.special = model.config, special
        self.decoder = WindowDecoder(model.config, tokenizer, special, options)
        self.language = None if special.languages else "en"  # None: not known yet
        self._leaves_rest = leaves_rest
        self._segments: list[Segment] = []
        self._previous = list[int]()  # the text before the next window
        self._spoken = 0.0  # when the last word has ended, in seconds of what is transcribed
        self.configure(options)
        if not options.carry_initial_prompt:
            self._previous = self.tokens(options.initial_prompt)

    def configure(self, options: TranscribeOptions) -> None:
        """Go on with other options."""
        self.options = self.decoder.options = options
        self._carried = self.tokens(options.hotwords)  # the beginning of every window's prompt
        if options.carry_initial_prompt:
            self._carried += self.tokens(options.initial_prompt)
        if options.language and self.special.languages:
            self.speak(options.language)

    def tokens(self, text: str) -> list[int]:
        """The tokens of what a user gives as text before the sound's."""
        ids = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [token for token in ids if self.special.is_text(token)] if text.strip() else []

    @property
    def stats(self) -> Stats:
        return self.decoder.stats

    def transcript(self, duration: float) -> Transcript:
        """The transcript so far, of so many seconds."""
        text = "".join(segment.text for segment in self._segments)
        segments = tuple(self._segments)
        return Transcript(text, segments, self.language or "en", duration, self.stats)

    def window(self, features: np.ndarray, seek: int = 0, draft: Sequence[int] = ()) -> Window:
        """A window of the features [frames, bins], padded; seek: the first of these frames; draft: a text that drafts its
        own"""
        padded = np.zeros((self.config.frames, self.config.num_mel_bins), np.float32)
        padded[: len(features)] = features
        return Window(whisper.Window(padded), seek, len(features), [*draft])

    @property
    def detects(self) -> bool:
        """Whether nobody has said what the language is."""
        return self.options.language is None and bool(self.special.languages)

    def detect(self, window: Window) -> Generator[Work, Any, str]:
        """The code of the language of a window: the one so far, unless another is clearly more probable."""
        row = self.decoder.language_row(window.prompt)
        yield [row]
        codes = {id: code for code, id in self.special.languages.items()}
        is_clear = math.exp(row.logprobs[0]) > _CLEAR
        return codes[row.generated[0]] if is_clear or self.language is None else self.language

    def speak(self, language: str) -> None:
        """Go on in a language. The text so far does not begin one in another."""
        if self.language not in (None, language):
            self._previous = []
        self.language = language

    def decode(
        self, windows: Sequence[Window], language: str, tries: int | None = None
    ) -> Generator[Work, Any, list[Window]]:
        """The windows with their texts. tries: temperatures at most"""
        room = self.config.max_positions // 2 - 1 - len(self._carried)
        previous = self._previous if self.language in (None, language) else []
        before = self._carried + previous[max(0, len(previous) - room) :]
        return (yield from self.decoder.decode(windows, language, before, tries))

    def cut(
        self, windows: Sequence[Window], timeline: Timeline
    ) -> Generator[Work, Any, list[Window]]:
        """The windows with the segments of their texts, and the segments with their words and times that are the words';
        without word_timestamps, only the words and only of windows where silence was left out within a segment."""
        cut = [self._cut(window) for window in windows]
        given = dict[int, Window]()
        for i, window in enumerate(cut):
            silent = any(timeline.is_cut(segment) for segment in window.segments)
            if (silent or self.options.word_timestamps) and window.text(self.special):
                given[i] = window
        if given:
            steering = self.special.prefix(self.language or "en", self.options.task)
            attention = yield partial(
                attended, self._model, self.special, steering, [*given.values()]
            )
            for (i, window), weights in zip(given.items(), attention, strict=True):
                cut[i] = self._timed(window, weights, timeline)
        return cut

    def _cut(self, window: Window) -> Window:
        """Cut a window's text. Two timestamps in a row end one segment and begin the next. Text after the last pair
        is left for the next window, unless one timestamp ends it."""
        if not self.decoder.is_speech(window.attempt):
            return replace(window, advance=window.size)
        first = self.special.first_timestamp
        tokens = window.attempt.tokens
        stamps = [self.special.is_timestamp(token) for token in tokens]
        pairs = zip(tokens, stamps, strict=True)
        frames = [(token - first) * _PER_TIMESTAMP if stamp else 0 for token, stamp in pairs]
        complete = not self._leaves_rest or stamps[-2:] == [False, True]
        cuts = [i + 1 for i, pair in enumerate(pairwise(stamps)) if all(pair)]
        if not cuts:
            last = max((frame for frame in frames if frame > 0), default=window.size)
            whole = self._segment(window, 0, len(tokens), 0, last)
            rest: list[int] | None = None if complete else []
            return replace(window, segments=(whole,), advance=window.size, rest=rest)
        bounds = [0, *cuts]
        if complete:
            bounds.append(len(tokens))
        segments = []
        for begin, end in pairwise(bounds):
            last = frames[end - 1] if stamps[end - 1] else window.size
            segments.append(self._segment(window, begin, end, frames[begin], last))
        advance = window.size
        rest = None
        if not complete:
            rest = [first, *tokens[cuts[-1] + 1 :]]
            advance = max(1, frames[cuts[-1] - 1])
        return replace(window, segments=tuple(segments), advance=advance, rest=rest)

    def _segment(self, window: Window, begin: int, end: int, first: int, last: int) -> Segment:
        """A segment of tokens begin to end, from one frame of the window to another."""
        attempt = window.attempt
        return Segment(
            id=0,
            seek=window.seek,
            start=(window.seek + first) / FRAMES,
            end=(window.seek + last) / FRAMES,
            text=self.decoder.text(attempt.tokens[begin:end]),
            tokens=attempt.tokens[begin:end],
            origins=tuple(attempt.origins[begin:end]),
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.no_speech_prob,
        )

    def _timed(
        self, window: Window, weights: tuple[np.ndarray, np.ndarray], timeline: Timeline
    ) -> Window:
        """The window with its words. weights: see `attended`"""
        spaces = has_spaces(self.language or "en", self.options.task)
        marks = self.options.prepend_punctuations, self.options.append_punctuations
        pieces = split(window.text(self.special), self.decoder.text, spaces)
        before = self._spoken if self._leaves_rest else window.start
        is_text = self.special.is_text
        placed = place_words(window.segments, timed_words(pieces, *weights), is_text, before, marks)
        pairs = zip(window.segments, placed, strict=True)
        segments = tuple(replace(old, words=new.words) for old, new in pairs)
        if not self.options.word_timestamps:
            return replace(window, segments=segments)
        pairs = zip(segments, placed, strict=True)
        window = replace(window, segments=tuple(timeline.near(*pair) for pair in pairs))
        if self.options.hallucination_silence_threshold is not None:
            window = self._without_hallucinations(window, len(timeline.frames) / FRAMES)
        if window.segments:
            self._spoken = last_end(window.segments)
        return window

    def _without_hallucinations(self, window: Window, end: float) -> Window:
        """The window without segments that were invented in silence; the next one begins after them. end: of what is
        transcribed, in seconds"""
        threshold = self.options.hallucination_silence_threshold or 0.0
        if window.rest is not None and window.end - last_end(window.segments) <= threshold:
            window = replace(window, advance=window.size)
        segments, onward = drop_hallucinations(window, end, self._spoken, threshold)
        if onward is not None:
            window = replace(window, advance=max(1, round(onward * FRAMES) - window.seek))
        return replace(window, segments=segments)

    def append(self, window: Window, timeline: Timeline) -> list[Segment]:
        """Add the segments that have text and a duration to the transcript; return these. Later windows see their text,
        unless all are decoded at once. One that was sampled much may go astray, and lead them astray."""
        spoken = [s for s in window.segments if s.text.strip() and s.end > s.start]
        seek = round(timeline.seconds(window.seek) * FRAMES)
        cut = partial(cut_segment, is_text=self.special.is_text, decode=self.decoder.text)
        placed = timeline.place(spoken, window.start, window.sound_end, cut)
        added = [replace(s, id=len(self._segments) + i, seek=seek) for i, s in enumerate(placed)]
        if not self.options.word_timestamps:
            added = [replace(segment, words=None) for segment in added]
        self._segments += added
        if not self.options.batched:
            self._previous += [token for segment in added for token in segment.tokens]
            temperature = window.attempt.temperature
            if temperature > 0.5 or not self.options.condition_on_previous_text:
                self._previous = []
        return added
