"""Transcripts and their file formats, which are OpenAI whisper's."""

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from speech.segments import Segment, Transcript, Word
from speech.subtitles import Rules, cues
from text.cues import stamp


@dataclass(frozen=True)
class Layout:
    """How subtitles are broken into lines. All but the width needs words' times."""

    max_line_width: int | None = None  # in characters
    max_line_count: int | None = None  # of a subtitle; with a width, subtitles go across segments
    max_words_per_line: int | None = None
    highlight_words: bool = False  # underline each word while it is spoken
    reading: Rules | None = None  # make cues for reading instead


Line = list[Word]
Cue = tuple[float, float, str]  # beginning and end in seconds, text
Escape = Callable[[str], str]  # writes a text in a format that has tags


def _words(segment: Segment) -> Sequence[Word]:
    if segment.words is None:
        return [Word(segment.text, segment.start, segment.end, 0.0, 0)]
    return segment.words


def _spread(words: Sequence[Word]) -> Iterator[Word]:
    """The words of a segment. Those of no length share the time of the next that has one, or of the last."""
    timed = [i for i, word in enumerate(words, 1) if word.end > word.start][:-1]
    for first, after in pairwise([0, *timed, len(words)]):
        group = words[first:after]
        share = (group[-1].end - group[0].start) / len(group) if group else 0.0
        for i, word in enumerate(group):
            start = group[0].start + i * share
            yield word if len(group) == 1 else replace(word, start=start, end=start + share)


def _subtitles(transcript: Transcript, layout: Layout) -> Iterator[list[Line]]:
    """The lines of each subtitle, from words, broken where OpenAI's program breaks them."""
    width = layout.max_line_width
    count = layout.max_line_count
    apart = width is None or count is None  # a subtitle is within a segment
    lines: list[Line] = []
    length = 0
    last = 0.0
    for segment in transcript.segments:
        for i, word in enumerate(_spread(segment.words or ())):
            new = apart and i % (layout.max_words_per_line or 1000) == 0
            pause = not apart and word.start - last > 3
            last = word.start
            if lines and not new and not pause and length + len(word.word) <= (width or 1000):
                lines[-1].append(word)
                length += len(word.word)
                continue
            if lines and (new or (count and (pause or len(lines) >= count))):
                yield lines
                lines = []
            lines.append([word])
            length = len(word.word.strip())
    if lines:
        yield lines


def _text(lines: list[Line], escape: Escape, marked: Word | None = None) -> str:
    def shown(word: Word) -> str:
        text = escape(word.word)
        return text.replace(text.strip(), f"<u>{text.strip()}</u>", 1) if word is marked else text

    return "\n".join("".join(map(shown, line)).strip() for line in lines)


def _highlighted(lines: list[Line], escape: Escape) -> Iterator[Cue]:
    words = [word for line in lines for word in line]
    last = words[0].start
    for word in words:
        if word.start - last >= 0.001:
            yield last, word.start, _text(lines, escape)
        yield word.start, word.end, _text(lines, escape, word)
        last = word.end


def _cues(transcript: Transcript, layout: Layout, escape: Escape = str) -> Iterator[Cue]:
    if layout.reading:
        words = [word for segment in transcript.segments for word in _spread(_words(segment))]
        for start, end, text in cues(words, layout.reading, transcript.duration):
            yield start, end, escape(text)
        return
    if any(segment.words for segment in transcript.segments):
        for lines in _subtitles(transcript, layout):
            if layout.highlight_words:
                yield from _highlighted(lines, escape)
            else:
                yield lines[0][0].start, lines[-1][-1].end, _text(lines, escape)
        return
    for segment in transcript.segments:
        text = segment.text.strip()
        if layout.max_line_width:
            text = textwrap.fill(text, layout.max_line_width, break_on_hyphens=False)
        yield segment.start, segment.end, escape(text)


def _cue(cue: Cue, hours: bool, point: str) -> str:
    """Times and text, without arrows that a player would take for another cue."""
    start, end, text = cue
    times = f"{stamp(start, hours, point)} --> {stamp(end, hours, point)}"
    return f"{times}\n{text.replace('-->', '->')}\n\n"


def _txt(transcript: Transcript, layout: Layout) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def _vtt(transcript: Transcript, layout: Layout) -> str:
    cues = _cues(transcript, layout, lambda text: text.replace("&", "&amp;").replace("<", "&lt;"))
    return "WEBVTT\n\n" + "".join(_cue(cue, False, ".") for cue in cues)


def _srt(transcript: Transcript, layout: Layout) -> str:
    cues = enumerate(_cues(transcript, layout), 1)
    return "".join(f"{number}\n{_cue(cue, True, ',')}" for number, cue in cues)


def _tsv(transcript: Transcript, layout: Layout) -> str:
    cues = ((round(1000 * s.start), round(1000 * s.end), s.text) for s in transcript.segments)
    lines = (f"{start}\t{end}\t{text.strip().replace(chr(9), ' ')}\n" for start, end, text in cues)
    return "start\tend\ttext\n" + "".join(lines)


def _json(transcript: Transcript, layout: Layout) -> str:
    segments = [segment.to_dict() for segment in transcript.segments]
    about = {"text": transcript.text, "segments": segments, "language": transcript.language}
    return json.dumps(about, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript, Layout], str]] = {
    "txt": _txt,
    "vtt": _vtt,
    "srt": _srt,
    "tsv": _tsv,
    "json": _json,
}
