"""The parts of a transcribed sound: windows, segments of their texts with times, words with theirs, and a transcript."""

import math
from dataclasses import asdict, dataclass, field

from apps.speech.options import TranscribeOptions
from apps.speech.rules import Special
from speculative.models.whisper import SoundPrompt
from speculative.step.row import Stats


@dataclass(frozen=True)
class Word:
    word: str  # with the space before it and the punctuation around it
    start: float  # seconds
    end: float
    probability: float  # the mean of its tokens'
    tokens: int  # how many


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, with the names and meanings of OpenAI's."""

    id: int
    seek: int  # where its window begins, in frames of 10 ms
    start: float  # seconds
    end: float
    text: str
    tokens: list[int]  # with timestamps
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None = None  # None: not computed
    origins: tuple[str, ...] = ()  # of each token: see row.ORIGINS
    words: tuple[Word, ...] | None = None  # None: not timed
    speaker: str | None = None  # if each has a channel

    @property
    def line(self) -> str:
        """The text, after the speaker's name if there is one."""
        return ": ".join(filter(None, [self.speaker, self.text.strip()]))

    def to_dict(self) -> dict:
        """Its fields except the origins, and the words and the speaker if they are known."""
        fields = asdict(self)
        del fields["origins"]
        for name in ("words", "speaker"):
            if fields[name] is None:
                del fields[name]
        for word in fields.get("words", ()):
            del word["tokens"]
        return fields


def _above(value: float | None, threshold: float | None) -> bool:
    return value is not None and threshold is not None and value > threshold


@dataclass(frozen=True)
class Attempt:
    """A window's text at one temperature; its segments have the same fields."""

    tokens: list[int]  # with timestamps, without the end
    origins: list[str]
    temperature: float
    avg_logprob: float  # of the tokens and the end
    compression_ratio: float  # high if the text repeats itself
    no_speech_prob: float | None = None  # None: not computed

    def fails(self, options: TranscribeOptions) -> bool:
        """Whether to try the next temperature."""
        repeats = _above(self.compression_ratio, options.compression_ratio_threshold)
        unsure = _above(options.logprob_threshold, self.avg_logprob)
        return (repeats or unsure) and not (unsure and self._is_silent(options))

    def is_speech(self, options: TranscribeOptions) -> bool:
        return self._is_sure(options) or not self._is_silent(options)

    def needs_no_speech_prob(self, options: TranscribeOptions) -> bool:
        matters = options.no_speech_threshold is not None and not self._is_sure(options)
        return self.no_speech_prob is None and (matters or options.no_speech_probs)

    def _is_sure(self, options: TranscribeOptions) -> bool:
        return _above(self.avg_logprob, options.logprob_threshold)

    def _is_silent(self, options: TranscribeOptions) -> bool:
        return _above(self.no_speech_prob, options.no_speech_threshold)


@dataclass(frozen=True)
class Window:
    """Frames are counted in what is transcribed, and so are seconds."""

    prompt: SoundPrompt
    seek: int  # its first frame
    size: int  # frames with sound; padding follows
    draft: list[int] = field(default_factory=list)  # a text that drafts the next attempt
    attempt: Attempt = Attempt([], [], 0.0, -math.inf, 1.0)
    segments: tuple[Segment, ...] = ()  # of its text
    advance: int = 0  # frames that they cover
    rest: list[int] = field(default_factory=list)  # tokens after the last segment

    def text(self, special: Special) -> list[int]:
        """The tokens of its segments, without timestamps."""
        tokens = (token for segment in self.segments for token in segment.tokens)
        return [token for token in tokens if special.is_text(token)]


@dataclass(frozen=True)
class Transcript:
    text: str
    segments: tuple[Segment, ...]
    language: str  # its code
    duration: float  # of the sound, in seconds
    stats: Stats = field(default_factory=Stats)
