"""Transcribes a sound window by window, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356,
section 4.5 and the reference implementation), with drafts for every text.

`Sound.transcript` calls `decode` with the rows to decode next. So one batch can decode many sounds together, each in
its own order: see `steps`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from tokenizers import Tokenizer

from families.whisper import Whisper
from families.whisper import Window as Prompt
from speculative.options import Options
from speculative.processors import Processor
from speculative.row import Row, Stats
from speculative.sampling import RowSeeds
from speech.features import FRAMES, RATE, log_mel
from speech.formats import Segment, Transcript, Word
from speech.options import UNTRIED, Attempt, TranscribeOptions
from speech.rules import Against, OneOf, Special
from speech.segments import Cut, cut
from speech.steps import Call, Decode
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

OnWindow = Callable[[Sequence[Segment], float, Stats], object]


@dataclass
class _Text:
    """A window, and what was decoded of it."""

    prompt: Prompt
    seek: int  # its first frame
    size: int  # frames with sound
    draft: list[int] = field(default_factory=list)  # a text that drafts this one
    attempt: Attempt = UNTRIED
    no_speech_prob: float | None = None


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
        self._duration = len(samples) / RATE
        self._features = log_mel(samples, self._config.num_mel_bins)
        self._frames: np.ndarray | None = None  # with vad: the sound's, of each of the features
        if options.vad:
            speech = probabilities(samples)
            self._frames = np.flatnonzero(with_speech(speech))
            self._features = self._features[self._frames]
            self._speech = speech[self._frames]  # how probable it is in each frame
        self._language = options.language
        self._seeds = RowSeeds(options.seed)
        self._segments: list[Segment] = []
        self._stats = Stats()
        self._previous: list[int] = []  # the text before the next window
        if prompt := options.initial_prompt.strip():
            self._previous = self._text_tokens(
                tokenizer.encode(f" {prompt}", add_special_tokens=False).ids
            )
        self._rest: list[int] = []  # the unfinished text at the end of the last window
        self._spoken = 0.0  # when the last word has ended, in seconds

    def transcript(self, decode: Decode, call: Call) -> Transcript:
        """decode: returns when rows are finished; call: calls a function where the models may be used"""
        for seek, end in self._clips():
            while seek < end:
                texts = self._next_windows(seek, end)
                if self._language is None:
                    self._language = self._detect_language(texts[0].prompt, decode)
                self._decode(texts, decode)
                cuts = [self._cut(text) for text in texts]
                if self._options.word_timestamps:
                    self._time_words(texts, cuts, call)
                for text, part in zip(texts, cuts, strict=True):
                    segments = self._append(part.segments, text.attempt.temperature <= 0.5)
                    self._rest = part.rest or []
                    seek += part.advance
                    seconds = self._seconds(seek / FRAMES, True)
                    self._on_window(segments, seconds, self._stats)
        whole = "".join(segment.text for segment in self._segments)
        language = self._language or "en"
        return Transcript(whole, tuple(self._segments), language, self._duration, self._stats)

    # Windows

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

    def _next_windows(self, seek: int, end: int) -> list[_Text]:
        """The next window; or with `batched` some that end in pauses, each in its second half."""
        longest = self._config.frames
        texts = list[_Text]()
        while seek < end and len(texts) < (_TOGETHER if self._options.batched else 1):
            size = min(longest, end - seek)
            if self._options.batched and end - seek > longest:
                half = longest // 2
                size = half + last_pause(self._speech[seek + half : seek + longest])
            features = np.zeros((longest, self._config.num_mel_bins), np.float32)
            features[:size] = self._features[seek : seek + size]
            prompt = self._model.windows.add(features)
            texts.append(_Text(prompt, seek, size, draft=self._rest))
            seek += size
        return texts

    def _seconds(self, seconds: float, end: bool = False) -> float:
        """A time in the sound, from one in what is transcribed of it."""
        if self._frames is None:
            return seconds
        index = min(max(round(seconds * FRAMES) - end, 0), len(self._frames) - 1)
        return float(self._frames[index] + end) / FRAMES

    # Texts

    def _detect_language(self, prompt: Prompt, decode: Decode) -> str:
        """The most probable language of a window."""
        codes = {token: code for code, token in self._special.languages.items()}
        if not codes:
            return "en"
        row = self._one_token_row(prompt, [self._special.start], OneOf(tuple(codes)))
        decode([row])
        return codes[row.generated[0]]

    def _one_token_row(self, prompt: Prompt, prefix: list[int], rule: Processor) -> Row:
        options = Options(max_tokens=1, logprobs=0, lookup=False, processors=(rule,))
        row = Row(prompt, options)
        row.begin(prefix, self._config)
        return row

    def _decode(self, texts: list[_Text], decode: Decode) -> None:
        """Decode each window at the first temperature where its text does not fail."""
        earlier = list[int]()
        if self._previous:
            longest = self._config.max_positions // 2
            earlier = [self._special.previous, *self._previous[1 - longest :]]
        prefix = [*earlier, *self._steering()]
        failing = texts
        for temperature in self._options.temperatures:
            rows = [self._rows(text, prefix, temperature) for text in failing]
            decode([row for group in rows for row in group])
            for text, group in zip(failing, rows, strict=True):
                for row in group:
                    self._stats += replace(row.stats, prompt_tokens=0)
                attempts = map(self._attempt, group)
                text.attempt = max(attempts, key=lambda attempt: attempt.avg_logprob)
                text.draft = group[0].generated
            self._find_silence(failing, [*earlier, self._special.start], decode)
            failing = [text for text in failing if self._options.fails(text.attempt)]
            if not failing:
                break
        self._stats.prompt_tokens += len(texts)  # each window once, however often it was tried

    def _steering(self) -> list[int]:
        return self._special.prefix(self._language or "en", self._options.task)

    def _rows(self, text: _Text, prefix: list[int], temperature: float) -> list[Row]:
        options = self._special.options(
            temp=temperature,
            max_tokens=self._config.max_positions // 2,
            num_draft=self._options.num_draft,
        )
        seed = partial(self._seeds, [text.seek, round(100 * temperature)])
        count = self._options.best_of if temperature else 1
        rows = [Row(text.prompt, options, seed(), reference=text.draft) for _ in range(count)]
        for row in rows:
            row.begin(prefix, self._config)
        return rows

    def _attempt(self, row: Row) -> Attempt:
        tokens = [token for token in row.generated if token != self._special.end]
        mean = sum(row.logprobs) / (len(tokens) + 1)
        origins = row.origins[: len(tokens)]
        return Attempt(tokens, origins, self._text(tokens), row.options.temp, mean)

    def _find_silence(self, texts: list[_Text], prefix: list[int], decode: Decode) -> None:
        """Find the probability that nobody speaks, before any rule applies, of each window where it matters."""
        no_speech = self._special.no_speech
        rule = Against(no_speech, self._special.end)
        rows = dict[int, Row]()
        for i, text in enumerate(texts):
            unknown = text.no_speech_prob is None
            if unknown and self._options.needs_no_speech_prob(text.attempt):
                rows[i] = self._one_token_row(text.prompt, prefix, rule)
        if rows:
            decode(list(rows.values()))
        for i, row in rows.items():
            p = math.exp(row.logprobs[0])
            texts[i].no_speech_prob = p if row.generated[0] == no_speech else 1 - p
        for text in texts:
            text.attempt = replace(text.attempt, no_speech_prob=text.no_speech_prob)

    def _text_tokens(self, tokens: Iterable[int]) -> list[int]:
        """The tokens without timestamps."""
        return [token for token in tokens if token < self._special.end]

    def _text(self, tokens: Sequence[int]) -> str:
        """The tokens' text, without timestamps."""
        return self._tokenizer.decode(self._text_tokens(tokens), skip_special_tokens=False)

    # Segments

    def _cut(self, text: _Text) -> Cut:
        if not self._options.is_speech(text.attempt):
            return Cut([], text.size)
        first, complete = self._special.first_timestamp, self._options.batched
        return cut(text.attempt, text.seek, text.size, first, self._text, complete)

    def _time_words(self, texts: list[_Text], cuts: list[Cut], call: Call) -> None:
        """Give the segments their words, and times that are the words'."""
        tokens = [self._text_tokens(t for s in part.segments for t in s.tokens) for part in cuts]
        spoken = [i for i, ids in enumerate(tokens) if ids]
        words = dict[int, list[Word]]()
        if spoken:
            windows = [
                TimedWindow(texts[i].prompt, tokens[i], max(1, texts[i].size // 2)) for i in spoken
            ]
            attention = call(
                lambda: attended(self._model, self._special, self._steering(), windows)
            )
            spaces = has_spaces(self._language or "en", self._options.task)
            for i, (weights, chances) in zip(spoken, attention, strict=True):
                words[i] = timed_words(split(tokens[i], self._text, spaces), weights, chances)
        for i, (text, part) in enumerate(zip(texts, cuts, strict=True)):
            if part.segments:
                before = text.seek / FRAMES if self._options.batched else self._spoken
                end = self._special.end
                part.segments = place_words(part.segments, words.get(i, []), end, before)
                self._follow_words(text, part)

    def _follow_words(self, text: _Text, part: Cut) -> None:
        """Advance to the end of the last word if text is left, and drop hallucinated segments."""
        threshold = self._options.hallucination_silence_threshold
        window = WindowTimes(
            start=text.seek / FRAMES,
            sound_end=(text.seek + text.size) / FRAMES,
            end=(text.seek + self._config.frames) / FRAMES,
            whole_end=len(self._features) / FRAMES,
        )
        last = last_end(part.segments)
        if part.rest is not None and last > window.start:
            silent = threshold is not None and window.end - last <= threshold
            part.advance = text.size if silent else round(last * FRAMES) - text.seek
        if threshold is not None:
            part.segments, onward = drop_hallucinations(
                part.segments, window, self._spoken, threshold
            )
            if onward is not None:
                part.advance = round(onward * FRAMES) - text.seek
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
