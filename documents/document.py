"""The contract of the formats: passages to translate, and where their translations go."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from documents.sentences import UNSPACED
from errors import InputError

Span = tuple[int, int]
Place = tuple[Span, bool]  # of a mark in a translation, and whether it is sure

_LINE = re.compile(r"[^\r\n]+")
_BLOCK = re.compile(r"(?:[^\r\n]*[^\s\ufeff][^\r\n]*(?:\r\n?|\n|\Z))+")
_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Passage:
    """A text to translate, such as a paragraph, and where it is in its source: one part or more, such as lines.

    marked: spans of the text with something of their own, such as a link or, empty, a note; see marks.py
    """

    text: str
    spans: tuple[Span, ...]
    marked: tuple[Span, ...] = ()


@dataclass
class Document:
    """A document in some format.

    write:   the bytes of the document with other texts, one for each passage; None keeps a passage as it is
    place:   where a passage is, for messages
    marks:   a pattern of what a translation must keep besides placeholders, such as Markdown's code
    strict:  a passage whose translation lost a placeholder stays as it is
    places:  where what is marked in a passage goes in its text; if it is not here, `marks.places` says it
    plain:   words whose formatting `write` could not keep
    notes:   what a reader should know of the whole document
    """

    passages: list[Passage]
    write: Callable[[Sequence[str | None]], bytes]
    place: Callable[[Passage], str]
    marks: str = ""
    strict: bool = False
    places: dict[Passage, Sequence[Place]] = field(default_factory=dict)
    plain: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Passage]],
    fit: Callable[[Passage, str], list[str]] | None = None,
    **about,
) -> Document:
    """A document of plain text, whose passages `find` finds in it. fit: what to write into each span of a passage;
    None: the text, spread over them by length. InputError if it is not text."""
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    encoding = marks.get(data[:2], "utf-8")
    try:
        source = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise InputError(f"not {encoding.upper()} text; convert it to UTF-8") from None
    if "\0" in source:
        raise InputError("not text")
    passages = [*find(source)]

    def write(texts: Sequence[str | None]) -> bytes:
        edits = list[tuple[Span, str]]()
        for passage, text in zip(passages, texts, strict=True):
            if text is not None and (fit or text != passage.text):
                edits += zip(passage.spans, (fit or by_length)(passage, text), strict=True)
        parts = list[str]()
        end = 0
        for (start, stop), new in sorted(edits):
            parts += [source[end:start], new]
            end = stop
        return "".join([*parts, source[end:]]).encode(encoding)

    def place(passage: Passage) -> str:
        return f"line {line_number(source, passage.spans[0][0])}"

    return Document(passages, write, place, **about)


def lines_of(source: str, start: int, end: int) -> Iterator[Span]:
    """The lines that are not empty, without the white space and byte-order mark around them."""
    for match in _LINE.finditer(source, start, end):
        line = match[0].strip("\ufeff \t\v\f")
        if line:
            begin = match.start() + match[0].index(line)
            yield begin, begin + len(line)


def blocks_of(source: str) -> Iterator[Span]:
    """Lines without an empty one between them."""
    return (match.span() for match in _BLOCK.finditer(source))


def passage(source: str, spans: Iterable[Span]) -> Passage:
    """The passage of one text that runs over these spans."""
    spans = tuple(spans)
    return Passage(" ".join(source[a:b] for a, b in spans), spans)


def line_number(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def by_length(passage: Passage, text: str) -> list[str]:
    """The text cut between words, each part about as long as its span's share; the last ones are empty if there are
    too few words. A script without spaces is cut between characters."""
    space = "" if " " not in text and _UNSPACED.search(text) else " "
    words = text.split(" ") if space else [*text]
    lengths = [stop - start for start, stop in passage.spans]
    parts = list[str]()
    first = 0  # word of the next part
    size = 0  # characters of the parts so far
    share = 0.0  # characters that they should have
    for spans_left, length in zip(reversed(range(len(lengths))), lengths, strict=True):
        share += len(text) * length / sum(lengths)
        end = first
        while end < len(words):
            leaves_too_few = len(words) - end <= spans_left
            is_enough = spans_left and size + len(words[end]) / 2 > share
            if end > first and (leaves_too_few or is_enough):
                break
            size += len(words[end]) + len(space)
            end += 1
        parts.append(space.join(words[first:end]))
        first = end
    return parts
