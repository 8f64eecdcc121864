"""The parts of a paragraph of markup, collected from its begin to its end."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, groupby, pairwise
from typing import NamedTuple

from documents.check import STAND_IN
from documents.document import Span
from documents.paragraph import Mark, Paragraph, Piece, Run
from documents.sentences import runs_on

_SHORT = 100  # characters
MAX_MARKS = 400  # of a paragraph; with more, it is written without them


class _Event(NamedTuple):
    """A part of the source.

    kind:   "text"; "space", which counts between words only; "anchor"; "break", an anchor that is shown as its words; "open"
            and "close", of something around words; "line", where a line of the source begins; "hole", which has paragraphs of
            its own; or "left out", which is not written anew
    words:  the text, what an anchor shows, or the name of what is opened or closed
    mark:   the kind of mark that is opened
    before: the run that it begins in; after: the one that it ends in
    """

    kind: str
    start: int
    stop: int
    words: str = ""
    mark: str = ""
    before: Run | None = None
    after: Run | None = None


class Inline:
    """Collects the parts of paragraphs."""

    def __init__(self, source: str, drops: bool = False):
        self.paragraphs = list[Paragraph]()  # that are complete
        self.run: Run | None = None  # that the source is in
        self._source = source
        self._drops = drops
        self._events = list[_Event]()
        self._break: int | None = None  # the event of a line break that no words follow yet

    def add(self, kind: str, span: Span, words: str = "", mark: str = "") -> None:
        self.add_from(self.run, kind, span, words, mark)

    def add_from(
        self, before: Run | None, kind: str, span: Span, words: str = "", mark: str = ""
    ) -> None:
        """Add what began in another run."""
        if self._break is not None and kind == "text" and words.strip():
            if runs_on(self._words_before(self._break), words):
                self._break = None
            self._end_line()
        if kind == "text" and before:
            before.has_text = True
        self._events.append(_Event(kind, *span, words, mark, before, self.run))

    def _words_before(self, number: int) -> str:
        """The end of the text before an event."""
        for i in range(number - 1, -1, -1):
            if self._events[i].kind == "text" and self._events[i].words.strip():
                return self._events[i].words[-_SHORT:]
        return ""

    def add_lines(self, span: Span, words: str, breaks: Sequence[int]) -> None:
        """Add text, in which lines may begin at these places."""
        cuts = breaks[bisect_left(breaks, span[0]) : bisect_left(breaks, span[1])]
        for start, stop in pairwise([span[0], *cuts, span[1]]):
            if start != span[0] or cuts[:1] == (start,):
                self.add("line", (start, start))
            self.add("text", (start, stop), words[start - span[0] : stop - span[0]])

    def line_break(self, span: Span) -> None:
        """A break within a sentence is an anchor; all others end a paragraph."""
        self._end_line()
        self._break = len(self._events)
        self.add("break", span, " ")

    def finish(self) -> None:
        self._end_line()
        self._complete(self._events)
        self._events = []

    def _end_line(self) -> None:
        if self._break is not None:
            self._complete(self._events[: self._break])
            del self._events[: self._break + 1]
            self._break = None

    def _complete(self, events: Sequence[_Event]) -> None:
        if not self._drops:
            events = _trimmed(events)
        if sum(map(_is_mark, events)) > MAX_MARKS:
            events = [event for event in events if not _is_mark(event) or event.kind == "hole"]
        if any(event.kind == "text" and event.words.strip() for event in events):
            self.paragraphs.append(_Builder(self._source, events).paragraph(self._drops))


def _is_mark(event: _Event) -> bool:
    return event.kind in ("anchor", "break", "hole", "open", "close")


def _trimmed(events: Sequence[_Event]) -> Sequence[_Event]:
    """Without what stands before or behind the words: space, and what begins or ends in another paragraph."""
    opened = dict[str, list[int]]()
    loose = set[int]()
    for i, event in enumerate(events):
        if event.kind == "open":
            opened.setdefault(event.words, []).append(i)
        elif event.kind == "close" and opened.get(event.words):
            opened[event.words].pop()
        elif event.kind in ("close", "space") or (event.kind == "anchor" and not event.words):
            loose.add(i)
    loose.update(i for each in opened.values() for i in each)
    first, last = 0, len(events)
    while first < last and first in loose:
        first += 1
    while first < last and last - 1 in loose:
        last -= 1
    return events[first:last]


_Text = tuple[tuple[_Event, ...], int, _Event]  # what is open, where it begins, and itself


class _Builder:
    """Builds the text and the marks of a paragraph from its events."""

    def __init__(self, source: str, events: Sequence[_Event]):
        self.source = source
        self.events = events
        self.marks = list[Mark]()
        self.breaks = list[int]()
        self.opened = list[tuple[_Event, int, int]]()  # with the text's and marks' lengths then
        self.texts = list[_Text]()
        words = "".join(event.words for event in events)
        self.names = (name for name in map("{{{}}}".format, count(1)) if name not in words)
        self._parts = list[str]()  # of the text
        self._size = 0  # of the text
        self._last_word = 0  # where the text's last word ends

    def _write(self, text: str) -> None:
        self._parts.append(text)
        words = text.rstrip()
        if words:
            self._last_word = self._size + len(words)
        self._size += len(text)

    @property
    def _ends_in_space(self) -> bool:
        return self._parts[-1:] != [] and self._parts[-1].endswith(" ")

    def paragraph(self, drops: bool) -> Paragraph:
        has_space = False
        for event in self.events:
            if has_space and event.kind in ("text", "anchor", "break") and self._last_word:
                self._write("" if self._ends_in_space else " ")
            has_space = has_space and event.kind in ("open", "close", "left out", "hole")
            if event.kind == "space":
                has_space = not self._widen()
            else:
                self._add(event)
        start, stop = self.events[0].start, self.events[-1].stop
        for event, at, _ in self.opened:
            self._anchor(at, event, event, at)
        text = "".join(self._parts)
        plain = self._looks(text)
        marks = sorted(self.marks, key=lambda mark: (mark.source_span[0], -mark.source_span[1]))
        if len(marks) > MAX_MARKS:
            marks = [mark for mark in marks if mark.opens.raw is None]
        holes = [mark.source_span for mark in marks if mark.opens.raw is None]
        cuts = [start, *(cut for hole in holes for cut in hole), stop]
        return Paragraph(
            text,
            tuple(zip(cuts[::2], cuts[1::2], strict=True)),
            formatting=tuple(mark.span for mark in marks),
            breaks=tuple(self.breaks),
            raw=self.source[start:stop] if drops else "",
            words=tuple((event.start, event.stop) for _, _, event in self.texts),
            inline=tuple(marks),
            run=plain,
            ends=(self.events[0].before, self.events[-1].after),
            drops=drops,
        )

    def _add(self, event: _Event) -> None:
        at = self._size
        if event.kind == "text":
            begins_in_space = event.words[:1] == " " and not event.before
            is_wide = begins_in_space and self._widen()
            self._write(event.words[1:] if is_wide else event.words)
            self.texts.append((tuple(each[0] for each in self.opened), at, event))
        elif event.kind in ("anchor", "break", "hole"):
            words = next(self.names) if event.words == STAND_IN else event.words
            if words.strip() or not self._ends_in_space:
                self._write(words)
            self._anchor(at, event, event)
        elif event.kind == "line":
            self.breaks.append(at)
        elif event.kind == "open":
            self.opened.append((event, at, len(self.marks)))
        elif event.kind == "close":
            self._close(event)

    def _widen(self) -> bool:
        """Whether the space here is written with an anchor before it, behind which there would be two."""
        last = self.marks[-1] if self.marks else None
        if not last or last.kind != "anchor" or not last.opens.raw:
            return False
        if last.span != (self._size, self._size) or not (self._ends_in_space or not self._size):
            return False
        self.marks[-1] = replace(last, opens=last.opens._replace(raw=f"{last.opens.raw} "))
        return True

    def _piece(self, first: _Event, last: _Event) -> Piece:
        return Piece(self.source[first.start : last.stop], first.before, last.after)

    def _anchor(
        self, at: int, first: _Event, last: _Event, end: int | None = None, is_hole: bool = False
    ) -> None:
        """Add an anchor that is shown as the text from `at` on."""
        kind = "break" if first.kind == "break" else "anchor"
        if first is last and first.kind in ("open", "close"):
            kind = "loose"
        piece = self._piece(first, last)
        if is_hole or first.kind == "hole":
            piece = piece._replace(raw=None)
        span = at, self._size if end is None else end
        self.marks.append(Mark(span, (first.start, last.stop), piece, kind=kind))

    def _close(self, event: _Event) -> None:
        same = [each for each in self.opened if each[0].words == event.words]
        if same:
            self._close_opened(event, *same[-1])
        else:  # it began before, or is astray
            self._anchor(self._size, event, event)

    def _close_opened(self, event: _Event, opening: _Event, at: int, number: int) -> None:
        place = self.opened.index((opening, at, number))
        if self._last_word > at:
            del self.opened[place]
            span, source_span = (at, self._size), (opening.start, event.stop)
            opens, closes = self._piece(opening, opening), self._piece(event, event)
            self.marks.append(Mark(span, source_span, opens, closes, opening.mark))
            return
        inside = self.marks[number:]
        crosses = any(mark.source_span[0] < opening.start for mark in inside)
        if opening.mark == "range" or crosses:
            del self.opened[place]
            kept = Mark((at, at), (opening.start, opening.stop), self._piece(opening, opening))
            self.marks.append(kept)
            kept = Mark((self._size,) * 2, (event.start, event.stop), self._piece(event, event))
            self.marks.append(kept)
        else:  # all of it is one anchor
            del self.marks[number:]
            del self.opened[place:]
            is_hole = any(mark.opens.raw is None for mark in inside)
            self._anchor(self._size, opening, event, is_hole=is_hole)

    def _looks(self, text: str) -> Run | None:
        """Add the marks of formatting, in the runs of Word. The run of plain text."""
        runs = dict[str, Run]()  # by look
        sizes = Counter[str]()
        links = dict[int, Run]()  # the run of a link's first words, by where it begins
        for each in self.texts:
            look, _, link = _look_of(each)
            event = each[2]
            if look is None or not event.before:
                continue
            runs.setdefault(look, event.before)
            if link:
                links.setdefault(link.start, event.before)
            else:
                sizes[look] += len(event.words)
        plain = max(sizes, key=lambda look: sizes[look], default="")
        for (look, _, link), group in groupby(self.texts, _look_of):
            texts = [*group]
            if look is None or look == (links[link.start].look if link else plain):
                continue
            span = texts[0][1], texts[-1][1] + len(texts[-1][2].words)
            source_span = texts[0][2].start, texts[-1][2].stop
            if text[slice(*span)].strip():
                self.marks.append(Mark(span, source_span, kind="run", run=runs[look]))
        for i, mark in enumerate(self.marks):
            if mark.kind == "link":
                self.marks[i] = replace(mark, run=links.get(mark.source_span[0]))
        return runs.get(plain) or next(iter(runs.values()), None)


def _look_of(text: _Text) -> tuple[str | None, tuple[_Event, ...], _Event | None]:
    """The formatting of a text, its elements, and its link."""
    opened, _, event = text
    elements = tuple(each for each in opened if each.mark != "range")
    link = next((each for each in reversed(opened) if each.mark == "link"), None)
    return event.before.look if event.before else None, elements, link
