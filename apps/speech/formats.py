"""Transcripts' formats, which are OpenAI whisper's, and where they go: to stdout, or to files."""

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from apps.speech.options import Layout
from apps.speech.segments import Segment, Transcript, Word
from speculative.common.errors import InputError
from speculative.common.files import check_free, hidden, replacing
from speculative.text.cues import stamp

_MAX_WIDTH = 42  # of a line in characters, by default
_MAX_LINES = 2
_MOST = 3.0  # the strength of a sentence's end
_SENTENCE = re.compile(r"""[.?!…。？！]["'”’)\]»]*$""")  # noqa: RUF001
_CLAUSE = re.compile(r"""[,;:、，]["'”’)\]»]*$""")  # noqa: RUF001

Cue = tuple[float, float, str]  # beginning and end in seconds, text


def cues(words: Sequence[Word], layout: Layout, end: float) -> Iterator[Cue]:
    """The start, end and lines of each cue for reading, so divided that the sum of costs is least. end: the sound's, in seconds"""
    max_width = layout.max_line_width or _MAX_WIDTH
    max_lines = layout.max_line_count or _MAX_LINES
    max_words = layout.max_words_per_line or len(words)
    starts = [*(word.start for word in words), end + layout.cue_gap]
    strengths = [_strength(word, after) for word, after in zip(words, starts[1:], strict=True)]
    costs = [0.0, *[math.inf] * len(words)]  # of the first n words
    firsts = [0] * len(costs)  # of the last cue of these
    for first in range(len(words)):
        text = ""
        for last in range(first, len(words)):
            text += words[last].word
            lines = textwrap.wrap(text.strip(), max_width, break_on_hyphens=False)
            too_long = words[last].end - words[first].start > layout.max_cue_seconds
            too_long = too_long or last - first >= max_words
            if last > first and (too_long or len(lines) > max_lines):
                break
            shown = _end(words[first].start, words[last].end, len(text), starts[last + 1], layout)
            lacking = _seconds(len(text), layout) - (shown - words[first].start)
            crossed = sum(strengths[first:last])
            cost = 1 + _MOST - strengths[last] + 0.7 * crossed + 4 * max(0.0, lacking)
            if costs[first] + cost < costs[last + 1]:
                costs[last + 1] = costs[first] + cost
                firsts[last + 1] = first
    bounds = [len(words)]
    while bounds[-1]:
        bounds.append(firsts[bounds[-1]])
    for after, first in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        text = "".join(word.word for word in words[first:after]).strip()
        start = words[first].start
        stop = _end(start, words[after - 1].end, len(text), starts[after], layout)
        yield start, stop, _balanced(text, max_width)


def _strength(word: Word, after: float) -> float:
    """Rate, from 0 to 3, a cue's end behind a word. after: when the next word begins"""
    clause = float(_CLAUSE.search(word.word) is not None)
    marked = _MOST if _SENTENCE.search(word.word) else clause
    return max(marked, min(_MOST, 4 * (after - word.end)))


def _seconds(size: int, layout: Layout) -> float:
    return max(layout.min_cue_seconds, size / layout.reading_speed)


def _end(start: float, end: float, size: int, after: float, layout: Layout) -> float:
    """The end of a cue that is spoken from `start` to `end`, if the next begins at `after`."""
    wanted = min(max(end, start + _seconds(size, layout)), start + layout.max_cue_seconds)
    return max(min(wanted, after - layout.cue_gap), (start + min(end, after)) / 2)


def _balanced(text: str, max_width: int) -> str:
    """The text in as few lines as it needs, of about the same length."""
    lines = textwrap.wrap(text, max_width, break_on_hyphens=False)
    longest = max(map(len, text.split()), default=1)
    for width in range(max(longest, len(text) // max(1, len(lines))), max_width):
        narrow = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(narrow) == len(lines):
            return "\n".join(narrow)
    return "\n".join(lines)


def _cues(transcript: Transcript, layout: Layout) -> Iterator[Cue]:
    segments = [s for s in transcript.segments if s.words != ()]  # a mark is with the word before
    if not layout.makes_cues:
        for segment in segments:
            text = segment.line
            if layout.max_line_width:
                text = textwrap.fill(text, layout.max_line_width, break_on_hyphens=False)
            yield segment.start, segment.end, text
        return
    turns = [list(turn) for _, turn in groupby(segments, attrgetter("speaker"))]
    ends = [*(turn[0].start - layout.cue_gap for turn in turns[1:]), transcript.duration]
    for turn, end in zip(turns, ends, strict=False):
        words = [word for segment in turn for word in segment.words or ()]
        if turn[0].speaker:
            words[0] = replace(words[0], word=f"{turn[0].speaker}: {words[0].word.strip()}")
        yield from cues(words, layout, max(end, words[-1].end))


def _cue(cue: Cue, hours: bool, point: str) -> str:
    """Times and text, without arrows that a player would take for another cue."""
    start, end, text = cue
    times = f"{stamp(start, hours, point)} --> {stamp(end, hours, point)}"
    return f"{times}\n{text.replace('-->', '->')}\n\n"


def lines(segments: Sequence[Segment], layout: Layout) -> str:
    """The segments as txt."""
    text = ""
    for each in segments:
        if layout.times:
            text += f"[{stamp(each.start, False, '.')} --> {stamp(each.end, False, '.')}] "
        text += f"{each.line}\n"
    return text


def _vtt(transcript: Transcript, layout: Layout) -> str:
    shown = "".join(_cue(cue, False, ".") for cue in _cues(transcript, layout))
    return "WEBVTT\n\n" + shown.replace("&", "&amp;").replace("<", "&lt;")


def _srt(transcript: Transcript, layout: Layout) -> str:
    cues = enumerate(_cues(transcript, layout), 1)
    return "".join(f"{number}\n{_cue(cue, True, ',')}" for number, cue in cues)


def _tsv(transcript: Transcript, layout: Layout) -> str:
    lines = ["start\tend\ttext\n"]
    for segment in transcript.segments:
        text = segment.line.replace("\t", " ")
        lines.append(f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n")
    return "".join(lines)


def _json(transcript: Transcript, layout: Layout) -> str:
    segments = [segment.to_dict() for segment in transcript.segments]
    about = {"text": transcript.text, "segments": segments, "language": transcript.language}
    return json.dumps(about, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript, Layout], str]] = {
    "txt": lambda transcript, layout: lines(transcript.segments, layout),
    "vtt": _vtt,
    "srt": _srt,
    "tsv": _tsv,
    "json": _json,
}


@dataclass(frozen=True)
class Output:
    """The folder and format of transcripts."""

    format: str  # one of FORMATS, or all
    folder: Path | None  # None: they are printed
    layout: Layout
    force: bool = False  # replace files that exist
    resume: bool = False  # write only those that do not

    @property
    def streamed(self) -> bool:
        """Whether segments are printed as they come."""
        return self.format == "txt" and not self.folder

    @property
    def formats(self) -> list[str]:
        return [*FORMATS] if self.format == "all" else [self.format]

    def base(self, name: str) -> Path:
        """The files of this name, without their formats. What is decoded is in its journal until they are written."""
        return Path(f"{self.folder}/{name}")

    def files(self, name: str) -> dict[str, Path]:
        """The files of this name, by format, but with `resume` only those that do not exist."""
        files = {each: Path(f"{self.base(name)}.{each}") for each in self.formats}
        if self.resume and not self.force:
            files = {each: path for each, path in files.items() if not path.is_file()}
        return files

    def check(self, name: str) -> bool:
        """Whether there is a file to write. InputError if one may not be replaced, OSError if one cannot be written."""
        files = self.files(name)
        for path in files.values():
            if not path.is_dir():
                check_free(path, self.force)
                path.open("ab").close()
                if not path.stat().st_size:
                    path.unlink()
        return bool(files)

    def write(self, transcript: Transcript, name: str) -> Iterator[tuple[str, str]]:
        """Write each file whole or not at all; yield the reason and the text of each that could not be written."""
        for each, path in self.files(name).items():
            text = FORMATS[each](transcript, self.layout)
            try:
                with replacing(path, self.force) as partial:
                    partial.write_text(text, encoding="utf-8")
            except OSError as error:
                yield f"{path}: {error.strerror}", text
            except InputError as error:
                yield str(error), text
        hidden(self.base(name), "journal").unlink(missing_ok=True)

    def text(self, transcript: Transcript, title: str | None) -> str:
        """The text to print of a transcript at its end, with a title if it is one of several."""
        if self.streamed or self.folder:
            return ""
        text = FORMATS[self.format](transcript, self.layout)
        if not text or title is None:
            return text
        if self.format == "json":
            return json.dumps({"file": title} | json.loads(text), ensure_ascii=False) + "\n"
        if self.format == "vtt":
            return text.replace("WEBVTT", f"NOTE {title}", 1)
        return f"{title}:\n{text}"
