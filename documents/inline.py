"""What a paragraph of markup is made of, collected from its begin to its end."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, groupby, pairwise
from typing import NamedTuple

from documents.document import Span
from documents.paragraph import NOTHING, Mark, Paragraph, Piece, Run
from documents.sentences import runs_on

STAND_IN = "{}"  # shows a field or the like in the text, where it is numbered
_OTHER_PARAGRAPH = re.compile(r"<w:p\b")


class _Event(NamedTuple):
    """A part of the source.

    kind:   "text"; "space", which counts between words only; "anchor"; "open" and "close", of something around words; "line",
            where a line of the source begins; or "left out", which is not written anew
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
            lines = "".join(e.words for e in self._events[: self._break] if e.kind == "text")
            if runs_on(lines, words):
                self._break = None
            self._end_line()
        if kind == "text" and before:
            before.has_text = True
        self._events.append(_Event(kind, *span, words, mark, before, self.run))

    def add_lines(self, span: Span, words: str, breaks: Sequence[int]) -> None:
        """Add text, in which lines may begin at these places."""
        cuts = [cut for cut in breaks if span[0] <= cut < span[1]]
        for start, stop in pairwise([span[0], *cuts, span[1]]):
            if start in cuts:
                self.add("line", (start, start))
            self.add("text", (start, stop), words[start - span[0] : stop - span[0]])

    def line_break(self, span: Span) -> None:
        """A break within a sentence is an anchor; all others end a paragraph."""
        self._end_line()
        self._break = len(self._events)
        self.add("anchor", span, " ")

    def finish(self) -> None:
        self._end_line()
        self._complete(self._events)
        self._events = []

    def _end_line(self) -> None:
        if self._break is not None:
            self._complete(self._events[: self._break])
            del self._events[: self._break + 1]
            self._break = None

    def _complete(self, events: list[_Event]) -> None:
        while events and events[-1].kind == "space":
            events = events[:-1]
        while events and events[0].kind == "space":
            events = events[1:]
        if any(event.kind == "text" and event.words.strip() for event in events):
            self.paragraphs.append(_Reading(self._source, events).paragraph(self._drops))


_Text = tuple[tuple[_Event, ...], int, _Event]  # what is open, where it begins, and itself


class _Reading:
    """The text and the marks of a paragraph's events."""

    def __init__(self, source: str, events: Sequence[_Event]):
        self.source = source
        self.events = events
        self.text = ""
        self.marks = list[Mark]()
        self.breaks = list[int]()
        self.opened = list[tuple[_Event, int, int]]()  # with the text's and marks' lengths then
        words = "".join(event.words for event in events)
        self.texts = list[_Text]()
        self.names = (name for name in map("{{{}}}".format, count(1)) if name not in words)

    def paragraph(self, drops: bool) -> Paragraph:
        has_space = False
        for event in self.events:
            if has_space and event.kind in ("text", "anchor") and self.text.strip():
                self.text += " " * (not self.text.endswith(" "))
            has_space &= event.kind in ("open", "close", "left out")
            at = len(self.text)
            if event.kind == "space":
                has_space = not self._widen()
            elif event.kind == "text":
                starts = event.words[:1] == " " and not event.before and self._widen()
                self.text += event.words[starts:]
                self.texts.append((tuple(each[0] for each in self.opened), at, event))
            elif event.kind == "anchor":
                words = next(self.names) if event.words == STAND_IN else event.words
                self.text += words if words.strip() or not self.text.endswith(" ") else ""
                self._anchor(at, event, event)
            elif event.kind == "line":
                self.breaks.append(at)
            elif event.kind == "open":
                self.opened.append((event, at, len(self.marks)))
            elif event.kind == "close":
                self._close(event)
        start, stop = self.events[0].start, self.events[-1].stop
        for event, at, _ in self.opened:
            span, source = (at, len(self.text)), (event.start, stop)
            self.marks.append(Mark(span, source, self._piece(event, event), kind=event.mark))
        plain = self._looks()
        marks = sorted(self.marks, key=lambda mark: (mark.source[0], -mark.source[1]))
        holes = [mark.source for mark in marks if mark.opens.raw is None]
        cuts = [start, *(cut for hole in holes for cut in hole), stop]
        return Paragraph(
            self.text,
            tuple(zip(cuts[::2], cuts[1::2], strict=True)),
            marked=tuple(mark.span for mark in marks),
            breaks=tuple(self.breaks),
            inline=tuple(marks),
            run=plain,
            ends=(self.events[0].before, self.events[-1].after),
            drops=drops,
        )

    def _widen(self) -> bool:
        """Whether the space here is written with an anchor before it, behind which there would be two."""
        last = self.marks[-1] if self.marks else None
        end = len(self.text)
        if not last or last.kind != "anchor" or last.span != (end, end) or not last.opens.raw:
            return False
        if self.text[-1:].strip():
            return False
        self.marks[-1] = replace(last, opens=last.opens._replace(raw=f"{last.opens.raw} "))
        return True

    def _piece(self, first: _Event, last: _Event) -> Piece:
        raw = self.source[first.start : last.stop]
        return Piece(None if _OTHER_PARAGRAPH.search(raw) else raw, first.before, last.after)

    def _anchor(self, at: int, first: _Event, last: _Event) -> None:
        source = first.start, last.stop
        self.marks.append(Mark((at, len(self.text)), source, self._piece(first, last)))

    def _close(self, event: _Event) -> None:
        same = [each for each in self.opened if each[0].words == event.words]
        if same:
            opening, at, number = same[-1]
            opens, kind = self._piece(opening, opening), opening.mark
            within = [mark.source[0] for mark in self.marks[number:]]
            if self.text[at:].strip():
                self.opened.remove(same[-1])
            elif kind == "range" or any(
                start < opening.start for start in within
            ):  # it may cross others
                self.opened.remove(same[-1])
                self._anchor(at, opening, opening)
                self._anchor(len(self.text), event, event)
                return
            else:  # all of it is one anchor
                del self.marks[number:]
                del self.opened[self.opened.index(same[-1]) :]
                self._anchor(at, opening, event)
                return
        elif self.opened:  # it is astray
            self._anchor(len(self.text), event, event)
            return
        else:  # it began before
            opening, at, kind, opens = self.events[0], 0, "range", NOTHING
        span, source = (at, len(self.text)), (opening.start, event.stop)
        self.marks.append(Mark(span, source, opens, self._piece(event, event), kind))

    def _looks(self) -> Run | None:
        """Add the marks of formatting, in the runs of Word. The run of plain text."""
        runs = dict[str, Run]()  # by look
        sizes = Counter[str]()
        links = dict[int, Run]()  # the run of a link's first words, by where it begins
        for text in self.texts:
            look, _, link = _look_of(text)
            event = text[2]
            if look is None or not event.before:
                continue
            runs.setdefault(look, event.before)
            if link:
                links.setdefault(link.start, event.before)
            sizes[look] += 0 if link else len(event.words)
        plain = max(sizes, key=lambda look: sizes[look], default="")
        for (look, _, link), group in groupby(self.texts, _look_of):
            texts = [*group]
            if look is None or look == (links[link.start].look if link else plain):
                continue
            span = texts[0][1], texts[-1][1] + len(texts[-1][2].words)
            source = texts[0][2].start, texts[-1][2].stop
            if self.text[slice(*span)].strip():
                self.marks.append(Mark(span, source, kind="run", run=runs[look]))
        for i, mark in enumerate(self.marks):
            if mark.kind == "link":
                self.marks[i] = replace(mark, run=links.get(mark.source[0]))
        return runs.get(plain)


def _look_of(text: _Text) -> tuple[str | None, tuple[_Event, ...], _Event | None]:
    """How a text is formatted, in which elements, and in which link."""
    opened, _, event = text
    elements = tuple(each for each in opened if each.mark != "range")
    link = next((each for each in reversed(opened) if each.mark == "link"), None)
    return event.before.look if event.before else None, elements, link
