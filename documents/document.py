"""The contract of the formats: passages to translate, and where their translations go."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from common.errors import InputError
from documents.sentences import between, words_and_clusters
from text.cues import NEWLINE

Span = tuple[int, int]
Place = tuple[Span, bool]  # of a mark in a translation, and whether it is sure

_LINE = re.compile(r"[^\r\n]+")
_LINE_BREAK = re.compile(rf"(?:{NEWLINE.pattern})\Z")
_BLOCK = re.compile(rf"(?:[^\r\n]*[^\s\ufeff][^\r\n]*(?:{NEWLINE.pattern}|\Z))+")


@dataclass(frozen=True)
class Passage:
    """A text to translate, such as a paragraph, and where it is in its source: one part or more, such as lines.

    marked: spans of the text with something of their own, such as a link or, empty, a note; see marks.py
    breaks: where in the text a line begins besides the first. A translation may have line feeds in their places
    cues:   the number of the cue that each span is in, for subtitles
    marks:  as a document's
    """

    text: str
    spans: tuple[Span, ...]
    marked: tuple[Span, ...] = ()
    breaks: tuple[int, ...] = ()
    cues: tuple[int, ...] = ()
    marks: str = ""


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
    into:    the document for a target language's code, where that changes the passages
    """

    passages: list[Passage]
    write: Callable[[Sequence[str | None]], bytes]
    place: Callable[[Passage], str]
    marks: str = ""
    strict: bool = False
    places: dict[Passage, Sequence[Place]] = field(default_factory=dict)
    plain: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    into: Callable[[str], "Document"] | None = None


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Passage]],
    fit: Callable[[Passage, str], list[str]] | None = None,
    below: str = "",
    **about,
) -> Document:
    """A document of plain text, whose passages `find` finds in it. fit: what to write into each span of a passage;
    None: the text's lines, or else the text, spread over them by length. below: the line break before a translation
    that is to stand below its source, not in its place; a line feed is the source's own. InputError if it is not text."""
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
        edits = set[tuple[Span, str]]()  # passages may share some
        for passage, text in zip(passages, texts, strict=True):
            if text is not None and (text != passage.text or (fit and not below)):
                new = (fit or by_length)(passage, text)
                if below:
                    old = [source[start:stop] for start, stop in passage.spans]
                    new = _below(old, new, passage.cues, below.replace("\n", newline_of(source)))
                edits |= {*zip(passage.spans, new, strict=True)}
        parts = list[str]()
        end = 0
        for (start, stop), new in sorted(edits):
            before = source[end:start]
            is_line = not new and stop > start and source[stop : stop + 1] in ("", "\r", "\n")
            # An empty line would end a cue.
            parts += [_LINE_BREAK.sub("", before) if is_line else before, new]
            end = stop
        return "".join([*parts, source[end:]]).encode(encoding)

    def place(passage: Passage) -> str:
        return f"line {line_number(source, passage.spans[0][0])}"

    return Document(passages, write, place, **about)


def newline_of(source: str) -> str:
    """How the source ends its lines."""
    first = NEWLINE.search(source)
    return first[0] if first else "\n"


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
    text = ""
    breaks = list[int]()
    for start, stop in spans:
        if text:
            text += between(text, source[start:stop])
            breaks.append(len(text))
        text += source[start:stop]
    return Passage(text, spans, breaks=tuple(breaks))


def line_number(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def by_length(passage: Passage, text: str) -> list[str]:
    """The text's lines, if it has one for each span; or else the text, spread over them. A cue for which no word is
    left shows the last line before it."""
    lines = text.split("\n")
    if len(lines) != len(passage.spans):
        lines = spread(" ".join(lines), [stop - start for start, stop in passage.spans])
    last = lines[0]
    for _, cue in groupby(range(len(passage.cues)), passage.cues.__getitem__):
        places = [*cue]
        shown = [lines[i] for i in places if lines[i]]
        if not shown:
            lines[places[0]] = last
        last = shown[-1] if shown else last
    return lines


def _below(source: Sequence[str], lines: Sequence[str], cues: Sequence[int], newline: str):
    """The source's lines, with a translation's after the last one of each cue."""
    both = [*source]
    for _, cue in groupby(range(len(both)), lambda i: cues[i] if cues else 0):
        places = [*cue]
        both[places[-1]] = newline.join([both[places[-1]], *(lines[i] for i in places if lines[i])])
    return both


def spread(text: str, lengths: Sequence[int]) -> list[str]:
    """The text cut between words, each part about as long as its share; the last ones are empty if there are too few
    words. A script without spaces is cut between characters."""
    words = words_and_clusters(text)
    parts = list[str]()
    first = 0  # word of the next part
    size = 0  # characters of the parts so far
    share = 0.0  # characters that they should have
    for spans_left, length in zip(reversed(range(len(lengths))), lengths, strict=True):
        share += len(text) * length / sum(lengths)
        end = first
        while end < len(words):
            leaves_too_few = len(words) - end <= spans_left
            is_enough = spans_left and size + len(words[end].rstrip()) / 2 > share
            if end > first and (leaves_too_few or is_enough):
                break
            size += len(words[end])
            end += 1
        parts.append("".join(words[first:end]).strip())
        first = end
    return parts
