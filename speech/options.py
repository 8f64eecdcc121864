"""The options of a transcript, and when they reject a window's text."""

import math
import zlib
from dataclasses import dataclass

from errors import InputError
from speculative.options import Options
from speech.rules import TASKS


@dataclass(frozen=True)
class Attempt:
    """A window's text at one temperature."""

    tokens: list[int]  # with timestamps, without the end
    origins: list[str]
    text: str
    temperature: float
    avg_logprob: float  # of the tokens and the end
    no_speech_prob: float | None = None  # None: not computed

    @property
    def compression_ratio(self) -> float:
        """The text's bytes divided by its compressed bytes: high if the text repeats itself."""
        data = self.text.strip().encode()
        return len(data) / len(zlib.compress(data))


UNTRIED = Attempt([], [], "", 0.0, -math.inf)


@dataclass(frozen=True)
class TranscribeOptions:
    """The options of a transcript, with the names and defaults of OpenAI's `transcribe`. A threshold of None is off.
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
    # seconds: start, end, start ...; the last end may be missing
    clip_timestamps: tuple[float, ...] = ()
    seed: int = 0
    num_draft: int | str = "auto"
    vad: bool = False  # transcribe only what a voice detector takes for speech
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

    def fails(self, attempt: Attempt) -> bool:
        """Whether to try the next temperature."""
        ratio = self.compression_ratio_threshold
        repeats = ratio is not None and attempt.compression_ratio > ratio
        threshold = self.logprob_threshold
        unsure = threshold is not None and attempt.avg_logprob < threshold
        return (repeats or unsure) and not (unsure and self._is_silent(attempt))

    def is_speech(self, attempt: Attempt) -> bool:
        threshold = self.logprob_threshold
        sure = threshold is not None and attempt.avg_logprob > threshold
        return sure or not self._is_silent(attempt)

    def _is_silent(self, attempt: Attempt) -> bool:
        threshold = self.no_speech_threshold
        probability = attempt.no_speech_prob
        return threshold is not None and probability is not None and probability > threshold

    def needs_no_speech_prob(self, attempt: Attempt) -> bool:
        threshold = self.logprob_threshold
        unsure = threshold is None or attempt.avg_logprob <= threshold
        return self.no_speech_probs or (self.no_speech_threshold is not None and unsure)
