"""The contract of the formats: segments to translate, and where their translations go."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from errors import InputError
from text.memory import UNSPACED

Span = tuple[int, int]

_LINE = re.compile(r"[^\r\n]+")
_BLOCK = re.compile(r"(?:[^\r\n]*[^\s\ufeff][^\r\n]*(?:\r\n?|\n|\Z))+")
_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Segment:
    """A text to translate, such as a paragraph, and where it is in its source: one part or more, such as lines."""

    text: str
    spans: tuple[Span, ...]


@dataclass
class Document:
    """A document that was read.

    write:   the bytes of the document with other texts, one for each segment; None keeps a segment as it is
    place:   where a segment is, for messages
    marks:   a pattern of what a translation must keep besides placeholders, such as Markdown's code
    strict:  a segment that lost a placeholder is left alone
    plain:   words whose formatting `write` could not keep
    """

    segments: list[Segment]
    write: Callable[[Sequence[str | None]], bytes]
    place: Callable[[Segment], str]
    marks: str = ""
    strict: bool = False
    plain: list[str] = field(default_factory=list)


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Segment]],
    fit: Callable[[Segment, str], list[str]] | None = None,
    **about,
) -> Document:
    """A document of plain text, whose segments `find` finds in it. fit: what to write into each span of a segment;
    None: the text, spread over them by length. InputError if it is not text."""
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    encoding = marks.get(data[:2], "utf-8")
    try:
        source = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise InputError(f"not {encoding.upper()} text; convert it to UTF-8") from None
    if "\0" in source:
        raise InputError("not text")
    segments = [*find(source)]

    def write(texts: Sequence[str | None]) -> bytes:
        edits = list[tuple[Span, str]]()
        for segment, text in zip(segments, texts, strict=True):
            if text is not None and (fit or text != segment.text):
                edits += zip(segment.spans, (fit or by_length)(segment, text), strict=True)
        parts, end = list[str](), 0
        for (start, stop), new in sorted(edits):
            parts += [source[end:start], new]
            end = stop
        return "".join([*parts, source[end:]]).encode(encoding)

    def place(segment: Segment) -> str:
        return f"line {line_number(source, segment.spans[0][0])}"

    return Document(segments, write, place, **about)


def lines_of(source: str, start: int, end: int) -> Iterator[Span]:
    """The lines that are not empty, without the white space and byte-order mark around them."""
    for found in _LINE.finditer(source, start, end):
        if line := found[0].strip("\ufeff \t\v\f"):
            at = found.start() + found[0].index(line)
            yield at, at + len(line)


def blocks_of(source: str) -> Iterator[Span]:
    """Lines without an empty one between them."""
    return (found.span() for found in _BLOCK.finditer(source))


def segment(source: str, spans: Iterable[Span]) -> Segment:
    """The segment of one text that runs over these spans."""
    spans = tuple(spans)
    return Segment(" ".join(source[a:b] for a, b in spans), spans)


def line_number(source: str, at: int) -> int:
    return source.count("\n", 0, at) + 1


def by_length(segment: Segment, text: str) -> list[str]:
    """The text cut between words, each part about as long as its span's share; the last ones are empty if there are
    too few words. A script without spaces is cut between characters."""
    space = "" if " " not in text and _UNSPACED.search(text) else " "
    words = text.split(" ") if space else [*text]
    lengths = [stop - start for start, stop in segment.spans]
    parts, size, share, first = list[str](), 0, 0.0, 0
    for left, length in zip(reversed(range(len(lengths))), lengths, strict=True):
        share += len(text) * length / sum(lengths)
        end = first
        while end < len(words) - left or end == first < len(words):
            if left and end > first and size + len(words[end]) / 2 > share:
                break
            size, end = size + len(words[end]) + len(space), end + 1
        parts.append(space.join(words[first:end]))
        first = end
    return parts
