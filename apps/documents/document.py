"""The contract of the formats: passages to translate, and where their translations go."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from apps.documents.language import LanguageChange
from apps.documents.prose import covered
from apps.documents.sentences import between
from speculative.common.errors import InputError
from speculative.text.cues import NEWLINE, line_spans
from speculative.text.lines import UNIT

Span = tuple[int, int]
Edit = tuple[Span, str]
Target = tuple[Span, float]  # where formatting goes in a translation, and how sure that is, up to 1
Targets = Sequence[Target] | None  # of a passage's formatting
AllTargets = Sequence[Targets] | None  # of all passages
Texts = Sequence[str | None]

HIDDEN = re.compile(r"([\U000f0000-\U0010fffd])\1*")  # see `in_text`
_TEXT = re.compile(r"[^\s\ufeff](?:.*[^\s\ufeff])?", re.DOTALL)
_GLUE = "\0"  # for the space in stand-ins, which are not cut
# Around the words of a line, with Markdown's hard breaks, indents and quotes, and the tags and \N of subtitles
_TAGS = r"((?:</?\w[^<>]*>|\{\\[^{}]*\})*)"
_LINE_BEGIN = re.compile(rf"(?:\\?(?:{NEWLINE.pattern})[ \t>]*|\\[Nn][ \t]*)+{_TAGS}\Z")
_LINE_END = re.compile(rf"[ \t]*{_TAGS}(?:\\?(?:[\r\n]|\Z)|\\[Nn])")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to translate, such as a paragraph, and where it is in its source: one part or more, such as lines."""

    text: str
    spans: tuple[Span, ...]
    location: str = ""  # for messages, such as "line 3"
    formatting: tuple[Span, ...] = ()  # of links and the like or, empty, notes; see marks.py
    breaks: tuple[int, ...] = ()  # where lines begin in the text; line feeds in a translation
    cues: tuple[int, ...] = ()  # the number of the cue that each span is in, for subtitles

    def meaning(self, stand_in: str) -> str:
        """What a stand-in such as {1} stands for, as far as words say it."""
        return stand_in


@dataclass(frozen=True)
class Written:
    """A document with other texts."""

    data: bytes
    plain: Sequence[str] = ()  # words whose formatting could not be kept
    problems: Mapping[int, Sequence[str]] = field(default_factory=dict)  # to check, by passage
    notes: Sequence[str] = ()  # what a reader should know of the whole document


@dataclass(frozen=True)
class Document:
    """A document in some format.

    write: of texts, targets and a change, the document with a text for each passage; None keeps a passage as it is. targets:
        of each passage's formatting; without them it is at the same words or the same place. change: of the language that
        the document names; without one it names the same
    """

    passages: Sequence[Passage]
    write: Callable[..., Written]
    notes: Sequence[str] = ()  # what a reader should know of the whole document


Parse = Callable[[bytes], Document]


class Fitted(NamedTuple):
    parts: Sequence[str]  # for a passage's spans
    plain: Sequence[str] = ()
    problems: Sequence[str] = ()


Change = LanguageChange | None
Relabel = Callable[[str, LanguageChange], str]
Fit = Callable[[str, Passage, str, Targets, Change], Fitted | None]  # None: it stays as it is


def by_lines(source: str, passage: Passage, text: str, *_: object) -> Fitted | None:
    """The text's lines, if it has one for each span; or else the text, spread over them. None: it is the source's."""
    return None if text == passage.text else Fitted(by_length(passage, text))


def as_text(data: bytes) -> str:
    source = data.decode()
    if "\0" in source:
        raise InputError("not text, or in an encoding to name with --encoding")
    return source


def in_text(
    data: bytes,
    find: Callable[[str], Iterable[Passage]],
    fit: Fit = by_lines,
    below: str = "",
    hidden: Sequence[Passage] = (),
    fit_hidden: Fit = by_lines,
    relabel: Relabel | None = None,
    **fields,
) -> Document:
    """A document of text, whose passages `find` finds, and `fit` fits texts into. below: the line break before a translation
    below its source; a line feed is the source's. hidden: passages in others, such as attributes, each span one character for
    private use again and again while those are read. relabel: names the language anew. InputError if not text."""
    source = as_text(data)
    names, visible = _covered(source, hidden)
    found = [*find(visible)]
    hidden = [each for each in hidden if names.keys() >= {*each.spans}]
    passages = _located(source, [*found, *hidden])
    if below:
        fit = partial(_fit_below, fit, below.replace("\n", newline_of(source)))
    fits = [partial(fit, visible)] * len(found) + [partial(fit_hidden, source)] * len(hidden)

    def write(texts: Texts, targets: AllTargets = None, change: Change = None) -> Written:
        asked = zip(fits, passages, texts, targets or [None] * len(texts), strict=True)
        fitted = [text is not None and fit(each, text, of, change) for fit, each, text, of in asked]
        new = {number: each for number, each in enumerate(fitted) if each}
        edits = _edits(passages, new, range(len(found)))
        values = {name: source[slice(*span)] for span, name in names.items()}
        hidden_edits = _edits(passages, new, range(len(found), len(passages)))
        values |= {names[span]: part for span, part in hidden_edits}
        shown = HIDDEN.sub(lambda run: values.get(run[1], run[0]), edited(visible, sorted(edits)))
        if relabel and change and not below:
            shown = relabel(shown, change)
        plain = [words for each in new.values() for words in each.plain]
        problems = {number: each.problems for number, each in new.items() if each.problems}
        return Written(shown.encode(), plain, problems)

    return Document(passages, write, **fields)


def _edits(passages: Sequence[Passage], new: Mapping[int, Fitted], numbers: range) -> set[Edit]:
    """The new parts of the passages of these numbers, which may share some."""
    found = ((passages[i], new[i]) for i in numbers if i in new)
    return {edit for each, of in found for edit in zip(each.spans, of.parts, strict=True)}


def _covered(source: str, hidden: Sequence[Passage]) -> tuple[dict[Span, str], str]:
    """A character that the source does not have for each span of these passages, and the source with them."""
    used = {*source}
    free = (name for name in map(chr, range(0xF0000, 0x10FFFE)) if name not in used)
    spans = sorted(span for each in hidden for span in each.spans)
    names = dict(zip(spans, free, strict=False))
    edits = (((start, stop), name * (stop - start)) for (start, stop), name in names.items())
    return names, edited(source, edits)


def joined(
    documents: Sequence[Document],
    assemble: Callable[[Sequence[bytes]], bytes],
    notes: Sequence[str] = (),
) -> Document:
    """One document of several, which have no lines of their own. assemble: makes its bytes of theirs"""
    firsts = [0, *accumulate(len(document.passages) for document in documents)]

    def write(texts: Texts, targets: AllTargets = None, change: Change = None) -> Written:
        written = list[Written]()
        problems = dict[int, Sequence[str]]()
        for document, (first, after) in zip(documents, pairwise(firsts), strict=True):
            new = document.write(texts[first:after], targets and targets[first:after], change)
            written.append(new)
            problems |= {first + number: of for number, of in new.problems.items()}
        plain = [words for each in written for words in each.plain]
        later_notes = [note for each in written for note in each.notes]
        return Written(assemble([each.data for each in written]), plain, problems, later_notes)

    found = (passage for document in documents for passage in document.passages)
    passages = [replace(passage, location=repr(passage.text[:40])) for passage in found]
    notes = [*notes, *(note for document in documents for note in document.notes)]
    return Document(passages, write, notes=notes)


def _located(source: str, passages: Iterable[Passage]) -> list[Passage]:
    """Passages with the lines that they begin in."""
    ends = [match.start() for match in re.finditer("\n", source)]
    lines = ((each, bisect_left(ends, each.spans[0][0]) + 1) for each in passages)
    return [replace(each, location=f"line {line}") for each, line in lines]


def edited(source: str, edits: Iterable[Edit]) -> str:
    """A source with new texts for some of its spans, in their order."""
    parts = list[str]()
    end = 0
    for (start, stop), new in edits:
        before = source[end:start]
        if not new and stop > start and _LINE_END.match(source, stop):
            before = _LINE_BEGIN.sub(r"\1", before)  # an empty line would end a cue or a paragraph
        parts += [before, new]
        end = stop
    return "".join([*parts, source[end:]])


def newline_of(source: str) -> str:
    return (NEWLINE.search(source) or "\n")[0]


def lines_of(source: str, start: int = 0, end: int | None = None) -> Iterator[Span]:
    """The lines, some of them empty, without the white space and byte-order mark around them."""
    for begin, stop in line_spans(source, start, end):
        text = _TEXT.search(source, begin, stop)
        yield text.span() if text else (stop, stop)


def passage(source: str, spans: Iterable[Span], broken: Collection[Span] = ()) -> Passage:
    """The passage of one text that runs over these spans. broken: those that begin behind a line feed"""
    spans = tuple(spans)
    text = ""
    breaks = list[int]()
    for number, span in enumerate(spans):
        part = source[slice(*span)]
        if number:
            text += "\n" if span in broken else between(text, part)
            breaks.append(len(text))
        text += part
    return Passage(text, spans, breaks=tuple(breaks))


def by_length(passage: Passage, text: str) -> list[str]:
    """The text's lines, if it has one for each span; or else the text, spread over them."""
    lines = text.split("\n")
    if len(lines) == len(passage.spans):
        return lines
    return spread(" ".join(lines), [stop - start for start, stop in passage.spans])


def _fit_below(fit: Fit, newline: str, source: str, passage: Passage, *given: Any) -> Fitted | None:
    """As `fit`, with the source's lines, and the translation's after the last one of each cue."""
    fitted = fit(source, passage, *given)
    if not fitted:
        return None
    both = [source[start:stop] for start, stop in passage.spans]
    cues = passage.cues or [0] * len(both)
    for _, cue in groupby(range(len(both)), cues.__getitem__):
        places = [*cue]
        lines = (fitted.parts[i] for i in places if fitted.parts[i])
        both[places[-1]] = newline.join([both[places[-1]], *lines])
    return fitted._replace(parts=both)


def units(text: str) -> list[str]:
    """The words or clusters of a text, each with the space behind it. Stand-ins are not cut."""
    holed = zip(text, covered(text), strict=True)
    glued = "".join(_GLUE if old == " " != new else old for old, new in holed)
    return [unit.replace(_GLUE, " ") for unit in UNIT.findall(glued)]


def spread(text: str, lengths: Sequence[int]) -> list[str]:
    """The text cut between words or clusters, each part about as long as its share; empty ones come last."""
    words = units(text)
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
