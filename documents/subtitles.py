"""Subtitles: SubRip (.srt), WebVTT (.vtt), Advanced SubStation Alpha (.ass, .ssa).

Times, numbers, styles and comments stay. Cues are joined until a sentence ends, and its translation is spread over
their lines again by length.
"""

import re
from collections.abc import Iterable, Iterator

from documents.document import Document, Segment, Span, in_text, lines_of, segment
from errors import InputError

_TIME = r"(?:\d+:)?\d\d?:\d\d[.,]\d{1,3}"
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\r\n]*", re.MULTILINE)
_ARROW = re.compile(r"^.*-->.*$", re.MULTILINE)
_UNTIMED = re.compile(r"\n[ \t]*\r?\n(\d+)[ \t]*(?=\r?\n[ \t]*[^\s\d])")
_NUMBER = re.compile(r"\s*^[ \t]*\d*[ \t\r\n]*\Z", re.MULTILINE)
_EMPTY = re.compile(r"\n[ \t]*\r?\n")
_TAGS = re.compile(r"(?:<[^<>]*>|\{\\[^{}]*\})+")  # at the edges of a line
_SAID = re.compile(r"[-–—♪#]")  # a line of its own: a speaker's, a song's  # noqa: RUF001
_ENDED = re.compile(r"""[.!?…。！？♪]["'»”’)\]]*$""")  # noqa: RUF001
_MOST = 6  # cues that a sentence may run over
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")


def read_srt(data: bytes) -> Document:
    return in_text(data, lambda source: _joined(source, _cues(source, None)))


def read_vtt(data: bytes) -> Document:
    def find(source: str) -> Iterator[Segment]:
        if not source.lstrip("\ufeff").startswith("WEBVTT"):
            raise InputError("no WebVTT file: it does not begin with WEBVTT")
        return _joined(source, _cues(source, _EMPTY))

    return in_text(data, find)


def read_ass(data: bytes) -> Document:
    return in_text(data, lambda source: _joined(source, _dialogue(source)))


def _cues(source: str, end: re.Pattern | None) -> Iterator[list[Span]]:
    """The lines of each cue. end: what ends a cue besides the next one's number and times."""
    cues = list(_CUE.finditer(source))
    timed = {cue.start() for cue in cues}
    for arrow in _ARROW.finditer(source):
        if arrow.start() not in timed:
            raise InputError(f"line {source.count(chr(10), 0, arrow.start()) + 1}: no cue's times")
    if not cues:
        raise InputError("no cues with times")
    for cue, following in zip(cues, [*cues[1:], None], strict=True):
        stop = following.start() if following else len(source)
        if end and (found := end.search(source, cue.end(), stop)):
            stop = found.start()
        elif following and (number := _NUMBER.search(source, cue.end(), stop)):
            stop = number.start()
        if not end and (lost := _UNTIMED.search(source, cue.end(), stop)):
            line = source.count("\n", 0, lost.start(1)) + 1
            raise InputError(f"line {line}: cue {lost[1]} has no times")
        yield list(lines_of(source, cue.end(), stop))


def _dialogue(source: str) -> Iterator[list[Span]]:
    """The lines of each event; its text is the last field of those that the Format line names."""
    fields = events = 0
    for start, stop in lines_of(source):
        kind, _, rest = source[start:stop].partition(":")
        if kind.startswith("["):
            events = kind.lower() == "[events]"
        elif events and kind == "Format":
            fields = rest.count(",") + 1
        elif events and kind == "Dialogue":
            parts = rest.split(",", fields - 1) if fields else []
            if not fields or len(parts) < fields:
                raise InputError(f"line {source.count(chr(10), 0, start) + 1}: too few fields")
            if _DRAWING.search(parts[-1]):
                continue
            at = stop - len(parts[-1])
            cuts = [*re.finditer(r"\\[Nn]", parts[-1])]
            begins = [at, *(at + cut.end() for cut in cuts)]
            ends = [*(at + cut.start() for cut in cuts), stop]
            yield [
                each for a, b in zip(begins, ends, strict=True) for each in lines_of(source, a, b)
            ]
    if not fields:
        raise InputError("no [Events] with a Format line")


def _joined(source: str, cues: Iterable[list[Span]]) -> Iterator[Segment]:
    spans, joined, first = list[Span](), 0, 0
    for number, cue in enumerate(cues, 1):
        lines = [line for span in cue if (line := _bare(source, *span))]
        if any(_SAID.match(source, start) for start, _ in lines):
            if spans:
                yield segment(source, f"cue {first}", spans)
            yield from (segment(source, f"cue {number}", [line]) for line in lines)
            spans, joined = [], 0
            continue
        first, joined = (number if not joined else first), joined + 1
        spans += lines
        if spans and (joined == _MOST or _ENDED.search(source[slice(*spans[-1])])):
            yield segment(source, f"cue {first}", spans)
            spans = []
        joined = joined if spans else 0
    if spans:
        yield segment(source, f"cue {first}", spans)


def _bare(source: str, start: int, stop: int) -> Span | None:
    """The line without tags around it; None if nothing is left."""
    if tag := _TAGS.match(source, start, stop):
        start = tag.end()
    for tag in _TAGS.finditer(source, start, stop):
        if tag.end() == stop:
            stop = tag.start()
    return next(lines_of(source, start, stop), None)
