"""The contract of the formats: segments to translate, and where their translations go."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from errors import InputError
from text.memory import UNSPACED

MOST = 1 << 25  # bytes of text; the Bible has 2^22
Span = tuple[int, int]

_LINE = re.compile(r"[^\r\n]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Segment:
    """A text to translate: a paragraph, a cue. It is made of one or more parts of its source, such as lines."""

    text: str
    place: str  # for messages: "line 12"
    spans: tuple[Span, ...]


@dataclass
class Document:
    """A document that was read.

    write:    the bytes of the document with other texts, one for each segment; None keeps a segment as it is
    marks:    a pattern of what a translation must keep besides placeholders, such as Markdown's code
    strict:   a segment that lost a placeholder is left alone
    dropped:  how many marks inside sentences `write` had to drop
    """

    segments: list[Segment]
    write: Callable[[Sequence[str | None]], bytes]
    marks: str = ""
    strict: bool = False
    dropped: int = 0


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Segment]],
    fit: Callable[[Segment, str], list[str]] | None = None,
    encoding: str | None = None,
    **about,
) -> Document:
    """A document of plain text, whose segments `find` finds in it. fit: the translation of each span."""
    source, encoding = decoded(data, encoding)
    segments = list(find(source))

    def write(texts: Sequence[str | None]) -> bytes:
        new = [
            edit
            for segment, text in zip(segments, texts, strict=True)
            if text is not None and text != segment.text
            for edit in zip(segment.spans, (fit or by_length)(segment, text), strict=True)
        ]
        try:
            return spliced(source, new).encode(encoding)
        except UnicodeEncodeError as error:
            wrong = error.object[error.start]
            raise InputError(f"{encoding} has no {wrong!r}; convert the file to UTF-8") from None

    return Document(segments, write, **about)


def decoded(data: bytes, encoding: str | None = None) -> tuple[str, str]:
    """Text and its encoding; a byte-order mark stays in the text. InputError if it is not text."""
    if len(data) > MOST:
        raise InputError(f"{len(data) >> 20} MB of text; split it into files of {MOST >> 20} MB")
    if encoding is None:
        marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
        encoding = marks.get(data[:2], "utf-8")
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise InputError(f"not {encoding.upper()} text; convert it to UTF-8") from None
    if "\0" in text:
        raise InputError("not text")
    return text, encoding


def spliced(source, edits: Iterable[tuple[Span, str | bytes]]):
    """`source`, text or bytes, with the text of each span replaced."""
    parts, end = [], 0
    for (start, stop), new in sorted(edits):
        parts += [source[end:start], new]
        end = stop
    return source[:0].join([*parts, source[end:]])


def lines_of(source: str, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """The lines that are not empty, without the white space and byte-order mark around them."""
    for found in _LINE.finditer(source, start, len(source) if end is None else end):
        line = found[0].strip("\ufeff \t")
        if line.strip():
            at = found.start() + found[0].index(line)
            yield at, at + len(line)


def segment(source: str, place: str, spans: Sequence[Span]) -> Segment:
    """The segment of one text that runs over these spans."""
    return Segment(" ".join(source[a:b] for a, b in spans), place, tuple(spans))


def line_number(source: str, at: int) -> int:
    return source.count("\n", 0, at) + 1


def by_length(segment: Segment, text: str) -> list[str]:
    """The text cut between words, each part about as long as its span's share; the last ones are empty if there are
    too few words. A script without spaces is cut between characters."""
    lengths = [stop - start for start, stop in segment.spans]
    space = "" if " " not in text and _UNSPACED.search(text) else " "
    words = text.split(" ") if space else list(text)
    parts, taken, share = list[str](), 0, 0.0
    for i, length in enumerate(lengths):
        share += len(text) * length / sum(lengths)
        end, left = taken + 1, len(lengths) - i - 1
        reached = len(space.join(words[:end]))
        while end < len(words) - left:
            longer = reached + len(space) + len(words[end])
            if left and longer - share > share - reached:
                break
            end, reached = end + 1, longer
        parts.append(space.join(words[taken:end]))
        taken = end
    return parts
