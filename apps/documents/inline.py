"""The parts of markup, and the paragraphs that they make."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, groupby, pairwise
from typing import NamedTuple

import regex

from apps.documents.paragraph import ATOM, HOLE, Mark, Paragraph, Run, Spaces
from apps.documents.sentences import is_unspaced, runs_on
from speculative.text.scripts import SENTENCE_ENDED

STAND_IN = "{}"  # shows a field or the like in the text, where it is numbered
MAX_MARKS = 400  # of a paragraph; with more, it is written without them
_NUMBER = regex.compile(r"(?=.*[\p{N}\p{S}*†‡§¶])\P{L}*", regex.DOTALL)  # or a sign
_RAISED = re.compile(r'su[bp]\Z|.*"(?:sub|super)script"', re.DOTALL)  # an element's name, a look
_BEGINNING = regex.compile(r"\P{L}*+(?!\p{Ll})\p{L}")  # of a sentence
UNIT = r"(?<!\p{L})(?:\p{L}|(?<=\p{N}\s?)\p{L}{2,3})"  # m2, 5 km2, x2
_BEHIND_UNIT = regex.compile(f"{UNIT}$")
_NEAR = 40  # characters: longer texts are no numbers


class Event(NamedTuple):
    """A part of some markup.

    kind: "text"; "anchor"; "break", an anchor that is shown as its words, for a line break a space; "open" and "close", of
          something around words; or "hole", which has paragraphs of its own
    mark: the kind of mark that is opened; for the check alone "run", which may be lost, doubled or split
    """

    kind: str
    start: int
    stop: int
    words: str = ""  # the text, or what an anchor shows
    name: str = ""  # of what is opened or closed
    mark: str = ""
    run: Run | None = None  # that a text is in
    before: Run = Run()  # in which it begins, if in one
    after: Run = Run()  # in which it ends
    raw: str = ""  # what is written or, for the check, must be there again; empty: as in the source


def paragraphs_of(
    source: str, events: Sequence[Event], breaks: Sequence[int] = (), drops: bool = False
) -> Iterator[Paragraph]:
    """The paragraphs of these parts of a source. breaks: where lines begin in it that a paragraph's translation has, too;
    drops: see `Paragraph`; its spans are to be the lines'"""
    for part in _split(events):
        if sum(event.kind != "text" for event in part) > MAX_MARKS:
            part = [event for event in part if event.kind in ("text", "hole")]
        if not drops:
            part = _trimmed(_with_numbers(part))
        if any(event.kind == "text" and event.words.strip() for event in part):
            yield _Builder(source, part, drops).paragraph(breaks)


def _split(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The events of each paragraph. A line break within a sentence is an anchor; others end a paragraph."""
    breaks = [i for i, each in enumerate(events) if each.kind == "break" and each.words == " "]
    paragraph = list[Event]()
    last_words = ""
    for start, stop in pairwise([-1, *breaks, len(events)]):
        line = events[start + 1 : stop]
        words = "".join(event.words for event in line if event.kind == "text")
        if last_words.strip() and words.strip() and runs_on(last_words, words):
            paragraph.append(events[start])
        else:
            yield paragraph
            paragraph = []
        paragraph += line
        last_words = words
    yield paragraph


def _ends(events: Sequence[Event]) -> dict[int, int]:
    """The events that open something -> those that close it, in the same element unless it is a range."""
    ends = dict[int, int]()
    opened = list[int]()
    ranges = dict[str, int]()
    for number, event in enumerate(events):
        if event.kind == "open" and event.mark == "range":
            ranges[event.name] = number
        elif event.kind == "open":
            opened.append(number)
        elif event.kind == "close" and event.name in ranges:
            ends[ranges.pop(event.name)] = number
        elif event.kind == "close" and opened and events[opened[-1]].name == event.name:
            ends[opened.pop()] = number
    return ends


def _trimmed(events: Sequence[Event]) -> Sequence[Event]:
    """Without what stands before or behind the words: space, and what begins or ends in another paragraph."""
    ends = _ends(events)
    stay = {i for i, event in enumerate(events) if event.words.strip()} | {*ends, *ends.values()}
    return events[min(stay) : max(stay) + 1] if stay else []


def _with_numbers(events: Sequence[Event]) -> Sequence[Event]:
    """The events, in which an element or a run is an anchor if it is a number and no word of the sentence."""
    shown = "".join(event.words for event in events)
    places = [*accumulate((len(event.words) for event in events), initial=0)]
    looks = [event.run and event.run.look for event in events]
    lasts = _ends(events)  # of elements and of runs that look alike
    for look, group in groupby(range(len(events)), looks.__getitem__):
        alike = [*group]
        if look is not None:
            lasts[alike[0]] = alike[-1]
    new = [*events]
    for first, last in lasts.items():
        numbers = range(first, last + 1)
        is_raised = any(_RAISED.match(looks[i] or events[i].name) for i in numbers)
        if _is_apart(shown, places[first], places[last + 1], is_raised):
            for i in numbers:
                if events[i].kind == "text":
                    new[i] = events[i]._replace(kind="anchor", words="", run=None)
    return new


def _is_apart(shown: str, start: int, stop: int, is_raised: bool) -> bool:
    """Whether there is a number that is raised or ends a word, or stands before a sentence; H2O and m2 are words."""
    if stop - start > _NEAR or not _NUMBER.fullmatch(shown, start, stop):
        return False
    before = shown[max(start - _NEAR, 0) : start]
    behind = shown[stop : stop + _NEAR]
    has_spaces = not is_unspaced(before[-1:])
    is_in_word = before[-1:].isalpha() and behind[:1].isalpha()
    if has_spaces and (is_in_word or (is_raised and _BEHIND_UNIT.search(before))):
        return False
    begins = not before.strip() or SENTENCE_ENDED.search(before)
    is_first = begins and _BEGINNING.match(behind)
    return bool(is_raised or (has_spaces and before[-1:].isalnum()) or is_first)


class _Builder:
    """Builds the text and the marks of a paragraph from its events."""

    def __init__(self, source: str, events: Sequence[Event], drops: bool):
        self._source = source
        self._events = events
        self._drops = drops
        self._ends = _ends(events)
        self._has_words = [*accumulate((event.words != "" for event in events), initial=0)]
        self._spaces = dict[int, Spaces]()  # of what is shown, but has no words, by its number
        texts = [*self._texts()]
        text = "".join(texts)
        self._text = text.rstrip() if drops else text.strip()
        lead = text.find(self._text)
        places = (place - lead for place in accumulate(map(len, texts), initial=0))
        self._places = [min(max(place, 0), len(self._text)) for place in places]  # in the text
        self._edges = self._find_spaces()

    def paragraph(self, breaks: Sequence[int]) -> Paragraph:
        first = self._events[0]
        last = self._events[-1]
        marks = [*self._marks()]
        plain = self._plain_run(marks)
        marks = [*marks, *self._runs(plain, marks)]
        if len(marks) > MAX_MARKS:
            marks = [mark for mark in marks if mark.kind != "run"]
        marks.sort(key=lambda mark: (mark.source_span[0], -mark.source_span[1]))
        holes = [mark.source_span for mark in marks if HOLE in mark.opens]
        cuts = [first.start, *(cut for hole in holes for cut in hole), last.stop]
        words = [(event.start, event.stop) for event in self._events if event.kind == "text"]
        return Paragraph(
            self._text,
            tuple(zip(cuts[::2], cuts[1::2], strict=True)),
            formatting=tuple(mark.span for mark in marks),
            breaks=tuple(self._lines(breaks)),
            raw=self._source[first.start : last.stop] if self._drops else "",
            longest=max(words, key=lambda span: span[1] - span[0]),
            marks=tuple(marks),
            run=plain,
            ends=(first.before.tail, last.after.head),
            edges=self._edges,
            drops=self._drops,
        )

    def _texts(self) -> Iterator[str]:
        """The text of each event. There are no two spaces around an anchor: the second one is the anchor's."""
        words = "".join(event.words for event in self._events)
        names = (name for name in map("{{{}}}".format, count(1)) if name not in words)
        has_space = True
        for event in self._events:
            text = event.words
            if text == STAND_IN:
                text = next(names)
            elif text.startswith(" ") and has_space and not event.run:
                text = text[1:]
            yield text
            if text:
                has_space = text.endswith(" ")

    def _find_spaces(self) -> Spaces:
        """Find the white space around what is shown, but has no words; return that before and behind all."""
        shown = list[str]()
        atoms = list[int]()
        after = 0
        for first, event in enumerate(self._events):
            last = self._ends.get(first, first)
            if event.words:
                raw = self._source[event.start : event.stop]
                shown.append(raw if raw.isspace() and not self._drops else event.words)
                continue
            has_words = self._has_words[first] < self._has_words[last + 1]
            is_atom = event.kind == "anchor" or (last > first and event.mark != "range")
            if first >= after and is_atom and not has_words:
                after = last + 1
                atoms.append(first)
                shown.append(ATOM)
        edges = [
            (each[: len(each) - len(each.lstrip())], each[len(each.rstrip()) :])
            for each in "".join(shown).split(ATOM)
        ]
        for atom, (before, behind) in zip(atoms, pairwise(edges), strict=True):
            self._spaces[atom] = before[1], behind[0]
        return edges[0][0], edges[-1][1]

    def _lines(self, breaks: Sequence[int]) -> Iterator[int]:
        starts = [event.start for event in self._events]
        for cut in breaks:
            number = bisect_right(starts, cut) - 1
            place = self._places[number + 1] - self._events[number].stop + cut
            yield max(place, self._places[number])

    def _plain_run(self, marks: Sequence[Mark]) -> Run | None:
        """The run of most words outside of links, or else of the first ones."""
        links = [mark.source_span for mark in marks if mark.kind == "link"]
        runs = dict[str, Run]()  # by all their properties, also those that a look lacks
        sizes = Counter[str]()
        looks = Counter[str]()
        for event in self._events:
            if event.run:
                properties = event.run.head.partition(">")[2]
                runs.setdefault(properties, event.run)
                is_outside = all(not start <= event.start < stop for start, stop in links)
                size = len(event.words) if is_outside else 0
                sizes[properties] += size
                looks[event.run.look] += size
        plain = [name for name in sizes if runs[name].look == max(looks, key=looks.__getitem__)]
        return runs[max(plain, key=sizes.__getitem__)] if plain else None

    def _runs(self, plain: Run | None, marks: Sequence[Mark]) -> Iterator[Mark]:
        """The marks of formatting, in the runs of Word, besides those of plain text and of all of a link."""
        runs = [(number, event.run) for number, event in enumerate(self._events) if event.run]
        for look, group in groupby(runs, lambda each: each[1].look):
            numbers, some = zip(*group, strict=True)
            start = self._places[numbers[0]]
            stop = self._places[numbers[-1] + 1]
            around = [m.run for m in marks if m.span[0] <= start and stop <= m.span[1]]
            usual = next(filter(None, reversed(around)), plain)  # in a link its own
            if self._text[start:stop].strip() and usual and usual.look != look:
                source_span = self._events[numbers[0]].start, self._events[numbers[-1]].stop
                yield Mark((start, stop), source_span, kind="run", run=some[0])

    def _marks(self) -> Iterator[Mark]:
        after = 0
        closed = set[int]()
        for first, event in enumerate(self._events):
            last = self._ends.get(first, first)
            if first < after or first in closed or event.kind == "text":
                continue
            if self._has_words[first] < self._has_words[last]:
                closed.add(last)
                span = self._places[first], self._places[last]
                source_span = event.start, self._events[last].stop
                tags = self._raw(first, first), self._raw(last, last)
                yield Mark(span, source_span, *tags, event.mark, *self._of_link(first, last))
            elif event.mark == "range":
                yield self._anchor(first, first)
            else:  # all of it is one anchor
                yield self._anchor(first, last)
                after = last + 1

    def _of_link(self, first: int, last: int) -> tuple[Run | None, str]:
        if self._events[first].mark != "link":
            return None, ""
        texts = [event for event in self._events[first:last] if event.kind == "text"]
        words = "".join(event.words for event in texts).strip()
        run = next((event.run for event in texts), None)
        return run, words if regex.search(r"\w", words) else ""

    def _anchor(self, first: int, last: int) -> Mark:
        event = self._events[first]
        kind = event.kind
        if kind in ("open", "close") and first == last:
            kind = "loose"
        elif kind != "break":
            kind = "anchor"
        span = self._places[first], self._places[last + 1]
        stop = self._events[last].stop
        raw = self._raw(first, last)
        return Mark(span, (event.start, stop), raw, kind=kind, spaces=self._spaces.get(first))

    def _raw(self, first: int, last: int) -> str:
        """The source from one event to another, with all of the runs that it begins and ends in."""
        events = self._events[first : last + 1]
        end = events[-1].raw or self._source[events[-1].start : events[-1].stop]
        raw = self._source[events[0].start : events[-1].start] + end
        if any(event.kind == "hole" for event in events):
            raw = HOLE
        return f"{events[0].before.head}{raw}{events[-1].after.tail}"
