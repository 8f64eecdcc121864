"""The options of a transcript and of its subtitles, each declared once: transcribe.py's flags come from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from apps.speech.reference import Part
from apps.speech.rules import TASKS
from speculative.common.errors import InputError
from speculative.step.options import (
    ANY,
    AUTO,
    CODE,
    DECLARED,
    DRAFT,
    MAX_NUMBER,
    SIZE,
    SWITCH,
    TOKEN,
    Values,
    check_values,
    integers,
    numbers,
    option,
)


def number(text: str) -> float | None:
    return None if text in ("none", "None") else float(text)


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(token) for token in text.split(",") if token)


def seconds(text: str) -> tuple[float, ...]:
    times = ([float(part) for part in time.split(":")] for time in text.split(","))
    return tuple(float(np.polyval(parts, 60)) for parts in times)  # 0:01:30 as digits to base 60


def _are_clips(times: Sequence[float]) -> bool:
    empty = any(start == end for start, end in zip(times[::2], times[1::2], strict=False))
    return all(map(numbers(0).accepts, times)) and [*times] == sorted(times) and not empty


_TASK = Values(str, f"one of {', '.join(TASKS)}", TASKS.__contains__, choices=TASKS)
_TEXT = Values(str, "a text", lambda v: isinstance(v, str), "TEXT")
_IDS = Values(list, "ids of tokens, or -1", lambda v: all(map(TOKEN.accepts, v)), "IDS", read=ids)
_CLIPS = Values(list, "seconds, each later than the one before", _are_clips, "LIST", read=seconds)
_NUMBER = numbers(-MAX_NUMBER)
_NUMBER_OR_NONE = Values(
    float, "a number, or none", lambda x: x is None or _NUMBER.accepts(x), "X", read=number
)
_POSITIVE = Values(float, "a number above 0", lambda x: _NUMBER.accepts(x) and x > 0, "X")
_switch = partial(option, False, SWITCH, words="no")
_text = partial(option, "", _TEXT, words="none")
_size = partial(option, None, SIZE)
_threshold = partial(option, values=_NUMBER_OR_NONE)


@dataclass(frozen=True)
class TranscribeOptions:
    """The options of a transcript, with the names and defaults of OpenAI's `transcribe`. A threshold of None is off."""

    # fmt: off
    language: str | None = option(None, CODE, "a code or a name in any language; auto: detected", "the checkpoint's, or auto")
    task: str | None = option(None, _TASK, "translate: into English", "the checkpoint's")
    temperature: float = option(0.0, numbers(0, 1), "0: greedy; a window that fails: 0.2 more, up to 1", flags=("--temp",))
    best_of: int = option(5, integers(1, 64), "at temperatures above 0, keep the best of N texts")
    seed: int = option(0, ANY, "random seed")
    num_draft: int | str = option(AUTO, DRAFT, DECLARED["num_draft"].help)
    initial_prompt: str = _text("text that could precede the audio, with your spelling of names")
    carry_initial_prompt: bool = _switch("show every window the initial prompt, not the first only")
    hotwords: str = _text("words to show every window before its prompt")
    condition_on_previous_text: bool = option(True, SWITCH, "prompt with the text before it", "yes")
    suppress_tokens: tuple[int, ...] = option((-1,), _IDS, "tokens never to write: --suppress-tokens=-1,50; -1: the checkpoint's", "-1")
    compression_ratio_threshold: float | None = _threshold(2.4, help="retry a window if its text compresses better than X; none: never")
    logprob_threshold: float | None = _threshold(-1.0, help="retry a window if its mean log-probability is below X; none: never")
    no_speech_threshold: float | None = _threshold(0.6, help="an unsure window is silent if silence is likelier than X; none: never")
    clip_timestamps: tuple[float, ...] = option((), _CLIPS, "parts, in seconds or as 1:30: start,end,...", "all")
    vad: bool = _switch("transcribe only what a voice detector takes for speech")
    batched: bool = _switch("decode windows cut at pauses together; texts may differ; needs --vad")
    without_timestamps: bool = _switch("decode text only: a segment is a whole window")
    word_timestamps: bool = _switch("find when each word is spoken, for subtitles and JSON")
    reference: tuple[Part, ...] = ()  # what the text may resemble, from which drafts are copied
    no_speech_probs: bool = False  # for every segment, which takes one more call per window
    # fmt: on

    def __post_init__(self):
        check_values(self)
        if self.batched and not self.vad:
            raise InputError("batched needs vad")

    @property
    def temperatures(self) -> list[float]:
        """0, 0.2, ... 1: each is tried if the text at the one before has failed."""
        steps = (round(self.temperature + i / 5, 2) for i in range(6))
        return [temperature for temperature in steps if temperature <= 1]


@dataclass(frozen=True)
class Layout:
    """Rules for breaking subtitles into cues and lines, by words' times: the numbers are Netflix's and Subtitle Edit's."""

    # fmt: off
    max_line_width: int | None = _size("columns of a line", "any; with --subtitles 42, Chinese and Korean 32, Japanese 26")
    max_line_count: int | None = _size("lines of a cue; brings --subtitles", "2 with --subtitles")
    max_words_per_line: int | None = _size("words of a cue; brings --subtitles", "any")
    subtitles: bool = _switch("make srt and vtt for reading, by words' times and these numbers:")
    min_cue_seconds: float = option(1.0, _POSITIVE, "a cue's minimum duration, if there is time")
    max_cue_seconds: float = option(7.0, _POSITIVE, "a cue's maximum duration")
    reading_speed: float | None = option(None, _POSITIVE, "characters a second, if there is time", "17, Korean 12, Chinese 9, Japanese 4")
    cue_gap: float = option(0.08, numbers(0), "seconds between two cues")
    times: bool = _switch("begin each line of txt with its times: [00:01.000 --> 00:02.500]")
    # fmt: on

    def __post_init__(self):
        check_values(self)

    @property
    def makes_cues(self) -> bool:
        """Whether cues are made for reading, which needs the times of words; otherwise they are segments."""
        return bool(self.subtitles or self.max_line_count or self.max_words_per_line)
