"""The options of a transcript."""

import math
from dataclasses import dataclass

from common.errors import InputError
from speculative.options import Options
from speech.reference import Part
from speech.rules import TASKS
from speech.words import AFTER, BEFORE


@dataclass(frozen=True)
class TranscribeOptions:
    """The options of a transcript, with the names and defaults of OpenAI's `transcribe`. A threshold of None is off.
    Raises InputError for values out of range."""

    language: str | None = None  # a code; None: detect it in the first window
    task: str = TASKS[0]
    temperature: float = 0.0  # if a text fails, retry in steps of 0.2 up to 1
    best_of: int = 5  # texts at a temperature above 0
    initial_prompt: str = ""
    carry_initial_prompt: bool = (
        False  # it begins the prompt of every window, not of the first only
    )
    hotwords: str = ""  # before the prompt of every window
    reference: tuple[Part, ...] = ()  # what the text may resemble, from which drafts are copied
    condition_on_previous_text: bool = True
    suppress_tokens: tuple[int, ...] = (-1,)  # tokens never to write; -1: those of the checkpoint
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
    prepend_punctuations: str = BEFORE  # marks that join the next word
    append_punctuations: str = AFTER  # marks that join the word before
    hallucination_silence_threshold: float | None = None  # seconds; needs word_timestamps
    no_speech_probs: bool = False  # for every segment, which takes one more call per window

    def __post_init__(self):
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}, not one of {', '.join(TASKS)}")
        if not 0 <= self.temperature <= 1:
            raise InputError(f"temperature is {self.temperature}, not from 0 to 1")
        if not 1 <= self.best_of <= 64:
            raise InputError(f"best_of is {self.best_of}, not from 1 to 64")
        for name, value in vars(self).items():
            if isinstance(value, float) and math.isnan(value):
                raise InputError(f"{name} is {value}, not a number")
        clips = self.clip_timestamps
        empty = any(start == end for start, end in zip(clips[::2], clips[1::2], strict=False))
        if any(not 0 <= t < math.inf for t in clips) or list(clips) != sorted(clips) or empty:
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
