"""Paragraphs of markup: a text and its marks, and how a translation is written with them, in its own order."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import regex

from apps.documents.document import Passage, Span, Target
from speculative.text.scripts import AFTER, BEFORE

HOLE = "\0"  # stands for markup that has paragraphs of its own and is not written anew
STOOD_FOR = "\1"  # stands for what has a name such as {1} in the text
ATOM = "\0"  # stands for what is shown, but has no words
Spaces = tuple[str, str]  # white space before and behind something
_JOINS_NEXT = re.compile(rf'\A\Z|(?!(?<=[^\s(\[{{])")[\s{re.escape(BEFORE)}]\Z')
_JOINS_LAST = re.compile(rf'\Z|(?![".:][^\s.,;:!?)\]}}"])[\s{re.escape(AFTER)}]')
# Marks that are not in each other if not in the source
_APART = {"link", "change", "element", "anchor"}


class Run(NamedTuple):
    """In Word, an element that text is written in: its tag and properties, its closing tag, and how it is formatted."""

    head: str = ""
    tail: str = ""
    look: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Markup around words of a text or, as an anchor, at a place in it.

    kind: "run", of Word, which has no markup of its own; "look", which like it may become plain; "link", which keeps a word;
          "change"; "element"; "range", which may begin and end in different elements; "anchor"; "break", an anchor that is
          shown as its words and goes where they go; or "loose", a tag whose partner is elsewhere
    """

    span: Span  # of the words in the text; an anchor stands for them
    source_span: Span  # with its words
    opens: str = ""  # the markup before its words, or an anchor's
    closes: str = ""  # the markup behind them
    kind: str = "anchor"
    run: Run | None = None  # what its words are written in
    own_words: str = ""  # a link's, for a text that has none for it
    spaces: Spaces | None = None  # before and behind an anchor that is shown, but has no words

    @property
    def is_anchor(self) -> bool:
        return self.kind in ("anchor", "break", "loose")

    @property
    def may_be_plain(self) -> bool:
        return self.kind in ("run", "look")

    def holds(self, other: "Mark") -> bool:
        if self.is_anchor or self.kind == "run" or self is other:
            return False
        start, stop = self.source_span
        return start <= other.source_span[0] and other.source_span[1] <= stop


@dataclass(frozen=True, slots=True)
class Paragraph(Passage):
    """A text and its marks, in the source's order, the outer ones first."""

    raw: str = ""  # its markup, if its spans are lines and the marks' places are in this
    longest: Span = (0, 0)  # of the longest text between two marks, in the source
    marks: tuple[Mark, ...] = ()
    run: Run | None = None  # what text without a mark is written in
    ends: tuple[str, str] = ("", "")  # of the run that its source begins in; the head of its last
    edges: Spaces = ("", "")  # white space before and behind the text
    drops: bool = False  # formatting whose words became plain is left out
    is_single: bool = False  # no source may stand beside its translation, as in a title

    def shown(self, mark: Mark) -> str:
        return self.text[slice(*mark.span)].strip()

    def meaning(self, stand_in: str) -> str:
        raws = {self.shown(mark): mark.opens for mark in self.marks if mark.is_anchor}
        return re.sub(r"<[^<>]*>", "", raws.get(stand_in, "")).strip() or stand_in

    def name_of(self, mark: Mark) -> str:
        """The name, such as {1}, by which the text shows what a mark has no words for; "" if there is none."""
        shown = self.shown(mark)
        return shown if mark.is_anchor and shown.startswith("{") else ""

    def without_stand_ins(self, text: str) -> str:
        """The text with a character for those of the names by which it shows what it has no words for."""
        for name in filter(None, map(self.name_of, self.marks)):
            text = text.replace(name, STOOD_FOR * len(name))
        return text


def is_glued(before: str, after: str) -> bool:
    """Whether two texts without white space between them lack it: none is at their edges, and no marks that join words, such
    as a straight quotation mark with nothing on its other side."""
    return not (_JOINS_NEXT.search(before) or _JOINS_LAST.match(after))


def plain_spans(paragraph: Paragraph, text: str) -> list[Span]:
    """The marks' spans if the text is in the place of the longest one or, in lines, before all of them; but where it names what
    they stand for, there."""
    start, stop = paragraph.longest
    spans = list[Span]()
    for mark in paragraph.marks:
        begin, end = mark.source_span
        name = paragraph.name_of(mark)
        if name and name in text:
            spans.append((text.index(name), text.index(name) + len(name)))
        elif paragraph.drops or begin >= stop:
            spans.append((len(text), len(text)))
        elif begin <= start and stop <= end:
            spans.append((0, len(text)))
        else:
            spans.append((0, 0))
    return spans


def placed(paragraph: Paragraph, text: str, targets: Sequence[Target]) -> list[Span]:
    """The marks' spans in the text at these targets. None but runs cross, and each is in those that it is in in the source;
    what is sure goes first, and anchors last."""
    marks = paragraph.marks
    numbers = range(len(marks))
    spans = [_wanted(paragraph, text, *each) for each in zip(marks, targets, strict=True)]
    sure = [is_sure for _, is_sure in targets]
    for i in reversed(numbers):  # around the marks in it
        inside = [j for j in numbers[i + 1 :] if marks[i].holds(marks[j])]
        inside = [i, *(j for j in inside if sure[j] or not sure[i])]
        sure[i] = any(sure[j] for j in inside)
        if any(spans[j][0] < spans[j][1] for j in inside):
            filled = [spans[j] for j in inside if spans[j][0] < spans[j][1] or marks[j].is_anchor]
            spans[i] = min(begin for begin, _ in filled), max(end for _, end in filled)
    done = list[int]()
    for i in sorted(numbers, key=lambda i: (marks[i].is_anchor, not sure[i], i)):
        if marks[i].kind == "run":
            continue
        around = (0, len(text))
        others = list[int]()
        for j in done:
            if not marks[j].holds(marks[i]):
                others.append(j)
            elif spans[j][0] < spans[j][1] or not marks[j].may_be_plain:
                around = spans[j]
        span = _clamped(spans[i], around)
        for j in others:
            span = _beside(marks[i], span, marks[j], spans[j])
        spans[i] = _clamped(span, around)
        done.append(i)
    if paragraph.drops:
        for i in numbers:
            if not marks[i].opens.strip("*_~="):
                spans[i] = _bare(text, *spans[i])
    return spans


def _wanted(paragraph: Paragraph, text: str, mark: Mark, target: Target) -> Span:
    """The span of a mark without regard to others."""
    (begin, end), is_sure = target
    is_elsewhere = text[begin:end].strip() not in ("", paragraph.shown(mark))
    if (mark.is_anchor and is_elsewhere) or (mark.may_be_plain and not is_sure):
        return begin, begin
    had = paragraph.text[slice(*mark.span)]
    if had[:1].isspace() and text[begin - 1 : begin].isspace():
        begin -= 1
    if had[-1:].isspace() and text[end : end + 1].isspace():
        end += 1
    return begin, end


def _clamped(span: Span, around: Span) -> Span:
    begin, end = span
    low, high = around
    return max(low, min(begin, high)), min(high, max(end, low))


def _beside(mark: Mark, span: Span, other: Mark, other_span: Span) -> Span:
    """A mark's span outside of one beside it, if it is empty or both are links and the like; cut where they cross."""
    begin, end = span
    low, high = other_span
    if begin == end:
        if low < begin < high and mark.source_span[1] <= other.source_span[0]:
            return low, low
        if low < begin < high and other.source_span[1] <= mark.source_span[0]:
            return high, high
    elif {mark.kind, other.kind} <= _APART and begin < high and low < end:
        if low - begin > end - high:
            return min(begin, low), low
        return high, max(high, end)
    elif begin < low < end < high:
        return begin, low
    elif low < begin < high < end:
        return high, end
    return span


def _bare(text: str, begin: int, end: int) -> Span:
    """A span without the space at its edges, and punctuation beside a letter, where Markdown's marks would be none."""
    words = text[begin:end]
    if words and text[end : end + 1].isalnum() and not words[-1].isalnum():
        words = words[:-1]
    if words and text[begin - 1 : begin].isalnum() and not words[0].isalnum():
        words = words[1:]
        begin += 1
    begin += len(words) - len(words.lstrip())
    return begin, begin + len(words.strip())


def lost_marks(
    paragraph: Paragraph, spans: Sequence[Span], targets: Sequence[Target]
) -> Iterator[tuple[str, str]]:
    """The marks that are not where they should be, with their kinds and words."""
    for mark, (begin, end), (_, is_sure) in zip(paragraph.marks, spans, targets, strict=True):
        words = paragraph.shown(mark)
        if begin == end and mark.may_be_plain and regex.search(r"\w", words):
            yield "look", words
        elif (begin == end and mark.own_words) or (mark.kind == "change" and not is_sure):
            yield mark.kind, words


class _Piece(NamedTuple):
    """Words or markup as it is written, with what it shows and the space that it needs."""

    raw: str
    shown: str
    spaces: Spaces = ("", "")
    closes: bool = False


class Writer:
    """Writes a text with the marks of a paragraph at spans that do not cross. escape: writes words as markup."""

    def __init__(
        self, paragraph: Paragraph, text: str, spans: Sequence[Span], escape: Callable[[str], str]
    ):
        self._paragraph = paragraph
        self._text = text
        self._visible = [*paragraph.without_stand_ins(text)]
        self._escape = escape
        self._marks = [*zip(paragraph.marks, spans, strict=True)]
        self._runs = [paragraph.run] * len(text)  # of each character: the shortest mark's
        for mark, (begin, end) in sorted(self._marks, key=lambda each: each[1][0] - each[1][1]):
            if mark.run:
                self._runs[begin:end] = [mark.run] * (end - begin)
        ends = {mark.source_span[1]: (mark.span[1], span[1]) for mark, span in self._marks}
        for mark, span in self._marks:
            end, stop = ends.get(mark.source_span[0], (0, 0))
            if paragraph.text[end : mark.span[0]] == text[stop : span[0]] == " ":
                self._visible[stop] = ""  # two that touch, though not for the model

    def words(self) -> str:
        """The text as it is shown, with spaces for what has no words."""
        return "".join(self._visible).replace(STOOD_FOR, " ")

    def parts(self) -> list[str]:
        """The markup for the paragraph's spans."""
        before, after = self._paragraph.ends
        lead, tail = self._paragraph.edges
        pieces = [*self._pieces()]
        parts = [piece.raw for piece in pieces]
        shown = [number for number, piece in enumerate(pieces) if piece.shown]
        for i, j in pairwise(shown):
            if is_glued(pieces[i].shown, pieces[j].shown):
                space = pieces[i].spaces[1] or pieces[j].spaces[0]
                at = next((k for k in range(i + 1, j) if not pieces[k].closes), j)
                parts[at] = self._in_run(space, self._paragraph.run) + parts[at]
        if shown:
            parts[shown[0]] = self._in_run(lead, self._paragraph.run) + parts[shown[0]]
            parts[shown[-1]] += self._in_run(tail, self._paragraph.run)
        return "".join([before, *parts, after]).split(HOLE)

    def _pieces(self) -> Iterator[_Piece]:
        """Words and markup in their order."""
        end = 0
        for order, raw, stop, spaces in sorted(self._tags(), key=itemgetter(0)):
            if end < order[0]:
                yield _Piece(self._between(end, order[0]), self._text[end : order[0]])
            end = max(end, stop)
            if spaces:
                yield _Piece(raw, ATOM, spaces)
            else:
                yield _Piece(raw, self._text[order[0] : stop], closes=order[1] == 0)
        yield _Piece(self._between(end, len(self._text)), self._text[end:])

    def own_words(self) -> list[str]:
        """The words of links for which the text has none, which are added to it."""
        empty = (mark for mark, (begin, end) in self._marks if begin == end)
        return [mark.own_words for mark in empty if mark.own_words]

    def _tags(self) -> Iterator[tuple[tuple[int, ...], str, int, Spaces | None]]:
        """Markup with its order, where the text goes on, and the space that it needs if it is shown. At one place come ends,
        the inner ones first, then what has no words, then begins, the outer ones first."""
        for number, (mark, (begin, end)) in enumerate(self._marks):
            start, stop = mark.source_span
            is_look = mark.kind == "look" and self._paragraph.drops
            if mark.kind == "run" or (is_look and begin == end):
                continue
            if begin == end:
                order = self._place(mark, begin)
                opens, spaces = self._without_words(mark)
                yield (*order, start), opens, begin, spaces and (spaces[0], "")
                yield (*order, stop), mark.closes, begin, spaces and ("", spaces[1])
            elif mark.is_anchor:
                yield (begin, 2, -end, number, start), mark.opens, end, None
            else:
                yield (begin, 2, -end, number, start), mark.opens, begin, None
                yield (end, 0, -begin, -number, stop), mark.closes, end, None

    def _place(self, mark: Mark, at: int) -> tuple[int, ...]:
        """The order of a mark without words: in the one that it is in in the source, if that begins or ends here."""
        for number, (around, (begin, end)) in reversed([*enumerate(self._marks)]):
            if begin == end or not around.holds(mark):
                continue
            if at == begin:
                return begin, 2, -end, number
            if at == end:
                return end, 0, -begin, -number
            break
        return at, 1, 0, 0

    def _without_words(self, mark: Mark) -> tuple[str, Spaces | None]:
        """The markup before what a mark holds, where its words are not, and the space around it if it is shown."""
        has_words = mark.own_words != "" or (mark.is_anchor and self._paragraph.shown(mark) != "")
        if has_words and mark.kind == "break":
            return "", None
        opens = mark.opens + self._in_run(mark.own_words, mark.run or self._paragraph.run)
        if has_words:
            return opens, (" ", " ")
        return opens, mark.spaces

    def _between(self, start: int, stop: int) -> str:
        groups = groupby(range(start, stop), self._runs.__getitem__)
        parts = ((run, "".join(self._visible[at] for at in group)) for run, group in groups)
        return "".join(self._in_run(words.replace(STOOD_FOR, ""), run) for run, words in parts)

    def _in_run(self, words: str, run: Run | None) -> str:
        if not words:
            return ""
        head, tail, _ = run or Run()
        return f"{head}{self._escape(words)}{tail}"
