"""Decodes windows of sound, each at the first temperature where its text does not fail (Radford et al. 2022, section
4.5)."""

import math
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from families import whisper
from speculative.options import Options
from speculative.processors import Processor
from speculative.row import Row, Stats
from speculative.sampling import RowSeeds
from speech.options import TranscribeOptions
from speech.rules import Against, OneOf, Special
from speech.window import Attempt, Window


class WindowDecoder:
    """Decodes the windows of a sound. What yields rows goes on when they are finished."""

    def __init__(
        self,
        config: whisper.Config,
        tokenizer: Tokenizer,
        special: Special,
        options: TranscribeOptions,
    ):
        self._config, self._tokenizer = config, tokenizer
        self._special, self.options = special, options
        self._seeds = RowSeeds(options.seed)
        self.stats = Stats()

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens' text, without timestamps."""
        words = [token for token in tokens if self._special.is_text(token)]
        return self._tokenizer.decode(words, skip_special_tokens=False)

    def language_row(self, prompt: whisper.Window) -> Row:
        """The row that finds the most probable language of a window, as its only token."""
        codes = OneOf(tuple(self._special.languages.values()))
        return self._one_token_row(prompt, [self._special.start], codes)

    def _one_token_row(self, prompt: whisper.Window, prefix: list[int], rule: Processor) -> Row:
        options = Options(max_tokens=1, logprobs=0, lookup=False, processors=(rule,))
        row = Row(prompt, options)
        row.begin(prefix, self._config)
        return row

    def decode(
        self,
        windows: Sequence[Window],
        language: str,
        previous: list[int],
        tries: int | None = None,
    ) -> Generator[list[Row], Any, list[Window]]:
        """Decode each window at the first temperature where its text does not fail. tries: temperatures at most"""
        earlier = list[int]()
        if previous:
            longest = self._config.max_positions // 2
            earlier = [self._special.previous, *previous[1 - longest :]]
        prefix = [*earlier, *self._special.prefix(language, self.options.task)]
        if not self._special.has_timestamps:
            prefix.append(self._special.no_timestamps)
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
            yield from self._find_silence(decoded, failing, [*earlier, self._special.start])
            failing = [i for i in failing if self.fails(decoded[i].attempt)]
            if not failing:
                break
        self.stats.prompt_tokens += len(windows)  # each window once, however often it was tried
        return decoded

    def _rows(self, window: Window, prefix: list[int], temperature: float) -> list[Row]:
        options = self._special.options(
            suppressed=self.options.suppress_tokens,
            temp=temperature,
            max_tokens=self._config.max_positions // 2,
            num_draft=self.options.num_draft,
        )
        seed = partial(self._seeds, [window.seek, round(100 * temperature)])
        count = self.options.best_of if temperature else 1
        rows = [Row(window.prompt, options, seed(), reference=window.draft) for _ in range(count)]
        for row in rows:
            row.begin(prefix, self._config)
        return rows

    def _attempt(self, row: Row) -> Attempt:
        tokens = [token for token in row.generated if token != self._special.end]
        mean = sum(row.logprobs) / (len(tokens) + 1)
        origins = row.origins[: len(tokens)]
        text = self.text(tokens).strip().encode()
        ratio = len(text) / len(zlib.compress(text))
        return Attempt(tokens, origins, row.options.temp, mean, ratio)

    def _find_silence(
        self, windows: list[Window], tried: Sequence[int], prefix: list[int]
    ) -> Iterator[list[Row]]:
        """Find the probability that nobody speaks, before any rule applies, of each window where it matters. windows: the
        new ones replace these; tried: the numbers of those that were"""
        no_speech = self._special.no_speech
        rule = Against(no_speech, self._special.end)
        unknown = [i for i in tried if self._needs_no_speech_prob(windows[i].attempt)]
        rows = {i: self._one_token_row(windows[i].prompt, prefix, rule) for i in unknown}
        if rows:
            yield list(rows.values())
        for i, row in rows.items():
            p = math.exp(row.logprobs[0])
            p = p if row.generated[0] == no_speech else 1 - p
            windows[i] = replace(windows[i], attempt=replace(windows[i].attempt, no_speech_prob=p))

    def fails(self, attempt: Attempt) -> bool:
        """Whether to try the next temperature."""
        ratio = self.options.compression_ratio_threshold
        repeats = ratio is not None and attempt.compression_ratio > ratio
        threshold = self.options.logprob_threshold
        unsure = threshold is not None and attempt.avg_logprob < threshold
        return (repeats or unsure) and not (unsure and self._is_silent(attempt))

    def is_speech(self, attempt: Attempt) -> bool:
        threshold = self.options.logprob_threshold
        sure = threshold is not None and attempt.avg_logprob > threshold
        return sure or not self._is_silent(attempt)

    def _is_silent(self, attempt: Attempt) -> bool:
        threshold = self.options.no_speech_threshold
        probability = attempt.no_speech_prob
        return threshold is not None and probability is not None and probability > threshold

    def _needs_no_speech_prob(self, attempt: Attempt) -> bool:
        if attempt.no_speech_prob is not None:
            return False
        threshold = self.options.logprob_threshold
        unsure = threshold is None or attempt.avg_logprob <= threshold
        return self.options.no_speech_probs or (
            self.options.no_speech_threshold is not None and unsure
        )
