"""Paragraphs of markup: a text and its marks, and how a translation is written with them, in its own order."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import regex

from documents.document import Passage, Place, Span
from documents.marks import WORD, places


@dataclass(eq=False)
class Run:
    """What Word writes text in.

    head:     its tag and properties
    look:     how it is formatted
    has_text: whether the source has text in it
    """

    head: str
    look: str
    has_text: bool = False


class Piece(NamedTuple):
    """Markup, and the runs that it begins and ends in. None: it has paragraphs of its own and is not written anew."""

    raw: str | None = ""
    before: Run | None = None
    after: Run | None = None


NOTHING = Piece()


@dataclass(frozen=True)
class Mark:
    """Markup around words of a text or, as an anchor, at a place in it.

    span:   of the words in the text; an anchor stands for them
    source: where it is in the source, with its words
    opens:  the markup before its words; one of the two is empty if it is outside of the paragraph
    closes: the markup behind them
    kind:   "run", of Word, which has no markup of its own; "look", which like it may become plain; "link", which keeps a word;
            "change"; "element"; "range", which may begin and end in different elements; "anchor"
    run:    what its words are written in
    """

    span: Span
    source: Span
    opens: Piece = NOTHING
    closes: Piece = NOTHING
    kind: str = "anchor"
    run: Run | None = None

    def holds(self, other: "Mark") -> bool:
        (start, stop), (begin, end) = self.source, other.source
        is_around = self.kind not in ("anchor", "run") and self is not other
        return is_around and start <= begin and end <= stop

    @property
    def is_half(self) -> bool:
        return self.kind != "anchor" and bool(self.opens.raw) != bool(self.closes.raw)

    @property
    def may_be_plain(self) -> bool:
        return self.kind in ("run", "look")


@dataclass(frozen=True)
class Paragraph(Passage):
    """A text and its marks, in the source's order, the outer ones first.

    run:   what text without a mark is written in
    ends:  the runs that the paragraph's source begins and ends in
    drops: formatting whose words became plain is left out
    """

    inline: tuple[Mark, ...] = ()
    run: Run | None = None
    ends: tuple[Run | None, Run | None] = (None, None)
    drops: bool = False


class _Output:
    """What is written for a paragraph, in the parts that markup which stays divides it into."""

    def __init__(self, run: Run | None, escape: Callable[[str], str]):
        self.parts = [""]
        self._run = run
        self._escape = escape

    def enter(self, run: Run | None) -> None:
        if run is not self._run:
            self.parts[-1] += "</w:r>" * bool(self._run) + (run.head if run else "")
            self._run = run

    def add(self, piece: Piece) -> None:
        if piece.raw == "":
            return
        self.enter(piece.before)
        if piece.raw is None:
            self.parts.append("")
        else:
            self.parts[-1] += piece.raw
        self._run = piece.after

    def words(self, text: str, run: Run | None) -> None:
        if text:
            here = self._run
            if not (run and here and here.has_text and here.look == run.look):
                self.enter(run)
            self.parts[-1] += self._escape(text)


def written(
    paragraph: Paragraph, text: str, at: Sequence[Place] | None, escape: Callable[[str], str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """What to write into the spans of a paragraph, and the marks that are not where they should be, with their kind and
    words. at: the marks' places. escape: writes text as markup."""
    at = at or places([(paragraph.text, text)], paragraph.marked, {})
    writer = _Writer(paragraph, text, _nested(paragraph, text, at), escape)
    lost = list[tuple[str, str]]()
    for mark, words, span, (_, sure) in zip(
        paragraph.inline, writer.sources, writer.spans, at, strict=True
    ):
        is_empty = span[0] == span[1] and has_words(words)
        if is_empty and mark.may_be_plain:
            lost.append(("look", words))
        elif (is_empty and mark.kind == "link") or (mark.kind == "change" and not sure):
            lost.append((mark.kind, words))
    return writer.parts(), lost


class _Writer:
    """Writes a text with the marks of a paragraph, whose spans in it do not cross each other."""

    def __init__(
        self, paragraph: Paragraph, text: str, spans: Sequence[Span], escape: Callable[[str], str]
    ):
        self.marks = marks = paragraph.inline
        self.spans = spans
        self.sources = [paragraph.text[slice(*mark.span)].strip() for mark in marks]
        self._paragraph = paragraph
        self._text = text
        self._output = _Output(paragraph.ends[0], escape)
        kinds = [mark.kind for mark in marks]
        self._runs = [i for i, kind in enumerate(kinds) if kind == "run"]
        self._alone = [
            i
            for i, (begin, end) in enumerate(spans)
            if kinds[i] == "anchor" or (begin == end and kinds[i] != "run")
        ]
        self._alone.sort(key=lambda i: marks[i].source[not marks[i].opens.raw])
        self._around = sorted({*range(len(marks))} - {*self._alone, *self._runs})
        self._around.sort(key=lambda i: -spans[i][1])
        anchors = (self.sources[i] for i in self._alone if kinds[i] == "anchor")
        self._stand_ins = [words for words in anchors if words.startswith("{")]
        self._stack = list[int]()  # of marks that are open
        self._at = 0

    def parts(self) -> list[str]:
        cuts = sorted({0, len(self._text), *(cut for span in self.spans for cut in span)})
        hidden = [self.spans[i] for i in self._alone]
        for cut, following in pairwise([*cuts, len(self._text)]):
            self._at = cut
            waiting = [i for i in self._alone if self.spans[i][0] == cut]
            while self._stack and self.spans[self._stack[-1]][1] == cut:
                top = self._stack[-1]
                self._put([i for i in waiting if self.marks[top].holds(self.marks[i])], waiting)
                self._output.add(self.marks[self._stack.pop()].closes)
            begins = [i for i in self._around if self.spans[i][0] == cut]
            while begins:
                held = {i for i in waiting for j in begins if self.marks[j].holds(self.marks[i])}
                self._put([i for i in waiting if i not in held], waiting)
                self._stack.append(begins.pop(0))
                self._output.add(self.marks[self._stack[-1]].opens)
            self._put([*waiting], waiting)
            if not any(begin <= cut < end for begin, end in hidden):
                part = self._text[cut:following]
                for name in self._stand_ins:
                    part = part.replace(name, "")
                self._output.words(part, self._run())
        self._output.enter(self._paragraph.ends[1])
        return self._output.parts

    def _put(self, numbers: Sequence[int], waiting: list[int]) -> None:
        """Write marks that have no words of the text."""
        for i in numbers:
            waiting.remove(i)
            mark, (begin, end) = self.marks[i], self.spans[i]
            is_lost = mark.kind == "anchor" and begin == end and self.sources[i] != ""
            if mark.kind == "look" and self._paragraph.drops:
                continue
            if is_lost and self.sources[i] not in self._stand_ins:
                continue
            sides = (
                (self._text[begin - 1 : begin], self._text[end : end + 1]) if is_lost else ("", "")
            )
            keeps_words = mark.kind == "link" and has_words(self.sources[i])
            self._output.words(" " * sides[0].isalnum(), self._run())
            self._output.add(mark.opens)
            self._output.words(self.sources[i] * keeps_words, mark.run or self._run())
            self._output.add(mark.closes)
            self._output.words(" " * sides[1].isalnum(), self._run())

    def _run(self) -> Run | None:
        """Of the shortest mark here that has one."""
        here = [i for i in self._runs if self.spans[i][0] <= self._at < self.spans[i][1]]
        here += [i for i in self._stack if self.marks[i].run]
        if not here:
            return self._paragraph.run
        return self.marks[min(here, key=lambda i: (self.spans[i][1] - self.spans[i][0], -i))].run


def has_words(text: str) -> bool:
    return regex.search(r"\w", text) is not None


def _nested(paragraph: Paragraph, text: str, at: Sequence[Place]) -> list[Span]:
    """The marks' spans in the text, which do not cross each other. What is sure goes first."""
    marks = paragraph.inline
    sources = [paragraph.text[slice(*mark.span)].strip() for mark in marks]
    spans = [_wanted(*each, text) for each in zip(marks, sources, at, strict=True)]
    sure = [i for i, (_, is_sure) in enumerate(at) if is_sure and marks[i].kind != "anchor"]
    for i in reversed(sure):  # around the marks inside of it
        inside = [spans[j] for j in sure if marks[i].holds(marks[j])]
        begins, ends = zip(spans[i], *inside, strict=True)
        spans[i] = min(begins), max(ends)
    done = list[int]()
    placed = [i for i, m in enumerate(marks) if m.kind != "run" and (at[i][1] or m.kind != "look")]
    placed.sort(key=lambda i: (marks[i].kind == "anchor", not marks[i].is_half, not at[i][1], i))
    for i in placed:
        spans[i] = _outside(i, spans, marks)
        spans[i] = _apart(i, spans, marks, done)
        needs_word = marks[i].kind not in ("anchor", "look") and not marks[i].is_half
        if needs_word and has_words(sources[i]) and not has_words(text[slice(*spans[i])]):
            begin = spans[i][0]
            words = [match.span() for match in WORD.finditer(text)]
            for word in sorted(words, key=lambda word: abs(word[0] - begin)):
                spans[i] = word
                if _apart(i, spans, marks, done) == word:
                    break
                spans[i] = begin, begin
        done.append(i)
    return spans


def _wanted(mark: Mark, words: str, place: Place, text: str) -> Span:
    """Where a mark of these words is to go without regard to others."""
    (begin, end), sure = place
    if mark.kind == "anchor":
        return begin, end if text[begin:end].strip() in ("", words) else begin
    if mark.is_half:
        return begin if mark.opens.raw else -1, end if mark.closes.raw else len(text) + 1
    return begin, begin if mark.may_be_plain and not sure else end


def _outside(i: int, spans: Sequence[Span], marks: Sequence[Mark]) -> Span:
    """Where an anchor, such as a note, is not within a mark that it was before or behind."""
    begin, end = spans[i]
    if marks[i].kind != "anchor" or begin < end:
        return begin, end
    start, stop = marks[i].source
    for mark, (low, high) in zip(marks, spans, strict=True):
        if low < begin < high and stop <= mark.source[0]:
            begin = low
        elif low < begin < high and mark.source[1] <= start:
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
        elif marks[i].kind == marks[j].kind == "link" and begin < high and low < end:
            begin, end = (begin, low) if low - begin > end - high else (high, max(high, end))
    for low, high in (spans[j] for j in done):
        if begin < low < end < high:
            end = low
        elif low < begin < high < end:
            begin = high
    return begin, max(begin, end)
