"""Makes a transcript of windows of sound, as OpenAI's `transcribe` does (Radford et al. 2022, arXiv 2212.04356, section
4.5 and the reference implementation), with drafts for every text. Times are mended: see timeline.py."""

import math
import zlib
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from apps.speech.features import FRAMES
from apps.speech.options import TranscribeOptions
from apps.speech.rules import SECONDS_PER_TIMESTAMP, Against, OneOf, Special
from apps.speech.segments import Attempt, Segment, Transcript, Window
from apps.speech.timeline import Timeline
from apps.speech.words import attended, cut_segment, has_spaces, place_words, split, timed_words
from speculative.models.whisper import SoundPrompt, Whisper
from speculative.step.driver import Task, Work
from speculative.step.options import Options
from speculative.step.processors import Processor
from speculative.step.row import Row, Stats
from speculative.step.sampling import RowSeeds

_PER_TIMESTAMP = round(SECONDS_PER_TIMESTAMP * FRAMES)  # frames

Windows = Generator[Work, Any, list[Window]]


class Pipeline:
    """Decodes windows, cuts their texts into segments, times the words, and places the segments in the sound."""

    def __init__(
        self,
        model: Whisper,
        tokenizer: Tokenizer,
        special: Special,
        options: TranscribeOptions,
        leaves_rest: bool,
    ):
        """leaves_rest: text that no timestamp ends is left for the next window"""
        self._model, self._tokenizer = model, tokenizer
        self.config, self.special = model.config, special
        self.longest = model.config.frames  # of a window
        self.max_tokens = model.config.max_positions // 2  # of its text
        self.language = None if special.languages else "en"  # None: not known yet
        self.stats = Stats()
        self._leaves_rest = leaves_rest
        self._seeds = RowSeeds(options.seed)
        self._segments: list[Segment] = []
        self._previous = list[int]()  # the text before the next window
        self._spoken = 0.0  # when the last word has ended, in seconds of what is transcribed
        self.configure(options)
        if not options.carry_initial_prompt:
            self._previous = self.tokens(options.initial_prompt)

    def configure(self, options: TranscribeOptions) -> None:
        self.options = options
        self._carried = self.tokens(options.hotwords)  # the beginning of every window's prompt
        if options.carry_initial_prompt:
            self._carried += self.tokens(options.initial_prompt)
        if options.language and self.special.languages:
            self.speak(options.language)

    def tokens(self, text: str) -> list[int]:
        """The tokens of what a user gives as text before the sound's."""
        ids = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids
        return [token for token in ids if self.special.is_text(token)] if text.strip() else []

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens' text, without timestamps."""
        words = [token for token in tokens if self.special.is_text(token)]
        return self._tokenizer.decode(words, skip_special_tokens=False)

    def transcript(self, duration: float) -> Transcript:
        text = "".join(segment.text for segment in self._segments)
        language = self.language or "en"
        return Transcript(text, tuple(self._segments), language, duration, self.stats)

    def window(self, features: np.ndarray, seek: int = 0, draft: Sequence[int] = ()) -> Window:
        """A window of features [frames, bins], padded; seek: the first frame; draft: a text that drafts its own"""
        padded = np.zeros((self.longest, self.config.num_mel_bins), np.float32)
        padded[: len(features)] = features
        return Window(SoundPrompt(padded), seek, len(features), [*draft])

    def detect(self, window: Window) -> Generator[Work, Any, tuple[str, float]]:
        """The code of the language of a window, and how probable it is."""
        codes = {id: code for code, id in self.special.languages.items()}
        if not codes:
            return "en", 1.0
        prompt = window.prompt
        if window.size < self.longest:  # OpenAI's has silence behind it here, otherwise zeros
            features = prompt.features.copy()
            features[window.size :] = features[: window.size].max(initial=0.5) - 2
            prompt = SoundPrompt(features)
        row = self._one_token_row(prompt, [self.special.start], OneOf(tuple(codes)))
        yield [row]
        return codes[row.generated[0]], math.exp(row.logprobs[0])

    def speak(self, language: str) -> None:
        """Go on in a language. The text so far does not begin one in another."""
        if self.language not in (None, language):
            self._previous = []
        self.language = language

    def decode(self, windows: Sequence[Window], language: str, tries: int | None = None) -> Windows:
        """Decode each window at the first temperature where its text does not fail. tries: temperatures at most"""
        room = self.max_tokens - 1
        previous = self._previous if self.language in (None, language) else []
        kept = max(0, room - len(self._carried))
        before = [*self._carried, *previous[max(0, len(previous) - kept) :]][-room:]
        earlier = [self.special.previous, *before] if before else []
        prefix = [*earlier, *self.special.prefix(language, self.options.task)]
        if not self.special.has_timestamps:
            prefix.append(self.special.no_timestamps)
        decoded = [*windows]
        failing = [*range(len(windows))]
        for temperature in self.options.temperatures[:tries]:
            groups = {i: self._rows(decoded[i], prefix, temperature) for i in failing}
            yield [row for rows in groups.values() for row in rows]
            for i, rows in groups.items():
                self.stats += sum((replace(row.stats, prompt_tokens=0) for row in rows), Stats())
                known = decoded[i].attempt.no_speech_prob
                best = max(map(self._attempt, rows), key=lambda attempt: attempt.avg_logprob)
                attempt = replace(best, no_speech_prob=known)
                decoded[i] = replace(decoded[i], attempt=attempt, draft=rows[0].generated)
            yield from self._find_silence(decoded, failing, [*earlier, self.special.start])
            failing = [i for i in failing if decoded[i].attempt.fails(self.options)]
            if not failing:
                break
        self.stats.prompt_tokens += len(windows)  # each window once, however often it was tried
        return decoded

    def _rows(self, window: Window, prefix: list[int], temperature: float) -> list[Row]:
        options = self.special.options(
            suppressed=self.options.suppress_tokens,
            temp=temperature,
            max_tokens=self.max_tokens,
            num_draft=self.options.num_draft,
        )
        seed = partial(self._seeds, [window.seek, round(100 * temperature)])
        count = self.options.best_of if temperature else 1
        begin = partial(Row.begin, window.prompt, options, prefix, self.config)
        return [begin(seed=seed(), reference=window.draft) for _ in range(count)]

    def _one_token_row(self, prompt: SoundPrompt, prefix: list[int], rule: Processor) -> Row:
        options = Options(max_tokens=1, logprobs=0, lookup=False, processors=(rule,))
        return Row.begin(prompt, options, prefix, self.config)

    def _attempt(self, row: Row) -> Attempt:
        tokens = [token for token in row.generated if token != self.special.end]
        mean = sum(row.logprobs) / (len(tokens) + 1)
        text = self.text(tokens).strip().encode()
        ratio = len(text) / len(zlib.compress(text))
        return Attempt(tokens, row.origins[: len(tokens)], row.options.temp, mean, ratio)

    def _find_silence(self, windows: list[Window], tried: Sequence[int], prefix: list[int]) -> Task:
        """Find the probability that nobody speaks, before any rule applies, of the windows that were tried and need it."""
        no_speech = self.special.no_speech
        rule = Against(no_speech, self.special.end)
        unknown = [i for i in tried if windows[i].attempt.needs_no_speech_prob(self.options)]
        rows = {i: self._one_token_row(windows[i].prompt, prefix, rule) for i in unknown}
        if rows:
            yield list(rows.values())
        for i, row in rows.items():
            p = math.exp(row.logprobs[0])
            if row.generated[0] != no_speech:
                p = 1 - p
            windows[i] = replace(windows[i], attempt=replace(windows[i].attempt, no_speech_prob=p))

    def cut(self, windows: Sequence[Window], timeline: Timeline) -> Windows:
        """The windows with their segments, and the words of these with word_timestamps, or across silence that was left out."""
        cut = [self._cut(window) for window in windows]
        given = dict[int, Window]()
        for i, window in enumerate(cut):
            silent = any(timeline.is_cut(segment) for segment in window.segments)
            if (silent or self.options.word_timestamps) and window.text(self.special):
                given[i] = window
        if given:
            steering = self.special.prefix(self.language or "en", self.options.task)
            windows = [*given.values()]
            attention = yield partial(attended, self._model, self.special, steering, windows)
            for (i, window), weights in zip(given.items(), attention, strict=True):
                cut[i] = self._timed(window, weights)
        return cut

    def _cut(self, window: Window) -> Window:
        """Cut a window's text. Two timestamps in a row end one segment and begin the next. Text after the last pair
        is left for the next window, unless one timestamp ends it."""
        window = replace(window, advance=window.size)
        if not window.attempt.is_speech(self.options):
            return window
        first = self.special.first_timestamp
        tokens = window.attempt.tokens
        stamps = [self.special.is_timestamp(token) for token in tokens]
        pairs = zip(tokens, stamps, strict=True)
        frames = [(token - first) * _PER_TIMESTAMP if stamp else 0 for token, stamp in pairs]
        cuts = [i + 1 for i, pair in enumerate(pairwise(stamps)) if all(pair)]
        if not cuts:
            last = max((frame for frame in frames if frame > 0), default=window.size)
            return replace(window, segments=(self._segment(window, 0, len(tokens), 0, last),))
        bounds = [0, *cuts]
        if not self._leaves_rest or stamps[-2:] == [False, True]:
            bounds.append(len(tokens))
        else:
            rest = [first, *tokens[cuts[-1] + 1 :]]
            window = replace(window, advance=max(1, frames[cuts[-1] - 1]), rest=rest)
        segments = []
        for begin, end in pairwise(bounds):
            last = frames[end - 1] if stamps[end - 1] else window.size
            segments.append(self._segment(window, begin, end, frames[begin], last))
        return replace(window, segments=tuple(segments))

    def _segment(self, window: Window, begin: int, end: int, first: int, last: int) -> Segment:
        """A segment of tokens begin to end, from one frame of the window to another."""
        tokens = window.attempt.tokens[begin:end]
        origins = tuple(window.attempt.origins[begin:end])
        fields = vars(window.attempt) | {"tokens": tokens, "origins": origins}
        return Segment(
            id=0,
            seek=window.seek,
            start=(window.seek + first) / FRAMES,
            end=(window.seek + last) / FRAMES,
            text=self.text(tokens),
            **fields,
        )

    def _timed(self, window: Window, weights: tuple[np.ndarray, np.ndarray]) -> Window:
        """The window with its words. weights: see `attended`"""
        spaces = has_spaces(self.language or "en", self.options.task)
        texts = (filter(self.special.is_text, segment.tokens) for segment in window.segments)
        pieces = (split([*tokens], self.text, spaces) for tokens in texts)
        timed = timed_words(chain.from_iterable(pieces), *weights)
        before = self._spoken if self._leaves_rest else window.seek / FRAMES
        segments = place_words(window.segments, timed, self.special.is_text, before)
        self._spoken = segments[-1].end
        return replace(window, segments=tuple(segments))

    def append(self, window: Window, timeline: Timeline) -> list[Segment]:
        """Add the segments that have text and a duration to the transcript; return these. Later windows see their text,
        unless all are decoded at once. One that was sampled much may go astray, and lead them astray."""
        spoken = [s for s in window.segments if s.text.strip() and s.end > s.start]
        seek = round(timeline.seconds(window.seek) * FRAMES)
        cut = partial(cut_segment, is_text=self.special.is_text, decode=self.text)
        end = (window.seek + window.size) / FRAMES
        placed = timeline.place(spoken, window.seek / FRAMES, end, cut)
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
