"""Transcribes a sound window by window, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356,
section 4.5 and the reference implementation), with drafts for every text.

`Sound.transcribed` is a generator of rows: it yields the rows to decode next and resumes when they are finished. So
one batch can decode many sounds together, each in its own order.
"""

import math
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from errors import InputError
from families.whisper import Pairs, Whisper, Window
from speculative.options import Options
from speculative.processors import Processor
from speculative.row import Row, Stats
from speculative.sampling import RowSeeds
from speech.features import FRAMES, RATE, log_mel
from speech.formats import Segment, Transcript, Word
from speech.rules import SECONDS_PER_TIMESTAMP, TASKS, Against, OneOf, Special
from speech.voice import last_pause, probabilities, with_speech
from speech.words import (
    WITHOUT_SPACES,
    attended,
    first_columns,
    last_end,
    placed,
    split,
    spoken,
    without_inventions,
)

_PER_TIMESTAMP = round(SECONDS_PER_TIMESTAMP * FRAMES)  # frames
_TOGETHER = 32  # windows of a sound, if batched: their features stay in memory

Rows = Generator[list[Row], None, Transcript]
Heard = Callable[[Sequence[Segment], float, Stats], object]


@dataclass(frozen=True)
class Asked:
    """The settings of a transcript, with the names and defaults of OpenAI's `transcribe`. A threshold of None is off.
    Raises InputError for values out of range."""

    language: str | None = None  # a code; None: detect it in the first window
    task: str = TASKS[0]
    temperature: float = 0.0  # if a text fails, retry in steps of 0.2 up to 1
    best_of: int = 5  # texts at a temperature above 0
    initial_prompt: str = ""
    condition_on_previous_text: bool = True
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    clip_timestamps: tuple[
        float, ...
    ] = ()  # seconds: start, end, start ...; the last end may be missing
    seed: int = 0
    num_draft: int | str = "auto"
    vad: bool = False  # read only what a voice detector takes for speech
    batched: bool = False  # windows end at pauses and know nothing of each other; needs vad
    word_timestamps: bool = False
    hallucination_silence_threshold: float | None = None  # seconds; needs word_timestamps
    no_speech_probs: bool = False  # for every segment, which takes one more call per window

    def __post_init__(self):
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}, not one of {', '.join(TASKS)}")
        if not 0 <= self.temperature <= 1:
            raise InputError(f"temperature is {self.temperature}, not from 0 to 1")
        if not 1 <= self.best_of <= 64:
            raise InputError(f"best_of is {self.best_of}, not from 1 to 64")
        clips = self.clip_timestamps
        if any(not 0 <= t < math.inf for t in clips) or list(clips) != sorted(set(clips)):
            raise InputError("clip_timestamps are not seconds, each later than the one before")
        if self.hallucination_silence_threshold is not None and not self.word_timestamps:
            raise InputError("hallucination_silence_threshold needs word_timestamps")
        if self.batched and not self.vad:
            raise InputError("batched needs vad")
        if self.batched and self.hallucination_silence_threshold is not None:
            raise InputError("hallucination_silence_threshold is not for batched")
        Options(seed=self.seed, num_draft=self.num_draft)

    @property
    def temperatures(self) -> list[float]:
        """0, 0.2, ... 1: each is tried if the text at the one before has failed."""
        steps = (round(self.temperature + i / 5, 2) for i in range(6))
        return [temperature for temperature in steps if temperature <= 1]


@dataclass(frozen=True)
class Attempt:
    """A window's text at one temperature."""

    tokens: list[int]  # with timestamps, without the end
    origins: list[str]
    text: str
    temperature: float
    avg_logprob: float  # of the tokens and the end
    no_speech_prob: float | None = None

    @property
    def compression_ratio(self) -> float:
        """The text's bytes divided by its compressed bytes: high if the text repeats itself."""
        data = self.text.strip().encode()
        return len(data) / len(zlib.compress(data))


class Sound:
    """A sound that is being transcribed."""

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        special: Special,
        samples: np.ndarray,
        asked: Asked,
        heard: Heard = lambda *_: None,
    ):
        """samples: mono, in [-1, 1], 16,000 a second
        heard: called after each window with its segments, the seconds of sound done, and the stats so far
        """
        self._tokenizer, self._special, self._asked = tokenizer, special, asked
        self._model, self._config, self._heard = model, model.config, heard
        self._features = log_mel(samples, self._config.num_mel_bins)
        self._at: np.ndarray | None = None  # with vad: frames of the sound that are read
        if asked.vad:
            chances = probabilities(samples)
            self._at = np.flatnonzero(with_speech(chances))
            self._features, self._chances = self._features[self._at], chances[self._at]
        self._duration = len(samples) / RATE
        self._seeds = RowSeeds(asked.seed)
        self._segments: list[Segment] = []
        self._stats = Stats()
        prompt = asked.initial_prompt.strip()
        known = tokenizer.encode(f" {prompt}", add_special_tokens=False).ids
        self._previous = [t for t in known if t < self._special.end] if prompt else []
        self._tail: list[int] = []  # the unfinished text at the end of the last window
        self._spoken = 0.0  # when the last word has ended, in seconds

    def transcribed(self) -> Rows:
        """Yield the rows to decode next, resume when they are finished, and return the transcript."""
        language = self._asked.language
        for first, end in self._clips():
            seek = first
            while seek < end:
                spans = self._spans(seek, end)
                windows = [self._window(*span) for span in spans]
                language = language or (yield from self._language(windows[0]))
                readings = [
                    self._read(window, *span, language)
                    for window, span in zip(windows, spans, strict=True)
                ]
                for segments, advance, sure in (yield from together(readings)):
                    kept = self._kept(segments, sure)
                    seek += advance
                    self._heard(kept, self._seconds(seek / FRAMES, True), self._stats)
        text = "".join(segment.text for segment in self._segments)
        return Transcript(
            text, tuple(self._segments), language or "en", self._duration, self._stats
        )

    def _read(
        self, window: Window, seek: int, size: int, language: str
    ) -> Generator[list[Row], None, tuple[list[Segment], int, bool]]:
        """A window's segments, how many frames they cover, and whether they may prompt the next window."""
        found = yield from self._attempts(
            window, seek, self._special.prefix(language, self._asked.task)
        )
        self._stats.prompt_tokens += 1  # each window once, however often it was tried
        segments, advance = list[Segment](), size
        if self._is_speech(found):
            segments, advance, ended = self._cut(found, seek, size)
            if self._asked.word_timestamps:
                segments = yield from self._timed(window, segments, size, language)
                segments, advance = self._going_on(segments, seek, size, advance, ended)
        return segments, advance, found.temperature <= 0.5

    def _clips(self) -> Iterator[tuple[int, int]]:
        """The ranges of frames to transcribe: first and end."""
        points = [round(t * FRAMES) for t in self._asked.clip_timestamps] or [0]
        if self._at is not None:
            points = np.searchsorted(self._at, points).tolist()
        last = len(self._features)
        points = [min(point, last) for point in points] + [last] * (len(points) % 2)
        return zip(points[::2], points[1::2], strict=True)

    def _spans(self, seek: int, end: int) -> list[tuple[int, int]]:
        """The next windows, as their first frame and how many they have: one, or with `batched` some that end in
        pauses, each in its second half."""
        most, spans = self._config.frames, list[tuple[int, int]]()
        while seek < end and len(spans) < (_TOGETHER if self._asked.batched else 1):
            size = min(most, end - seek)
            if self._asked.batched and end - seek > most:
                half = most // 2
                size = half + last_pause(self._chances[seek + half : seek + most])
            spans.append((seek, size))
            seek += size
        return spans

    def _window(self, seek: int, size: int) -> Window:
        """A window of `size` frames, padded with zeros."""
        features = np.zeros((self._config.frames, self._config.num_mel_bins), np.float32)
        features[:size] = self._features[seek : seek + size]
        return self._model.windows.add(features)

    def _seconds(self, seconds: float, end: bool = False) -> float:
        """A time in the sound, from one in what is read of it."""
        if self._at is None:
            return seconds
        frame = min(max(round(seconds * FRAMES) - end, 0), len(self._at) - 1)
        return float(self._at[frame] + end) / FRAMES

    def _language(self, window: Window) -> Generator[list[Row], None, str]:
        """The most probable language of a window."""
        languages = self._special.languages
        if not languages:
            return "en"
        rule = OneOf(tuple(languages.values()))
        row = yield from self._one_token(window, [self._special.start], rule)
        return next(code for code, token in languages.items() if token == row.generated[0])

    def _one_token(
        self, window: Window, prefix: list[int], rule: Processor
    ) -> Generator[list[Row], None, Row]:
        row = Row(window, Options(max_tokens=1, logprobs=0, lookup=False, processors=(rule,)))
        row.begin(prefix, self._config)
        yield [row]
        return row

    def _attempts(
        self, window: Window, seek: int, steering: list[int]
    ) -> Generator[list[Row], None, Attempt]:
        """A window's text at the first temperature where it does not fail."""
        asked, silence = self._asked, None
        most = self._config.max_positions // 2
        earlier = [self._special.previous, *self._previous[1 - most :]] if self._previous else []
        prefix = [*earlier, *steering]
        reference, self._tail = self._tail, []
        for temperature in asked.temperatures:
            count = asked.best_of if temperature else 1
            options = self._special.options(
                temp=temperature, max_tokens=most, num_draft=asked.num_draft
            )
            seed = partial(self._seeds, [seek, round(100 * temperature)])
            rows = [Row(window, options, seed(), reference=reference) for _ in range(count)]
            for row in rows:
                row.begin(prefix, self._config)
            yield rows
            self._stats = sum((replace(row.stats, prompt_tokens=0) for row in rows), self._stats)
            found = max((self._attempt(row) for row in rows), key=lambda each: each.avg_logprob)
            if silence is None and self._asks_for_silence(found):
                silence = yield from self._silence(window, prefix)
            found = replace(found, no_speech_prob=silence)
            if not self._fails(found):
                break
            reference = rows[0].generated
        return found

    def _attempt(self, row: Row) -> Attempt:
        tokens = [token for token in row.generated if token != self._special.end]
        mean = sum(row.logprobs) / (len(tokens) + 1)
        return Attempt(
            tokens, row.origins[: len(tokens)], self._text(tokens), row.options.temp, mean
        )

    def _asks_for_silence(self, found: Attempt) -> bool:
        """Whether the probability of silence is needed."""
        asked, least = self._asked, self._asked.logprob_threshold
        unsure = least is None or found.avg_logprob <= least
        return asked.no_speech_probs or (asked.no_speech_threshold is not None and unsure)

    def _silence(self, window: Window, prefix: list[int]) -> Generator[list[Row], None, float]:
        """The probability that nobody speaks, before any rule applies."""
        s = self._special
        rule = Against(s.no_speech, s.end)
        row = yield from self._one_token(window, prefix[: prefix.index(s.start) + 1], rule)
        p = math.exp(row.logprobs[0])
        return p if row.generated[0] == s.no_speech else 1 - p

    def _fails(self, found: Attempt) -> bool:
        """Whether to try the next temperature."""
        asked, least = self._asked, self._asked.logprob_threshold
        unsure = least is not None and found.avg_logprob < least
        most = asked.compression_ratio_threshold
        loops = most is not None and found.compression_ratio > most
        return (loops or unsure) and not (unsure and self._is_silent(found))

    def _is_silent(self, found: Attempt) -> bool:
        most, p = self._asked.no_speech_threshold, found.no_speech_prob
        return most is not None and p is not None and p > most

    def _is_speech(self, found: Attempt) -> bool:
        least = self._asked.logprob_threshold
        sure = least is not None and found.avg_logprob > least
        return sure or not self._is_silent(found)

    def _cut(self, found: Attempt, seek: int, size: int) -> tuple[list[Segment], int, bool]:
        """A window's segments, how many frames they cover, and whether nothing is left of its text. Two timestamps in
        a row end one segment and begin the next. Text after the last pair is dropped, and drafts the next window; a
        window that is `batched` has no next one."""
        first, tokens = self._special.first_timestamp, found.tokens
        stamps = [token >= first for token in tokens]
        cuts = [i + 1 for i, pair in enumerate(pairwise(stamps)) if all(pair)]
        ended = self._asked.batched or stamps[-2:] == [False, True]
        if not cuts:
            last = max((t - first for t in tokens if t > first), default=None)
            frames = size if last is None else last * _PER_TIMESTAMP
            return [self._segment(found, slice(None), seek, 0, frames)], size, ended
        segments = []
        for begin, end in pairwise([0, *cuts, *([len(tokens)] if ended else [])]):
            times = [(tokens[i] - first) * _PER_TIMESTAMP for i in (begin, end - 1)]
            times[1] = times[1] if stamps[end - 1] else size
            segments.append(self._segment(found, slice(begin, end), seek, *times))
        if ended:
            return segments, size, ended
        self._tail = [first, *tokens[cuts[-1] + 1 :]]
        advance = (tokens[cuts[-1] - 1] - first) * _PER_TIMESTAMP
        return segments, max(1, advance), ended

    def _timed(
        self, window: Window, segments: list[Segment], size: int, language: str
    ) -> Generator[list[Row], None, list[Segment]]:
        """A window's segments with their words, and times that are the words'."""
        s, c, task = self._special, self._config, self._asked.task
        text = [token for segment in segments for token in segment.tokens if token < s.end]
        found, words = list[np.ndarray](), list[Word]()
        if text:
            layers, upper = range(c.decoder_layers), c.decoder_layers // 2
            heads = s.alignment_heads or tuple(
                product(layers[upper:], range(c.decoder_attention_heads))
            )
            prefix = [*s.prefix(language, task), s.no_timestamps]

            def read(model: Whisper, cross: Pairs) -> None:
                found[:] = attended(model, cross, prefix, text, s.end, heads, max(1, size // 2))

            window.then = read  # in the thread that decodes
            yield from self._one_token(window, [s.start], OneOf((s.end,)))
            spaces = task == TASKS[1] or language not in WITHOUT_SPACES
            begins = first_columns(found[0]) * SECONDS_PER_TIMESTAMP
            words = spoken(split(text, self._text, spaces), begins, found[1])
        before = segments[0].seek / FRAMES if self._asked.batched else self._spoken
        return placed(segments, words, s.end, before)

    def _going_on(
        self, segments: list[Segment], seek: int, size: int, advance: int, ended: bool
    ) -> tuple[list[Segment], int]:
        """The segments of a window whose words' times are known, without inventions, and how far it covers them."""
        threshold, whole = self._asked.hallucination_silence_threshold, seek + self._config.frames
        last = last_end(segments)
        if not ended and last > seek / FRAMES:
            rests = threshold is not None and whole / FRAMES - last <= threshold
            advance = size if rests else round(last * FRAMES) - seek
        if threshold is not None:
            times = (
                seek / FRAMES,
                (seek + size) / FRAMES,
                whole / FRAMES,
                len(self._features) / FRAMES,
            )
            segments, onward = without_inventions(segments, times, self._spoken, threshold)
            advance = advance if onward is None else round(onward * FRAMES) - seek
        self._spoken = last_end(segments) if segments else self._spoken
        return segments, max(1, advance)

    def _segment(self, found: Attempt, part: slice, seek: int, begin: int, end: int) -> Segment:
        """A segment of the tokens `part`, from frame `begin` to `end` of the window at `seek`."""
        return Segment(
            id=0,
            seek=seek,
            start=(seek + begin) / FRAMES,
            end=(seek + end) / FRAMES,
            text=self._text(found.tokens[part]),
            tokens=found.tokens[part],
            origins=tuple(found.origins[part]),
            temperature=found.temperature,
            avg_logprob=found.avg_logprob,
            compression_ratio=found.compression_ratio,
            no_speech_prob=found.no_speech_prob,
        )

    def _text(self, tokens: list[int]) -> str:
        """The tokens' text, without timestamps."""
        known = [token for token in tokens if token < self._special.end]
        return self._tokenizer.decode(known, skip_special_tokens=False)

    def _kept(self, segments: list[Segment], sure: bool) -> list[Segment]:
        """Add the segments that have text and a duration to the transcript; return these. sure: they may prompt the
        next window."""
        kept = [s for s in segments if s.text.strip() and s.end > s.start]
        kept = [self._numbered(s, len(self._segments) + i) for i, s in enumerate(kept)]
        self._segments += kept
        if self._asked.batched:
            return kept
        self._previous += [token for segment in kept for token in segment.tokens]
        if not (sure and self._asked.condition_on_previous_text):
            self._previous = []
        return kept

    def _numbered(self, segment: Segment, id: int) -> Segment:
        """The segment with its number and, if not all of the sound is read, the sound's times. A word across a pause
        that is left out goes where its middle is."""
        times, words = self._seconds, segment.words
        seek = round(FRAMES * times(segment.seek / FRAMES))
        start, end = times(segment.start), times(segment.end, True)
        if words and self._at is not None:
            for word in words:
                middle = round((word.start + word.end) / 2, 2)
                later = times(middle) - middle
                word.start, word.end = round(word.start + later, 2), round(word.end + later, 2)
            start, end = words[0].start, words[-1].end
        return replace(segment, id=id, seek=seek, start=start, end=end)


def together(readings: list[Generator[list[Row], None, Any]]) -> Generator[list[Row], None, list]:
    """What generators of rows return, whose rows are decoded together."""
    found: list[Any] = [None] * len(readings)
    live = dict(enumerate(readings))
    while live:
        rows = list[Row]()
        for i, reading in list(live.items()):
            try:
                rows += next(reading)
            except StopIteration as end:
                found[i] = end.value
                del live[i]
        if rows:
            yield rows
    return found
