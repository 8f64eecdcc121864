"""Transcripts and their file formats, which are OpenAI whisper's."""

import json
from collections.abc import Callable
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
    words: tuple[Word, ...] | None = None  # None: not asked for

    def to_dict(self) -> dict:
        """Its fields except the origins, and the words if there are any."""
        found = {name: x for name, x in vars(self).items() if name not in ("origins", "words")}
        if self.words is not None:
            found["words"] = [word.to_dict() for word in self.words]
        return found


@dataclass(frozen=True)
class Transcript:
    text: str
    segments: tuple[Segment, ...]
    language: str  # its code
    duration: float  # of the sound, in seconds
    stats: Stats = field(default_factory=Stats)


def _stamp(seconds: float, hours: bool, point: str) -> str:
    """A time such as 01:02:03.456; without `hours`, 02:03.456 if it is less than one hour."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    before = f"{hour:02d}:" if hour or hours else ""
    return f"{before}{minute:02d}:{second:02d}{point}{milliseconds:03d}"


def _span(segment: Segment, hours: bool, point: str = ".") -> str:
    times = (_stamp(t, hours, point) for t in (segment.start, segment.end))
    return " --> ".join(times)


def _line(segment: Segment) -> str:
    """The text, without arrows that a player would take for another cue."""
    return segment.text.strip().replace("-->", "->")


def _txt(transcript: Transcript) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def _vtt(transcript: Transcript) -> str:
    cues = (f"{_span(s, hours=False)}\n{_line(s)}\n\n" for s in transcript.segments)
    return "WEBVTT\n\n" + "".join(cues)


def _srt(transcript: Transcript) -> str:
    cues = ((s.id + 1, _span(s, True, ","), _line(s)) for s in transcript.segments)
    return "".join(f"{number}\n{span}\n{text}\n\n" for number, span, text in cues)


def _tsv(transcript: Transcript) -> str:
    cues = ((round(1000 * s.start), round(1000 * s.end), s.text) for s in transcript.segments)
    lines = (f"{start}\t{end}\t{text.strip().replace(chr(9), ' ')}\n" for start, end, text in cues)
    return "start\tend\ttext\n" + "".join(lines)


def _json(transcript: Transcript) -> str:
    segments = [segment.to_dict() for segment in transcript.segments]
    about = {"text": transcript.text, "segments": segments, "language": transcript.language}
    return json.dumps(about, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": _txt,
    "vtt": _vtt,
    "srt": _srt,
    "tsv": _tsv,
    "json": _json,
}
