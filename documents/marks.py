"""Marks of a text, such as bold words, links and notes: where they go in its translation, and how that is written.

A paragraph with marks is a row of slots that take text. Marks are around slots; notes and the like are slots themselves.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, groupby, pairwise
from typing import NamedTuple

import regex

from documents.document import Passage, Place, Span
from documents.sentences import runs_on

STAND_IN = "{}"  # shows a field or the like in the text, where it is numbered
_BOUNDARY = regex.compile(r"(?w)(?<!\{\d*)(?:\b|(?=['’])|(?<=['’])|^|$)")  # noqa: RUF001
_WORD = regex.compile(r"(?w)(?<!\{\d*)\w.*?(?=\b)")


def places(sources: Sequence[str], texts: Sequence[str], marked: Sequence[Span]) -> list[Place]:
    """Where the marks of a passage go in its translation.

    sources: the passage's sentences, which joined are its text; texts: their translations
    """
    whole = "".join(sources)
    starts = [0, *accumulate(map(len, sources))]
    begins = [0, *accumulate(map(len, texts))]
    result = list[Place]()
    for start, end in (_trimmed(whole, mark) for mark in marked):
        last = max(bisect_left(starts, end) - 1, 0)
        first = min(bisect_right(starts, start) - 1, last)
        if (
            start == end and whole[start - 1 : start].isspace()
        ):  # otherwise a note of the sentence before it
            first = last = min(bisect_right(starts, start), len(sources)) - 1
        parts = list[Place]()
        for i in sorted({first, last}):
            mark = max(start - starts[i], 0), min(end - starts[i], len(sources[i]))
            (begin, stop), sure = placed(sources[i], texts[i], mark)
            parts.append(((begins[i] + begin, begins[i] + stop), sure))
        result.append(((parts[0][0][0], parts[-1][0][1]), all(sure for _, sure in parts)))
    return result


def placed(source: str, text: str, mark: Span) -> Place:
    """Where a mark of a sentence goes in its translation, and whether that is sure. The whole sentence is the whole one,
    and words go where the same words are; else it is the same place, between words."""
    start, end = _trimmed(source, mark)
    words = source[start:end].strip()
    if words and words == source.strip():
        return _trimmed(text, (0, len(text))), True
    same = _same_words(source, text, (start, end)) if words else None
    if same:
        return same, True
    begin, stop = _same_place(source, text, start), _same_place(source, text, end)
    if words and not text[begin:stop].strip():
        spans = [match.span() for match in _WORD.finditer(text)]
        begin, stop = min(spans, key=lambda span: abs(span[0] - begin), default=(0, len(text)))
    return (begin, max(begin, stop)), False


def _trimmed(text: str, span: Span) -> Span:
    """The span without the white space around its words."""
    words = text[slice(*span)]
    if not words.strip():
        return span
    return span[0] + len(words) - len(words.lstrip()), span[0] + len(words.rstrip())


def _same_words(source: str, text: str, mark: Span) -> Span | None:
    """Where the text has the words that a mark is around or within; if not as often as the source, the nearest."""
    edges = _boundaries(source)
    start, end = max(i for i in edges if i <= mark[0]), min(i for i in edges if i >= mark[1])
    here, there = (_finds(each, source[start:end]) for each in (source, text))
    if not there:
        return None
    share = start / len(source) * len(text)
    nearest = min(there, key=lambda at: abs(at - share))
    at = there[here.index(start)] if len(here) == len(there) else nearest
    return at + mark[0] - start, at + mark[1] - start


def _finds(text: str, words: str) -> list[int]:
    edges = {*_boundaries(text)}
    matches = regex.finditer(regex.escape(words), text, regex.IGNORECASE, overlapped=True)
    return [match.start() for match in matches if edges.issuperset(match.span())]


def _boundaries(text: str) -> list[int]:
    """Where words and marks of punctuation begin or end."""
    return [match.start() for match in _BOUNDARY.finditer(text)]


def _same_place(source: str, text: str, at: int) -> int:
    """The nearest place between words of the text, the nearer if it looks the same."""
    start, end = _trimmed(source, (0, len(source)))
    begin, stop = _trimmed(text, (0, len(text)))
    if at <= start:
        return begin if at else 0
    if at >= end:
        return stop if at == end else len(text)
    share = begin + (at - start) / (end - start) * (stop - begin)

    def distance(place: int) -> float:
        looks_other = _neighbours(text, place) != _neighbours(source, at)
        return abs(place - share) + looks_other * len(text) / 4

    return min((i for i in _boundaries(text) if begin <= i <= stop), key=distance)


def _neighbours(text: str, at: int) -> list[tuple[bool, bool]]:
    """What stands before and after a place."""
    return [(each.isalnum(), each.isspace()) for each in (text[at - 1 : at], text[at : at + 1])]


@dataclass(frozen=True)
class Slot:
    """Where text goes.

    span:   in the source; empty where there is no text yet
    words:  what stands there
    look:   how it is formatted; None: as most of the paragraph
    groups: what is around it, such as "link 3"
    kind:   "text"; "anchor": a note or the like, which stays as it is; "apart": takes no other words
    """

    span: Span
    words: str
    look: str | None = None
    groups: tuple[str, ...] = ()
    kind: str = "text"


class _Mark(NamedTuple):
    kind: str  # "anchor", "look", or the first word of a group's name
    first: int  # of its slots
    stop: int


@dataclass(frozen=True)
class Paragraph(Passage):
    slots: tuple[Slot, ...] = ()
    marks_of: tuple[_Mark, ...] = ()
    look: str = ""  # of most of the text

    @classmethod
    def of(cls, slots: Sequence[Slot]) -> "Paragraph":
        words = "".join(slot.words for slot in slots)
        names = (name for name in map("{{{}}}".format, count(1)) if name not in words)
        slots = [replace(s, words=next(names)) if s.words == STAND_IN else s for s in slots]
        sizes = Counter[str]()
        for slot in slots:
            is_link = any(group.startswith("link") for group in slot.groups)
            if slot.look is not None and slot.kind == "text" and not is_link:
                sizes[slot.look] += len(slot.words)
        look = max(sizes, key=lambda look: sizes[look], default="")
        text = "".join(slot.words for slot in slots)
        starts = [0, *accumulate(len(slot.words) for slot in slots)]
        marks = [*_marks(slots, look)]
        marked = tuple((starts[mark.first], starts[mark.stop]) for mark in marks)
        spans = tuple(slot.span for slot in slots)
        return cls(text, spans, marked=marked, slots=(*slots,), marks_of=(*marks,), look=look)


def _marks(slots: Sequence[Slot], look: str) -> Iterator[_Mark]:
    numbers = [i for i, slot in enumerate(slots) if slot.words or slot.kind == "anchor"]
    for group in dict.fromkeys(group for slot in slots for group in slot.groups):
        inside = [i for i in numbers if group in slots[i].groups and slots[i].words]
        if inside:
            yield _Mark(group.split()[0], inside[0], inside[-1] + 1)
    for same, run in groupby(numbers, lambda i: (slots[i].kind, slots[i].look, slots[i].groups)):
        first, *rest = run
        if same[0] == "anchor":
            yield from (_Mark("anchor", i, i + 1) for i in (first, *rest))
        elif same[:2] != ("text", look):
            yield _Mark("look", first, [first, *rest][-1] + 1)


def spread(
    paragraph: Paragraph, text: str, at: Sequence[Place] | None = None
) -> tuple[list[str], list[tuple[str, str]]]:
    """What to write into each slot, and the marks that are not where they should be, with their kind and words. at: the
    marks' places."""
    at = at or places([paragraph.text], [text], paragraph.marked)
    slots = paragraph.slots
    parts = [""] * len(slots)
    lost = list[tuple[str, str]]()
    shown = [slot.words for slot in slots if slot.kind == "anchor" and slot.words.strip()]
    rest = ""  # between a note and what else is sure of its place
    last = 0  # slot with text
    for (first, begin), (stop, end) in pairwise(sorted(_cuts(paragraph, text, at).items())):
        inside = range(first, stop)
        takers = [i for i in inside if slots[i].words.strip() and slots[i].kind == "text"]
        best = (i for i in takers if slots[i].look == paragraph.look)
        taker = next(best, (takers or [first])[0])
        is_anchor = slots[taker].kind == "anchor"
        part = rest + text[begin:end]
        if is_anchor and part.strip() == slots[taker].words.strip():
            part = ""
        for name in (name for name in shown if name in part):
            part = part.replace(name, "")  # a note that has passed another one
            lost.append(("place", name))
        parts[taker] = slots[taker].words if is_anchor else part
        last = last if is_anchor else taker
        rest = part if is_anchor else ""
        if is_anchor and slots[taker].words.strip() not in text and text[end : end + 1].isalnum():
            rest += " "  # the text lost its stand-in
    parts[last] += rest
    for mark, (start, end), (_, sure) in zip(paragraph.marks_of, paragraph.marked, at, strict=True):
        words = paragraph.text[start:end].strip()
        is_empty = regex.search(r"\w", words) and not "".join(parts[mark.first : mark.stop]).strip()
        if mark.kind == "link" and is_empty:
            parts[mark.first] = slots[mark.first].words
        if (mark.kind in ("look", "link") and is_empty) or (mark.kind == "change" and not sure):
            lost.append((mark.kind, words))
    return parts, lost


def _cuts(paragraph: Paragraph, text: str, at: Sequence[Place]) -> dict[int, int]:
    """Where in the text some of the slots begin. What is sure goes first, and marks keep their order."""
    cuts = {0: 0, len(paragraph.slots): len(text)}

    def limits(slot: int) -> Span:
        low = max(cut for other, cut in cuts.items() if other <= slot)
        return low, min(cut for other, cut in cuts.items() if other >= slot)

    def urgency(each: tuple[_Mark, Span, Place]) -> tuple[bool, bool, int]:
        return not each[2][1], each[0].kind == "look", each[0].first

    marks = zip(paragraph.marks_of, paragraph.marked, at, strict=True)
    for mark, source, ((start, end), sure) in sorted(marks, key=urgency):
        words = paragraph.text[slice(*source)]
        if mark.kind != "anchor":  # with the spaces at its sides that it has
            start -= len(text[:start]) - len(text[:start].rstrip()) if words[:1].isspace() else 0
            end += len(text[end:]) - len(text[end:].lstrip()) if words[-1:].isspace() else 0
        low, high = limits(mark.first)
        begin = max(low, min(start, high))
        low, high = limits(mark.stop)
        stop = max(low, min(end, high), begin)
        if mark.kind == "look" and not (
            sure and text[begin:stop].strip() == text[start:end].strip()
        ):
            continue
        if mark.kind == "anchor":
            if text[begin:stop].strip() not in ("", words.strip()):
                stop = begin
        elif not text[begin:stop].strip():
            space = limits(mark.first)[0], limits(mark.stop)[1]
            spans = (match.span() for match in _WORD.finditer(text, *space))
            begin, stop = min(spans, key=lambda span: abs(span[0] - begin), default=(begin, stop))
        cuts.setdefault(mark.first, begin)
        cuts.setdefault(mark.stop, stop)
    return cuts


class Slots:
    """Collects the slots of a paragraph of markup, from its begin to its end."""

    def __init__(self):
        self.groups = list[str]()  # that are open
        self.paragraphs = list[Paragraph]()  # that are complete
        self._slots = list[Slot]()
        self._break: int | None = None  # the slot of a line break that no words follow yet
        self._space: tuple[int, int] | None = None  # after which slot, and where it ends

    def add(self, span: Span, words: str = "", look: str | None = None, kind: str = "text") -> None:
        if self._break is not None and kind == "text" and words.strip():
            before = "".join(slot.words for slot in self._slots[: self._break])
            if not runs_on(before, words):
                self._end_line()
            self._break = None
        if self._space and words.strip():
            number, stop = self._space
            slot = self._slots[number]
            self._slots[number] = replace(slot, span=(slot.span[0], stop), words=f"{slot.words} ")
            self._space = None
        self._slots.append(Slot(span, words, look, (*self.groups,), kind))

    def space(self, span: Span, look: str | None) -> None:
        """White space, which is a part of the text only between words."""
        if self.goes_on():
            if not self._slots or self._slots[-1].span[1] != span[0]:
                self.add((span[0], span[0]), "", look)
            self._space = len(self._slots) - 1, span[1]

    def goes_on(self) -> bool:
        """Whether words stand before this in the line, without white space at the end."""
        last = self._break is None and not self._space
        return last and any(slot.words.strip() for slot in self._slots)

    def gap(self, at: int) -> None:
        """A place where text may go."""
        self.add((at, at))

    def anchor(self, at: int, shown: str = "") -> None:
        self.add((at, at), shown, kind="anchor")

    def line_break(self, at: int) -> None:
        """A break within a sentence is an anchor; all others end a paragraph."""
        self._space = None
        self._end_line()
        self.anchor(at, " ")
        self._break = len(self._slots) - 1

    def close(self, name: str) -> None:
        """Close the last group whose name begins so."""
        named = [group for group in self.groups if group.startswith(name)]
        if named:
            self.groups.remove(named[-1])

    def finish(self) -> None:
        self._end_line()
        self._complete(self._slots)
        self._slots = []
        self._space = None

    def _end_line(self) -> None:
        if self._break is not None:
            self._complete(self._slots[: self._break])
            del self._slots[: self._break + 1]
            self._break = None

    def _complete(self, slots: list[Slot]) -> None:
        if any(slot.kind != "anchor" and slot.words.strip() for slot in slots):
            self.paragraphs.append(Paragraph.of(slots))
