"""Cues of subtitles: the times and tags of SubRip, WebVTT and SubStation Alpha, read and written."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

Span = tuple[int, int]

Report = Callable[[int, str], object]

UNREADABLE = "no cue's times; the cue stays as it is"
NEWLINE = re.compile(r"\r{0,9}\n|\r")  # CR CR LF comes from writing CR LF in text mode
_TAG = r"<(?P<close>/?)(?P<name>[A-Za-z]*+)[^<>]*>|\{\\(?P<style>[bisu])(?P<on>[01])\}"
TAG = re.compile(rf"{_TAG}|\{{\\[^{{}}]*\}}|(?P<space>\\h)")
ASS_TAG = re.compile(rf"{_TAG}|\{{[^{{}}]*\}}|(?P<space>\\h)")  # and comments
# A fraction such as .25 is a quarter
_TIME = re.compile(r"(?:(\d{1,6}):)?(\d\d?):(\d\d[.,]\d{1,3})")


@dataclass(frozen=True)
class Cue:
    """start, end: in seconds; lines: where those of its text are; voice: by what else cues differ, such as a speaker"""

    start: float
    end: float
    lines: Sequence[Span]
    voice: tuple[str, ...] = ()


def line_spans(source: str, start: int = 0, end: int | None = None) -> list[Span]:
    """The lines in a part of a text."""
    end = len(source) if end is None else end
    breaks = [match.span() for match in NEWLINE.finditer(source, start, end)]
    return [(a, b) for (_, a), (b, _) in pairwise([(start, start), *breaks, (end, end)])]


def cues(source: str, report: Report = lambda line, reason: None) -> Iterator[Cue]:
    """The cues of an .srt or .vtt. report: gets the line of each whose times cannot be read, and that"""
    spans = line_spans(source)
    lines = [source[start:stop].strip("\ufeff \t") for start, stop in spans]
    is_vtt = lines[0].startswith("WEBVTT")
    for head, following in pairwise([*_heads(lines, is_vtt), len(lines)]):
        before, _, behind = lines[head].partition("-->")
        start, end = seconds(before), seconds("".join(behind.split()[:1]))
        if start is None or end is None:
            report(head + 1, UNREADABLE)
            continue
        if is_vtt:
            text = [*takewhile(lambda span: span[0] < span[1], spans[head + 1 : following])]
        else:  # an empty line may be within the cue
            is_numbered = following < len(lines) and lines[following - 1].isdecimal()
            text = spans[head + 1 : following - is_numbered]
        voices = re.findall(r"<v\b[^<>]*>", source[spans[head][1] : spans[following - 1][1]])
        yield Cue(start, end, text, tuple(voices))


def _heads(lines: Sequence[str], is_vtt: bool) -> Iterator[int]:
    """Lines that have a cue's times, or ought to: after a number that begins a block of an .srt."""
    for i, line in enumerate(lines):
        is_numbered = i > 0 and lines[i - 1].isdecimal() and (i == 1 or not lines[i - 2])
        if "-->" in line or (is_numbered and line and not is_vtt):
            yield i


def seconds(time: str) -> float | None:
    """The seconds of a time such as 1:02:03.45; None if it is none."""
    match = _TIME.fullmatch(time.strip())
    if not match:
        return None
    hours, minutes, rest = match.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes) + float(rest.replace(",", "."))


def stamp(seconds: float, hours: bool, point: str) -> str:
    """A time such as 01:02:03.456; without `hours`, 02:03.456 if it is less than one hour."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    before = f"{hour:02d}:" if hour or hours else ""
    return f"{before}{minute:02d}:{second:02d}{point}{milliseconds:03d}"
