"""Subtitles: SubRip (.srt) and WebVTT (.vtt). Times, numbers, styles and comments stay.

Cues are joined until a sentence ends, and its translation is spread over their lines again by length.
"""

import re
from collections.abc import Iterable, Iterator

from documents.document import (
    Document,
    Passage,
    Span,
    blocks_of,
    in_text,
    line_number,
    lines_of,
    passage,
)
from errors import InputError

_TIME = r"(?:\d+:)?\d\d?:\d\d[.,]\d{1,3}"
_TIMES = re.compile(rf"[ \t\ufeff]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?!\S)[^\r\n]*")
_ARROW = re.compile(r"^.*-->.*$", re.MULTILINE)
_NUMBER = re.compile(r"\s*\d+[ \t]*\r?\n[ \t]*\S")
_TAGS = re.compile(r"(?:<[^<>]*>|\{\\[^{}]*\})+")  # at the edges of a line
_SPEAKER = re.compile(r"[-–—♪#]")  # a line of its own: a speaker's, a song's  # noqa: RUF001
_ENDED = re.compile(r"""[.!?…。！？♪]["'»”’)\]]*$""")  # noqa: RUF001
_MOST = 6  # cues that a sentence may run over


def parse(data: bytes, srt: bool = False) -> Document:
    return in_text(data, lambda source: _joined(source, _cues(source, srt)))


def _cues(source: str, srt: bool) -> Iterator[list[Span]]:
    """The lines of each cue. InputError if one has no times."""
    timed = 0
    for start, end in blocks_of(source):
        arrows = [arrow.start() for arrow in _ARROW.finditer(source, start, end)]
        times = _TIMES.match(source, arrows[0]) if arrows else None
        if len(arrows) > bool(times) or (srt and not times and _NUMBER.match(source, start, end)):
            line = line_number(source, arrows[-1] if arrows else start)
            raise InputError(f"line {line}: no cue's times, or no empty line before the cue")
        timed += bool(times)
        if times or srt:  # an empty line may be within an .srt's cue
            yield [*lines_of(source, times.end() if times else start, end)]
    if not timed:
        raise InputError("no cues with times")


def _joined(source: str, cues: Iterable[list[Span]]) -> Iterator[Passage]:
    spans = list[Span]()
    cues_joined = 0
    for cue in cues:
        lines = [*filter(None, (_bare(source, *span) for span in cue))]
        alone = any(_SPEAKER.match(source, start) for start, _ in lines)
        if spans and (alone or cues_joined == _MOST):
            yield passage(source, spans)
            spans = []
            cues_joined = 0
        if alone:
            yield from (passage(source, [line]) for line in lines)
            continue
        spans += lines
        cues_joined += 1
        if spans and _ENDED.search(source[slice(*spans[-1])]):
            yield passage(source, spans)
            spans = []
            cues_joined = 0
    if spans:
        yield passage(source, spans)


def _bare(source: str, start: int, stop: int) -> Span | None:
    """The line without tags around it; None if nothing is left."""
    tags = _TAGS.match(source, start, stop)
    if tags:
        start = tags.end()
    for tags in _TAGS.finditer(source, start, stop):
        if tags.end() == stop:
            stop = tags.start()
    return next(lines_of(source, start, stop), None)
