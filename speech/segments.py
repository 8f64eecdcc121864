"""A transcript: segments of text with their times, and words with theirs."""

from dataclasses import dataclass, field

from speculative.row import Stats


@dataclass
class Word:
    word: str  # with the space before it and the punctuation around it
    start: float  # seconds
    end: float
    probability: float  # the mean of its tokens'
    tokens: int  # how many

    def to_dict(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "tokens"}


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

    def to_dict(self) -> dict:
        """Its fields except the origins, and the words if there are any."""
        fields = {name: x for name, x in vars(self).items() if name not in ("origins", "words")}
        if self.words is not None:
            fields["words"] = [word.to_dict() for word in self.words]
        return fields


@dataclass(frozen=True)
class Transcript:
    text: str
    segments: tuple[Segment, ...]
    language: str  # its code
    duration: float  # of the sound, in seconds
    stats: Stats = field(default_factory=Stats)
