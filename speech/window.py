"""A window of sound: what is decoded in one go, and what becomes of it."""

import math
from dataclasses import dataclass, field

from families import whisper
from speech.features import FRAMES
from speech.rules import Special
from speech.segments import Segment


@dataclass(frozen=True)
class Attempt:
    """A window's text at one temperature."""

    tokens: list[int]  # with timestamps, without the end
    origins: list[str]
    temperature: float
    avg_logprob: float  # of the tokens and the end
    compression_ratio: float  # high if the text repeats itself
    no_speech_prob: float | None = None  # None: not computed


@dataclass(frozen=True)
class Window:
    """Frames are counted in what is transcribed, and so are seconds."""

    prompt: whisper.Window
    seek: int  # its first frame
    size: int  # frames with sound; padding follows
    draft: list[int] = field(default_factory=list)  # a text that drafts the next attempt
    attempt: Attempt = Attempt([], [], 0.0, -math.inf, 1.0)
    segments: tuple[Segment, ...] = ()  # of its text
    advance: int = 0  # frames that they cover
    rest: list[int] | None = None  # tokens after the last segment; None: the text is complete

    @property
    def start(self) -> float:
        return self.seek / FRAMES

    @property
    def sound_end(self) -> float:
        return (self.seek + self.size) / FRAMES

    @property
    def end(self) -> float:
        """With its padding."""
        return (self.seek + len(self.prompt.features)) / FRAMES

    @property
    def positions(self) -> int:
        """Encoder positions with the sound of its segments."""
        return max(1, min(self.advance, self.size) // 2)

    def text(self, special: Special) -> list[int]:
        """The tokens of its segments, without timestamps."""
        tokens = (token for segment in self.segments for token in segment.tokens)
        return [token for token in tokens if special.is_text(token)]
