"""Marks of a text, such as bold words, links and notes: where they go in its translation, and how that is written.

A paragraph with marks is a row of slots, which take text; marks stand between and around them, and only slots change.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from typing import NamedTuple

from documents.document import Passage, Place, Span
from documents.sentences import UNSPACED

_ENDED = re.compile(r"[.!?:。！？]\W*$")  # noqa: RUF001
_IN_WORD = re.compile(rf"[^\W{UNSPACED}]{{2}}")
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def runs_on(before: str, after: str) -> bool:
    """Whether a sentence goes on behind a line break or a tab."""
    return after.lstrip()[:1].islower() and not _ENDED.search(before)


def places(sources: Sequence[str], texts: Sequence[str], marks: Sequence[Span]) -> list[Place]:
    """Where the marks of a passage go in its translation.

    sources: the passage's sentences, which joined are its text; texts: their translations
    """
    whole = "".join(sources)
    starts = [0, *accumulate(map(len, sources))]
    begins = [0, *accumulate(map(len, texts))]
    result = list[Place]()
    for start, end in (_trimmed(whole, mark) for mark in marks):
        first = min(bisect_right(starts, start), len(sources)) - 1
        last = max(bisect_left(starts, end), 1) - 1
        if start == end and not whole[:start][-1:].isspace():
            first = last  # a note stands behind the sentence before it
        last = max(first, last)
        parts = list[Place]()
        for i in {first: None, last: None}:
            inside = max(start - starts[i], 0), min(end - starts[i], len(sources[i]))
            (a, b), sure = placed(sources[i], texts[i], inside)
            parts.append(((begins[i] + a, begins[i] + b), sure))
        result.append(((parts[0][0][0], parts[-1][0][1]), all(sure for _, sure in parts)))
    return result


def placed(source: str, text: str, mark: Span) -> Place:
    """Where a mark of a sentence goes in its translation: a sentence's whole to its whole, then to the same words, which
    is sure; else to the same place, between words."""
    first, last = start, end = _trimmed(source, mark)
    words = source[start:end].strip()
    whole = _trimmed(text, (0, len(text)))
    if start == end or not words:
        at = _same_place(source, text, start)
        return (at, at), False
    if words == source.strip():
        return whole, True
    while start and _splits_word(source, start):  # the word that the mark is a part of
        start -= 1
    while _splits_word(source, end):
        end += 1
    there = _finds(text, source[start:end])
    if there:
        before = len(_finds(source[:end], source[start:end])) - 1
        same_number = len(there) == len(_finds(source, source[start:end]))
        share = start / len(source) * len(text)
        at = there[before] if same_number else min(there, key=lambda at: abs(at - share))
        return (at + first - start, at + last - start), True
    begin, stop = (_same_place(source, text, position) for position in (first, last))
    if not text[begin:stop].strip():
        spans = [match.span() for match in _WORD.finditer(text)] or [whole]
        begin, stop = min(spans, key=lambda span: abs(span[0] + span[1] - begin - stop))
    return (begin, stop), False


def _trimmed(text: str, span: Span) -> Span:
    """The span without the white space around it."""
    words = text[slice(*span)]
    if not words.strip():
        return span
    return span[0] + len(words) - len(words.lstrip()), span[0] + len(words.rstrip())


def _finds(text: str, words: str) -> list[int]:
    """Where the text has these words and no others joined to them."""
    starts = (
        match.start() for match in re.finditer(f"(?={re.escape(words)})", text, re.IGNORECASE)
    )
    return [
        at
        for at in starts
        if not _splits_word(text, at) and not _splits_word(text, at + len(words))
    ]


def _splits_word(text: str, at: int) -> bool:
    around = text[at - 1 : at + 1] if at else ""
    is_joined = unicodedata.category(text[at])[0] == "M" if 0 < at < len(text) else False
    return is_joined or bool(_IN_WORD.match(around))


def _same_place(source: str, text: str, at: int) -> int:
    """The place between words of the text that is nearest, the nearer for looking the same."""
    start, end = _trimmed(source, (0, len(source)))
    begin, stop = _trimmed(text, (0, len(text)))
    if at <= start:
        return begin if at else 0
    if at >= end:
        return stop if at == end else len(text)

    def cost(place: int) -> float:
        other = _neighbours(text, place) != _neighbours(source, at)
        return abs(place - share) + other * len(text) / 4

    share = begin + (at - start) / (end - start) * (stop - begin)
    places = [place for place in range(begin, stop + 1) if not _splits_word(text, place)]
    return min(places, key=cost)


def _neighbours(text: str, at: int) -> tuple[str, ...]:
    """What stands before and after a place: a word, a space or a mark of punctuation."""
    sides = text[:at][-1:], text[at : at + 1]
    return tuple(
        "word" if side.isalnum() else "space" if side.isspace() else side and "mark"
        for side in sides
    )


@dataclass(frozen=True)
class Slot:
    """Where text goes.

    span:   in the source; empty where no text is yet
    words:  what stands there
    look:   its formatting; None: the paragraph's
    groups: the links and the like around it, such as "link 3"
    before: what stands between it and the slot before, as the text shows it: often not at all; None: nothing
    """

    span: Span
    words: str
    look: str | None
    groups: tuple[str, ...] = ()
    before: str | None = None

    @property
    def takes_words(self) -> bool:
        return bool(self.words) and not (self.look or "").startswith(APART)


class _Mark(NamedTuple):
    kind: str  # "place", "look", or the first word of a group
    first: int  # of its slots; a place is before it
    stop: int


STAND_IN = "{}"  # for what is a part of the sentence; numbered in the text
APART = "apart: "  # begins a look that other words never get


@dataclass(frozen=True)
class Paragraph(Passage):
    slots: tuple[Slot, ...] = ()
    kinds: tuple[_Mark, ...] = ()  # of the marks
    look: str = ""  # of most of the text


def paragraph(slots: Sequence[Slot]) -> Paragraph:
    """The paragraph of these slots, with its marks."""
    sizes = Counter[str]()
    for slot in slots:
        if slot.look is not None and not slot.look.startswith(APART):
            sizes[slot.look] += len(slot.words)
    look = max(sizes, key=lambda look: sizes[look], default="")
    words = "".join(slot.words for slot in slots)
    names = (name for name in map("{{{}}}".format, count(1)) if name not in words)
    text = ""
    spans = list[Span]()  # in the text
    marks = list[tuple[_Mark, Span]]()
    for i, slot in enumerate(slots):
        if slot.before is not None:
            shown = next(names) if slot.before == STAND_IN else slot.before
            marks.append((_Mark("place", i, i), (len(text), len(text) + len(shown))))
            text += shown
        spans.append((len(text), len(text) + len(slot.words)))
        text += slot.words
    for mark in [*_groups(slots), *_looks(slots, look)]:
        marks.append((mark, (spans[mark.first][0], spans[mark.stop - 1][1])))
    of_source = tuple(slot.span for slot in slots)
    kinds = tuple(mark for mark, _ in marks)
    return Paragraph(text, of_source, tuple(span for _, span in marks), tuple(slots), kinds, look)


def _groups(slots: Sequence[Slot]) -> Iterator[_Mark]:
    for group in dict.fromkeys(group for slot in slots for group in slot.groups):
        inside = [i for i, slot in enumerate(slots) if group in slot.groups and slot.words]
        if inside:
            yield _Mark(group.split()[0], inside[0], inside[-1] + 1)


def _looks(slots: Sequence[Slot], main: str) -> Iterator[_Mark]:
    """Words that look other than most of the paragraph."""
    words = [i for i, slot in enumerate(slots) if slot.words and slot.look is not None]
    mark = None
    for i in words:
        slot = slots[i]
        if mark:
            last = slots[mark.stop - 1]
            is_apart = any(each.before is not None for each in slots[mark.stop : i + 1])
            if (last.look, last.groups) == (slot.look, slot.groups) and not is_apart:
                mark = mark._replace(stop=i + 1)
                continue
            yield mark
        mark = _Mark("look", i, i + 1) if slot.look != main else None
    if mark:
        yield mark


class Spread(NamedTuple):
    """What to write into each slot, None where it has that already; words that lost their look; and groups whose words
    may be others."""

    parts: list[str | None]
    plain: list[str]
    unsure: list[str]


def spread(paragraph: Paragraph, text: str, placed: Sequence[Place] | None = None) -> Spread:
    placed = placed or places([paragraph.text], [text], paragraph.marks)
    slots = paragraph.slots
    cuts = sorted(_cuts(paragraph, text, placed).items())
    parts = [""] * len(slots)
    for (first, (_, begin)), (stop, (end, _)) in pairwise(cuts):
        with_words = [i for i in range(first, stop) if slots[i].takes_words] or [first]
        of_main_look = (i for i in with_words if slots[i].look == paragraph.look)
        parts[next(of_main_look, with_words[0])] = text[begin:end]
    plain = list[str]()
    unsure = list[str]()
    for mark, (start, end), (_, sure) in zip(paragraph.kinds, paragraph.marks, placed, strict=True):
        words = paragraph.text[start:end].strip()
        is_empty = not "".join(parts[mark.first : mark.stop]).strip()
        if mark.kind == "look" and is_empty and any(map(str.isalnum, words)):
            plain.append(words)
        elif mark.kind == "change" and not sure:
            unsure.append(words)
        elif mark.kind == "link" and is_empty and words:
            parts[mark.first] = slots[mark.first].words
            unsure.append(words)
    new = [
        None if part == slot.words and (part or slot.span[0] == slot.span[1]) else part
        for part, slot in zip(parts, slots, strict=True)
    ]
    return Spread(new, plain, unsure)


def _cuts(paragraph: Paragraph, text: str, placed: Sequence[Place]) -> dict[int, Span]:
    """Where the text is cut before a slot: the part before it ends at the first position and its own begins at the
    second one. What is sure goes first, and nothing changes its order."""
    cuts = {0: (0, 0), len(paragraph.slots): (len(text), len(text))}

    def within(slot: int, at: int) -> int:
        if slot in cuts:
            return min(cuts[slot], key=lambda cut: abs(cut - at))
        low = max(cut[1] for i, cut in cuts.items() if i <= slot)
        high = min(cut[0] for i, cut in cuts.items() if i >= slot)
        return max(low, min(at, high))

    marks = [*zip(paragraph.kinds, paragraph.marks, placed, strict=True)]
    for mark, source, ((start, end), sure) in sorted(marks, key=_urgency):
        if mark.kind == "place":
            if not sure:
                end = start
            if paragraph.text[slice(*source)] == " ":
                end += len(text[start:]) - len(text[start:].lstrip())
            start = within(mark.first, start)
            cuts.setdefault(mark.first, (start, max(start, within(mark.first, end))))
            continue
        begin = within(mark.first, start)
        stop = max(begin, within(mark.stop, end))
        is_moved = text[begin:start] + text[start:begin] + text[stop:end] + text[end:stop]
        if mark.kind == "look" and (not sure or is_moved.strip()):
            continue
        if not text[begin:stop].strip():
            low = max(cut[1] for i, cut in cuts.items() if i <= mark.first)
            high = min(cut[0] for i, cut in cuts.items() if i >= mark.stop)
            spans = [match.span() for match in _WORD.finditer(text, low, high)]
            begin, stop = min(spans, key=lambda span: abs(span[0] - begin), default=(begin, stop))
        cuts.setdefault(mark.first, (begin, begin))
        cuts.setdefault(mark.stop, (stop, stop))
    return cuts


def _urgency(mark) -> tuple:
    kind, _, (_, sure) = mark
    return not sure, kind.kind == "look", kind.first


class Slots:
    """Collects what a paragraph of markup has, from its begin to its end."""

    def __init__(self):
        self.groups = list[str]()  # that are open
        self.finished = list[Paragraph]()
        self._slots = list[Slot]()
        self._before: str | None = None  # the next slot
        self._is_broken = False

    def close(self, group: str) -> None:
        self.groups = [each for each in self.groups if each != group]

    def words(self, span: Span, words: str, look: str | None) -> None:
        if self._is_broken and words.strip():
            text = "".join(slot.words for slot in self._slots)
            if runs_on(text, words):
                self.anchor("" if words[0].isspace() or text[-1:].isspace() else " ")
            else:
                self.finish()
            self._is_broken = False
        self._add(span, words, look)

    def gap(self, at: int) -> None:
        """A place where text may go, with the paragraph's look."""
        self._add((at, at), "", None)

    def anchor(self, shown: str = "") -> None:
        """Something that is no text; `STAND_IN` if the sentence needs it."""
        if shown == STAND_IN and self._is_broken:
            self.finish()
        if self._before != STAND_IN:
            self._before = shown

    def line_break(self) -> None:
        self._is_broken = True

    def finish(self) -> None:
        """End the paragraph, or a line of it."""
        if any(slot.words.strip() for slot in self._slots):
            self.finished.append(paragraph(self._slots))
        self._slots = []
        self._before = None
        self._is_broken = False

    def _add(self, span: Span, words: str, look: str | None) -> None:
        self._slots.append(Slot(span, words, look, tuple(self.groups), self._before))
        self._before = None
