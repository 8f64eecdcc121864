"""Paragraphs of markup: a text and its marks, and how a translation is written with them, in its own order."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import regex

from documents.document import Passage, Span, Target, Targets
from documents.marks import targets_of


@dataclass(eq=False)
class Run:
    """In Word, an element that text is written in.

    head:     its tag and properties
    tail:     its closing tag
    look:     how it is formatted
    has_text: whether the source has text in it
    """

    head: str
    tail: str
    look: str
    has_text: bool = False


class Piece(NamedTuple):
    """Markup, and the runs that it begins and ends in. None: it has paragraphs of its own and is not written anew."""

    raw: str | None = ""
    before: Run | None = None
    after: Run | None = None


NOTHING = Piece()


@dataclass(frozen=True, slots=True)
class Mark:
    """Markup around words of a text or, as an anchor, at a place in it.

    span:   of the words in the text; an anchor stands for them
    source_span: where it is in the source, with its words
    opens:  the markup before its words, or an anchor's
    closes: the markup behind them
    kind:   "run", of Word, which has no markup of its own; "look", which like it may become plain; "link", which keeps a word;
            "change"; "element"; "range", which may begin and end in different elements; "anchor"; "break", an anchor that is
            shown as its words and goes where they go; or "loose", a tag whose partner is elsewhere
    run:    what its words are written in
    """

    span: Span
    source_span: Span
    opens: Piece = NOTHING
    closes: Piece = NOTHING
    kind: str = "anchor"
    run: Run | None = None

    def holds(self, other: "Mark") -> bool:
        if self.is_anchor or self.kind == "run" or self is other:
            return False
        (start, stop), (begin, end) = self.source_span, other.source_span
        return start <= begin and end <= stop

    @property
    def is_anchor(self) -> bool:
        return self.kind in ("anchor", "break", "loose")

    @property
    def is_apart(self) -> bool:
        """Whether it may not come into another element that it was not in."""
        return self.kind in ("link", "change", "element")

    @property
    def may_be_plain(self) -> bool:
        return self.kind in ("run", "look")


@dataclass(frozen=True, slots=True)
class Paragraph(Passage):
    """A text and its marks, in the source's order, the outer ones first.

    raw:   its markup, if its spans are lines and the marks' places are in this
    words: where the text's words are in the source
    run:   what text without a mark is written in
    ends:  the runs that the paragraph's source begins and ends in
    drops: formatting whose words became plain is left out
    """

    raw: str = ""
    words: tuple[Span, ...] = ()
    inline: tuple[Mark, ...] = ()
    run: Run | None = None
    ends: tuple[Run | None, Run | None] = (None, None)
    drops: bool = False

    @property
    def stand_ins(self) -> list[str]:
        """The names by which the text shows what it has no words for."""
        shown = (self.text[slice(*mark.span)].strip() for mark in self.inline if mark.is_anchor)
        return [words for words in shown if words.startswith("{")]


class _Output:
    """The markup that is written for a paragraph, in the parts that its holes divide it into."""

    def __init__(self, run: Run | None, escape: Callable[[str], str]):
        self.parts = [[""]]
        self._run = run
        self._escape = escape

    def enter(self, run: Run | None) -> None:
        if run is self._run:
            return
        if self._run:
            self.parts[-1].append(self._run.tail)
        if run:
            self.parts[-1].append(run.head)
        self._run = run

    def add(self, piece: Piece) -> None:
        if piece.raw == "":
            return
        self.enter(piece.before)
        if piece.raw is None:
            self.parts.append([""])
        else:
            self.parts[-1].append(piece.raw)
        self._run = piece.after

    def words(self, text: str, run: Run | None) -> None:
        if not text:
            return
        here = self._run
        if not (run and here and here.has_text and here.look == run.look):
            self.enter(run)
        self.parts[-1].append(self._escape(text))


class InWords(NamedTuple):
    """A text with a paragraph's marks.

    parts:     what to write into its spans
    lost:      the marks that are not where they should be, with their kind and words
    own_words: what was added to the text: the words of links for which it has none
    """

    parts: list[str]
    lost: list[tuple[str, str]]
    own_words: list[str]


def written(
    paragraph: Paragraph, text: str, targets: Targets, escape: Callable[[str], str]
) -> InWords:
    """A text with the marks of a paragraph at these targets. escape: writes text as markup."""
    targets = targets or targets_of([(paragraph.text, text)], paragraph.formatting, {})
    spans = _nested(paragraph, text, targets)
    if paragraph.drops:
        for i, mark in enumerate(paragraph.inline):
            if mark.kind == "look":
                spans[i] = _bare(text, spans[i])
    writer = _Writer(paragraph, text, spans, escape)
    lost = list[tuple[str, str]]()
    marks = zip(paragraph.inline, writer.sources, writer.spans, targets, strict=True)
    for mark, words, span, (_, sure) in marks:
        is_empty = span[0] == span[1] and has_words(words)
        if is_empty and mark.may_be_plain:
            lost.append(("look", words))
        elif (is_empty and mark.kind == "link") or (mark.kind == "change" and not sure):
            lost.append((mark.kind, words))
    return InWords(writer.parts(), lost, writer.own_words)


def _bare(text: str, span: Span) -> Span:
    """A span without the space at its edges, and without punctuation that a letter stands beside: there, Markdown's marks
    would be none."""
    begin, end = span
    while begin < end and (
        text[end - 1].isspace() or (text[end : end + 1].isalnum() and not text[end - 1].isalnum())
    ):
        end -= 1
    while begin < end and (
        text[begin].isspace() or (text[begin - 1 : begin].isalnum() and not text[begin].isalnum())
    ):
        begin += 1
    return begin, end


class _Writer:
    """Writes a text with the marks of a paragraph, whose spans in it do not cross each other."""

    def __init__(
        self, paragraph: Paragraph, text: str, spans: Sequence[Span], escape: Callable[[str], str]
    ):
        self.marks = marks = paragraph.inline
        self.spans = spans
        self.sources = [paragraph.text[slice(*mark.span)].strip() for mark in marks]
        self.own_words = list[str]()
        self._paragraph = paragraph
        self._text = text
        self._output = _Output(paragraph.ends[0], escape)
        numbers = range(len(marks))
        self._runs = [i for i in numbers if marks[i].kind == "run"]
        has_none = {i for i, (begin, end) in enumerate(spans) if begin == end}
        self._alone = [i for i in numbers if marks[i].is_anchor or i in has_none - {*self._runs}]
        self._alone.sort(key=lambda i: marks[i].source_span[0])
        self._around = sorted({*numbers} - {*self._alone, *self._runs})
        self._around.sort(key=lambda i: -spans[i][1])
        self._stand_ins = paragraph.stand_ins
        self._stack = list[int]()  # of marks that are open
        self._at = 0

    def parts(self) -> list[str]:
        cuts = sorted({0, len(self._text), *(cut for span in self.spans for cut in span)})
        hidden = [self.spans[i] for i in self._alone]
        for cut, following in pairwise([*cuts, len(self._text)]):
            self._at = cut
            waiting = [i for i in self._alone if self.spans[i][0] == cut]
            self._end(cut, waiting)
            self._begin(cut, waiting)
            self._put([*waiting], waiting)
            if not any(begin <= cut < end for begin, end in hidden):
                part = self._text[cut:following]
                for name in self._stand_ins:
                    part = part.replace(name, "")
                self._output.words(part, self._run())
        self._output.enter(self._paragraph.ends[1])
        return ["".join(part) for part in self._output.parts]

    def _end(self, cut: int, waiting: list[int]) -> None:
        """Close the marks that end here, with what is in them."""
        while self._stack and self.spans[self._stack[-1]][1] == cut:
            top = self.marks[self._stack[-1]]
            self._put([i for i in waiting if top.holds(self.marks[i])], waiting)
            self._stack.pop()
            self._output.add(top.closes)

    def _begin(self, cut: int, waiting: list[int]) -> None:
        """Open the marks that begin here, behind what is in none of them."""
        begins = [i for i in self._around if self.spans[i][0] == cut]
        for number, i in enumerate(begins):
            around = [self.marks[j] for j in begins[number:]]
            held = {j for j in waiting if any(mark.holds(self.marks[j]) for mark in around)}
            self._put([j for j in waiting if j not in held], waiting)
            self._stack.append(i)
            self._output.add(self.marks[i].opens)

    def _put(self, numbers: Sequence[int], waiting: list[int]) -> None:
        """Write marks that have no words of the text."""
        for i in numbers:
            waiting.remove(i)
            mark, (begin, end) = self.marks[i], self.spans[i]
            is_lost = mark.is_anchor and begin == end and self.sources[i] != ""
            if (mark.kind == "look" and self._paragraph.drops) or (
                is_lost and mark.kind == "break"
            ):
                continue
            if is_lost and self._text[begin - 1 : begin].isalnum():
                self._output.words(" ", self._run())
            self._output.add(mark.opens)
            if mark.kind == "link" and has_words(self.sources[i]):
                self.own_words.append(self.sources[i])
                self._output.words(self.sources[i], mark.run or self._run())
            self._output.add(mark.closes)
            if is_lost and self._text[end : end + 1].isalnum():
                self._output.words(" ", self._run())

    def _run(self) -> Run | None:
        """Of the shortest mark here that has one."""
        here = [i for i in self._runs if self.spans[i][0] <= self._at < self.spans[i][1]]
        here += [i for i in self._stack if self.marks[i].run]
        if not here:
            return self._paragraph.run
        return self.marks[min(here, key=lambda i: (self.spans[i][1] - self.spans[i][0], -i))].run


def has_words(text: str) -> bool:
    return regex.search(r"\w", text) is not None


def _nested(paragraph: Paragraph, text: str, targets: Sequence[Target]) -> list[Span]:
    """The marks' spans in the text, which do not cross each other. What is sure goes first."""
    marks = paragraph.inline
    spans = [
        _wanted(mark, paragraph.text[slice(*mark.span)].strip(), target, text)
        for mark, target in zip(marks, targets, strict=True)
    ]
    sure = [i for i, (_, is_sure) in enumerate(targets) if is_sure and not marks[i].is_anchor]
    for i in reversed(sure):  # around the marks inside of it
        inside = [spans[j] for j in sure if marks[i].holds(marks[j])]
        begins, ends = zip(spans[i], *inside, strict=True)
        spans[i] = min(begins), max(ends)
    placed = [
        i for i, m in enumerate(marks) if m.kind != "run" and (targets[i][1] or m.kind != "look")
    ]
    placed.sort(key=lambda i: (marks[i].is_anchor, not targets[i][1], i))
    done = list[int]()
    for i in placed:
        spans[i] = _outside(i, spans, marks)
        spans[i] = _apart(i, spans, marks, done)
        done.append(i)
    return spans


def _wanted(mark: Mark, words: str, target: Target, text: str) -> Span:
    """The span of a mark of these words without regard to others."""
    (begin, end), sure = target
    if mark.is_anchor:
        return begin, end if text[begin:end].strip() in ("", words) else begin
    return begin, begin if mark.may_be_plain and not sure else end


def _outside(i: int, spans: Sequence[Span], marks: Sequence[Mark]) -> Span:
    """The span of an anchor, such as a note, outside of the marks that it was before or behind."""
    begin, end = spans[i]
    if not marks[i].is_anchor or begin < end:
        return begin, end
    start, stop = marks[i].source_span
    for mark, (low, high) in zip(marks, spans, strict=True):
        if low < begin < high and stop <= mark.source_span[0]:
            begin = low
        elif low < begin < high and mark.source_span[1] <= start:
            begin = high
    return begin, begin


def _apart(i: int, spans: Sequence[Span], marks: Sequence[Mark], done: Iterable[int]) -> Span:
    """A mark's span, cut where it would cross another, or where one link would be in another."""
    begin, end = spans[i]
    for j in done:
        low, high = spans[j]
        if marks[j].holds(marks[i]):
            begin, end = max(low, min(begin, high)), min(high, max(end, low))
        elif marks[i].holds(marks[j]):
            begin, end = min(begin, low), max(end, high)
        elif marks[i].is_apart and marks[j].is_apart and begin < high and low < end:
            begin, end = (begin, low) if low - begin > end - high else (high, max(high, end))
    for low, high in (spans[j] for j in done):
        if begin < low < end < high:
            end = low
        elif low < begin < high < end:
            begin = high
    return begin, max(begin, end)
