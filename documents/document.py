"""The contract of the formats: passages to translate, and where their translations go."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from common.errors import InputError
from documents.sentences import UNIT, between
from text.cues import NEWLINE, line_spans

Span = tuple[int, int]
Target = tuple[Span, bool]  # where formatting goes in a translation, and whether that is sure
Targets = Sequence[Target] | None  # of a passage's formatting
AllTargets = Sequence[Targets] | None  # of all passages
Texts = Sequence[str | None]

_HIDDEN = re.compile("([\U000f0000-\U0010fffd])(?:\n*\\1)*")  # an attribute's value
_LINE_BREAK = re.compile(rf"(?:{NEWLINE.pattern})\Z")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to translate, such as a paragraph, and where it is in its source: one part or more, such as lines."""

    text: str
    spans: tuple[Span, ...]
    location: str = ""  # for messages, such as "line 3"
    formatting: tuple[Span, ...] = ()  # of links and the like or, empty, notes; see marks.py
    breaks: tuple[int, ...] = ()  # where lines begin in the text; line feeds in a translation
    cues: tuple[int, ...] = ()  # the number of the cue that each span is in, for subtitles
    placeholders: str = ""  # a pattern of what a translation must keep besides the usual ones


@dataclass(frozen=True)
class Written:
    """A document with other texts."""

    data: bytes
    plain: Sequence[str] = ()  # words whose formatting could not be kept
    problems: Mapping[int, Sequence[str]] = field(default_factory=dict)  # to check, by passage
    notes: Sequence[str] = ()  # what a reader should know of the whole document


@dataclass(frozen=True)
class Document:
    """A document in some format. write: the document with a text for each passage; None keeps a passage as it is. With
    targets of each passage's formatting; None: at the same words or the same place"""

    passages: Sequence[Passage]
    write: Callable[..., Written]
    strict: bool = False  # a passage whose translation lost a placeholder stays as it is
    notes: Sequence[str] = ()  # what a reader should know of the whole document
    for_language: "Callable[[str], Document] | None" = None  # it for a language


class Fitted(NamedTuple):
    """The texts for the spans of a passage."""

    parts: Sequence[str]
    plain: Sequence[str] = ()
    problems: Sequence[str] = ()


Fit = Callable[[str, Passage, str, Targets], Fitted | None]


def by_lines(source: str, passage: Passage, text: str, targets: Targets) -> Fitted | None:
    """The text's lines, if it has one for each span; or else the text, spread over them. None: it is the source's."""
    return None if text == passage.text else Fitted(by_length(passage, text))


def as_text(data: bytes) -> str:
    source = data.decode()
    if "\0" in source:
        raise InputError("not text")
    return source


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Passage]],
    fit: Fit = by_lines,
    below: str = "",
    **fields,
) -> Document:
    """A document of text, whose passages `find` finds. fit: fits a text into a passage of the source; None: it stays as it
    is. below: the line break before a translation below its source; a line feed is the source's. InputError if not text."""
    source = as_text(data)
    passages = _located(source, find(source))
    newline = below.replace("\n", newline_of(source))

    def write(texts: Texts, targets: AllTargets = None) -> Written:
        edits = set[tuple[Span, str]]()  # passages may share some
        plain = list[str]()
        problems = dict[int, Sequence[str]]()
        for number, (passage, text) in enumerate(zip(passages, texts, strict=True)):
            if text is None:
                continue
            fitted = fit(source, passage, text, targets[number] if targets else None)
            if not fitted:
                continue
            new = fitted.parts
            if below:
                old = [source[start:stop] for start, stop in passage.spans]
                new = _below(old, new, passage.cues, newline)
            edits.update(zip(passage.spans, new, strict=True))
            plain += fitted.plain
            if fitted.problems:
                problems[number] = fitted.problems
        return Written(_edited(source, sorted(edits)).encode(), plain, problems)

    return Document(passages, write, **fields)


def with_attributes(
    data: bytes, attributes: Sequence[Passage], parse: Callable[[bytes], Document]
) -> Document:
    """A document, with the values of attributes behind its passages. While it is read and written, each is as many of one
    character for private use, so that everything is where it was."""
    source = as_text(data)
    used = {*source}
    free = (name for name in map(chr, range(0xF0000, 0x10FFFE)) if name not in used)
    named = dict(zip(free, _located(source, attributes), strict=False))
    values = {name: source[slice(*each.spans[0])] for name, each in named.items()}
    hidden = ((named[name].spans[0], re.sub(r"[^\n]", name, values[name])) for name in named)
    document = parse(_edited(source, hidden).encode())
    count = len(document.passages)

    def write(texts: Texts, targets: AllTargets = None) -> Written:
        written = document.write(texts[:count], targets and targets[:count])
        new = dict(values)
        for (name, attribute), text in zip(named.items(), texts[count:], strict=True):
            if text not in (None, attribute.text):
                new[name] = f'"{escape(text)}"'
        shown = _HIDDEN.sub(lambda match: new.get(match[1], match[0]), written.data.decode())
        return replace(written, data=shown.encode())

    return replace(document, passages=[*document.passages, *named.values()], write=write)


def joined(
    documents: Sequence[Document],
    assemble: Callable[[Sequence[bytes]], bytes],
    notes: Sequence[str] = (),
) -> Document:
    """One document of several, which have no lines of their own. assemble: makes its bytes of theirs"""
    firsts = [0, *accumulate(len(document.passages) for document in documents)]

    def write(texts: Texts, targets: AllTargets = None) -> Written:
        written = [
            document.write(texts[first:after], targets and targets[first:after])
            for document, (first, after) in zip(documents, pairwise(firsts), strict=True)
        ]
        problems = dict[int, Sequence[str]]()
        for first, each in zip(firsts, written, strict=False):
            problems |= {first + number: of for number, of in each.problems.items()}
        plain = [words for each in written for words in each.plain]
        later_notes = [note for each in written for note in each.notes]
        return Written(assemble([each.data for each in written]), plain, problems, later_notes)

    passages = [
        replace(passage, location=repr(passage.text[:40]))
        for document in documents
        for passage in document.passages
    ]
    notes = [*notes, *(note for document in documents for note in document.notes)]
    return Document(passages, write, notes=notes)


def _located(source: str, passages: Iterable[Passage]) -> list[Passage]:
    """Passages with the lines that they begin in."""
    ends = [match.start() for match in re.finditer("\n", source)]
    lines = ((each, bisect_left(ends, each.spans[0][0]) + 1) for each in passages)
    return [replace(each, location=f"line {line}") for each, line in lines]


def _edited(source: str, edits: Iterable[tuple[Span, str]]) -> str:
    parts = list[str]()
    end = 0
    for (start, stop), new in edits:
        before = source[end:start]
        if not new and stop > start and source[stop : stop + 1] in ("", "\r", "\n"):
            before = _LINE_BREAK.sub("", before)  # an empty line would end a cue
        parts += [before, new]
        end = stop
    return "".join([*parts, source[end:]])


def newline_of(source: str) -> str:
    """The line break of a source."""
    first = NEWLINE.search(source)
    return first[0] if first else "\n"


def lines_of(source: str, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """The lines, some of them empty, without the white space and byte-order mark around them."""
    for begin, stop in line_spans(source, start, end):
        line = source[begin:stop].strip("\ufeff \t\v\f")
        begin = source.index(line, begin)
        yield begin, begin + len(line)


def passage(source: str, spans: Iterable[Span]) -> Passage:
    """The passage of one text that runs over these spans."""
    spans = tuple(spans)
    parts = list[str]()
    breaks = list[int]()
    size = 0
    for start, stop in spans:
        part = source[start:stop]
        if parts:
            part = between(parts[-1], part) + part
            breaks.append(size + len(part) - (stop - start))
        parts.append(part)
        size += len(part)
    return Passage("".join(parts), spans, breaks=tuple(breaks))


def by_length(passage: Passage, text: str) -> list[str]:
    """The text's lines, if it has one for each span; or else the text, spread over them."""
    lines = text.split("\n")
    if len(lines) == len(passage.spans):
        return lines
    return spread(" ".join(lines), [stop - start for start, stop in passage.spans])


def without_empty_cues(lines: Sequence[str], cues: Sequence[int]) -> list[str]:
    """The lines, where a cue for which no word is left shows the last line before it."""
    filled = list[str]()
    with_words = {cue for line, cue in zip(lines, cues, strict=True) if line}
    last = lines[0]
    for line, cue in zip(lines, cues, strict=True):
        if cue not in with_words:
            with_words.add(cue)
            line = last
        filled.append(line)
        last = line or last
    return filled


def _below(source: Sequence[str], lines: Sequence[str], cues: Sequence[int], newline: str):
    """The source's lines, with a translation's after the last one of each cue."""
    both = [*source]
    for _, cue in groupby(range(len(both)), lambda i: cues[i] if cues else 0):
        places = [*cue]
        both[places[-1]] = newline.join([both[places[-1]], *(lines[i] for i in places if lines[i])])
    return both


def spread(text: str, lengths: Sequence[int]) -> list[str]:
    """The text cut between words or clusters, each part about as long as its share; empty ones come last."""
    words = UNIT.findall(text)
    starts = accumulate(map(len, words), initial=0)
    middles = [start + len(word.rstrip()) / 2 for start, word in zip(starts, words, strict=False)]
    total = sum(lengths)
    cuts = [0]
    for number, share in enumerate(accumulate(lengths), 1):
        cut = bisect_right(middles, len(text) * share / total)
        max_cut = len(words) - (len(lengths) - number)  # leaves a word for each other part
        cuts.append(max(cuts[-1] + 1, min(cut, max_cut)))
    cuts[-1] = len(words)
    return ["".join(words[first:after]).strip() for first, after in pairwise(cuts)]
