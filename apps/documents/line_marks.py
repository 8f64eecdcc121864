"""What stands before the words of a line and is not translated: signs of lists and dialogue, labels of speakers and sounds."""

import regex

from speculative.text.cues import Span

# -, *, ☐, —, >>; [ ] and [x]; a), (1), iv)
_SIGN = r"(?:[\p{S}\p{Po}\p{Pd}](?<![$\"'¿¡<])\ufe0f?)+"
_ITEM = r"\[[ xX]?\]|\(?(?:\p{N}{1,3}|\p{L}|[ivxIVX]{2,4})\)"
LIST_MARKS = regex.compile(rf"(?:(?:{_SIGN}|{_ITEM})\s+)+")

_CAPITALS = r"\p{Lu}[\p{Lu}\p{M}\p{N} .,'’&#-]{0,30}"  # noqa: RUF001
_LABEL = rf"(?:{_CAPITALS}:|[\[(]{_CAPITALS}[\])]:?)"
_OPENS = r"(?:<\w[^<>]*>|\{\\[bisu]1\})"
_CLOSES = r"(?:</\w+>|\{\\[bisu]0\})"
LABEL = regex.compile(rf"(?:{_LABEL}|{_OPENS}(?:{_LABEL}{_CLOSES}|{_CAPITALS}{_CLOSES}:))\s+")
SPEAKER_MARKS = regex.compile(rf"(?:[-–—]+|>>)?\s*(?:{LIST_MARKS.pattern})?(?:{LABEL.pattern})*")  # noqa: RUF001


def without(marks: regex.Pattern, source: str, line: Span) -> Span:
    """A line of a source without these marks before its words, if it has any."""
    start, stop = line
    found = marks.match(source, start, stop)
    return (found.end(), stop) if found and found.end() < stop else line
