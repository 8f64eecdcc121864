"""Documents of paragraphs with marks: each is checked when it is written."""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape

from apps.documents.check import Events, fault_of, outline_of, with_kept
from apps.documents.document import (
    HIDDEN,
    Change,
    Document,
    Fitted,
    Passage,
    Relabel,
    Span,
    Target,
    Targets,
    in_text,
)
from apps.documents.inline import Event
from apps.documents.marks import targets_of
from apps.documents.paragraph import Mark, Paragraph, Writer, lost_marks, placed, plain_spans
from apps.documents.prose import any_of, stand_ins

_ONCE = re.compile(  # names in tags and of controls, notes and bookmarks
    r"""\s(?:xml:)?(?:id|name)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s<>]+)(?=[^<>]*>)"""
    r"|<[\w.-]+:(?:id|(?:footnote|endnote|annotation|comment|bookmark)\w+)\b[^<>]*>"
)
_EMPTY = re.compile(r"<(\w+)></\1>")  # shows nothing, as one does whose words are elsewhere


@dataclass(frozen=True)
class Markup:
    """A format of paragraphs with marks."""

    escape: Callable[[str], str]  # writes a text as markup
    events: Events  # the parts of some markup, for the check
    # Of markup, if spans are lines, or none; these texts are markup themselves
    lines: Callable[[Paragraph, str], list[str]] | None = None
    is_inside: bool = False  # other markup, which its words must not end
    # Makes a translation stand behind its source
    below: Callable[[str, Change, Paragraph], str] | None = None
    relabel: Relabel | None = None  # makes what is written name its language

    @property
    def writes(self) -> Callable[[str], str]:
        """Writes a text, which may be markup itself."""
        return str if self.lines and not self.is_inside else self.escape


def in_markup(
    data: bytes, find: Callable[[str], Iterable[Paragraph]], markup: Markup, **fields
) -> Document:
    """A document of paragraphs with marks: one that would lose some is written the plain way, and named. fields: `in_text`'s"""
    inside = replace(markup, is_inside=True)
    if not markup.below:
        fields["relabel"] = markup.relabel
    return in_text(data, find, partial(_fit, markup), fit_hidden=partial(_fit, inside), **fields)


def _fit(
    markup: Markup, source: str, paragraph: Passage, text: str, targets: Targets, change: Change
) -> Fitted | None:
    if text == paragraph.text:
        return None
    if not isinstance(paragraph, Paragraph):  # an attribute
        quote = "" if source[paragraph.spans[0][0] - 1] in "\"'" else '"'
        value = escape(text).replace("\n", "&#10;")
        return Fitted([f"{quote}{value}{quote}"])
    kept_words = any_of(stand_ins(paragraph.text))
    if markup.lines:
        markup = replace(markup, escape=partial(_escaped, markup.escape, kept_words))
    if targets is None:
        targets = targets_of([(paragraph.text, text)], paragraph.formatting, {})
    places = [*_places(kept_words, paragraph.text, text)]
    targets = [_around(places, *each) for each in zip(paragraph.marks, targets, strict=True)]
    if not markup.below or paragraph.is_single:
        return _checked(markup, source, paragraph, text, targets)
    copy, kept = _copy(markup, paragraph, targets)
    fitted = _checked(markup, source, copy, text, kept)
    parts = [source[start:stop] for start, stop in paragraph.spans]
    if fitted.parts == parts:
        return fitted
    if markup.lines:
        parts[0] = paragraph.ends[0] + parts[0]
    head = paragraph.ends[1]
    tail = paragraph.run.tail if paragraph.run and head else ""
    new = " ".join(filter(None, fitted.parts))
    parts[-1] += f"{tail}{markup.below(new, change, paragraph)}{head}"
    return fitted._replace(parts=parts)


def _checked(
    markup: Markup, source: str, paragraph: Paragraph, text: str, targets: Sequence[Target]
) -> Fitted:
    """The text with its marks at these targets, or the plain way; with neither, the source."""
    raw = paragraph.raw or "".join(source[start:stop] for start, stop in paragraph.spans)
    kept = {} if markup.lines else _kept(source, paragraph)
    before = outline_of(with_kept(markup.events, raw, kept))
    spans = placed(paragraph, text, targets)
    lost = [*lost_marks(paragraph, spans, targets)]
    looks = [of for kind, of in lost if kind == "look"]
    problems = [f"check the {kind} of {of!r}" for kind, of in lost if kind != "look"]
    words = " ".join([*text.split(), ""])
    if HIDDEN.search(raw):  # which may hold the end of what the text begins
        markup = replace(markup, is_inside=True)
    first = text, spans, markup.writes, len(looks)
    plain = words, plain_spans(paragraph, words), markup.escape, len(paragraph.marks)
    for new, places, written, dropped in (first, plain):
        writer = Writer(paragraph, new, places, written)
        parts = writer.parts()
        after = outline_of(with_kept(markup.events, "".join(parts), kept))
        shown = outline_of(markup.events(written(writer.words()))).shown
        fault = fault_of(before, after, shown, writer.own_words(), dropped)
        if markup.lines and not fault:
            parts = markup.lines(paragraph, parts[0].strip())
            fault = None if parts else "it would begin a block of its own"
        if not fault:
            return Fitted(parts, looks, problems)
        looks = []
        problems = [f"its formatting is not kept: {fault}"]
    parts = [source[start:stop] for start, stop in paragraph.spans]
    return Fitted(parts, (), [f"not translated: {fault}"])


def _escaped(escape: Callable[[str], str], kept: re.Pattern[str], text: str) -> str:
    """The text as markup, with the stand-ins as they are."""
    pieces = re.split(f"({kept.pattern})", text)
    pieces[::2] = map(escape, pieces[::2])
    return "".join(pieces)


def _places(kept: re.Pattern[str], source: str, text: str) -> Iterator[tuple[Span, Span]]:
    """Where the stand-ins of a source are, in it and in a text; equal ones in the same order."""
    found = defaultdict[str, deque[Span]](deque)
    for match in kept.finditer(source):
        found[match[0]].append(match.span())
    for match in kept.finditer(text):
        if found[match[0]]:
            yield found[match[0]].popleft(), match.span()


def _around(places: Sequence[tuple[Span, Span]], mark: Mark, target: Target) -> Target:
    """The target of a mark, whose edges are within stand-ins only as far as the mark's own are: around those that the mark has,
    beside the others. places: of the stand-ins"""
    (begin, end), sure = target
    first, last = mark.span
    for (start, stop), (here, there) in places:
        if start <= first < last <= stop:
            return (here + first - start, here + last - start), sure
        has = first <= start and stop <= last
        if start < first < stop:
            begin = here + first - start
        elif here < begin < there or (here == begin < end and not has):
            begin = here if has else there
        if start < last < stop:
            end = here + last - start
        elif here < end < there or (here < end == there and not has):
            end = there if has else here
    return (begin, max(begin, end)), sure


def _copy(
    markup: Markup, paragraph: Paragraph, targets: Sequence[Target]
) -> tuple[Paragraph, list[Target]]:
    """What of a paragraph may be there twice, and the targets of its marks: formatting, and what the text shows."""
    repeated = [
        (replace(mark, opens=_repeatable(mark.opens)), target)
        for mark, target in zip(paragraph.marks, targets, strict=True)
        if mark.may_be_plain or (mark.kind == "anchor" and paragraph.shown(mark))
    ]
    marks = tuple(mark for mark, _ in repeated)
    copy = replace(paragraph, marks=marks, ends=("", ""), edges=("", ""))
    raw = Writer(copy, paragraph.text, [mark.span for mark in marks], markup.writes).parts()[0]
    return replace(copy, raw=raw), [target for _, target in repeated]


def _repeatable(raw: str) -> str:
    is_code = not raw.startswith("<")  # of Markdown
    return raw if is_code else _ONCE.sub("", raw)


def _kept(source: str, paragraph: Paragraph) -> Mapping[str, Event]:
    """The markup that stays as it is, as a part for the check."""
    kept = dict[str, Event]()
    for mark in paragraph.marks:
        shown = paragraph.text[slice(*mark.span)]
        kind = "anchor"
        if mark.kind == "break" and shown:
            kind = "text"
        raw = source[slice(*mark.source_span)].strip()
        if mark.kind in ("anchor", "break") and not _EMPTY.fullmatch(raw):
            kept[raw] = Event(kind, 0, 0, shown, mark=mark.kind.removeprefix("anchor"))
            if shown:
                kept[_repeatable(raw)] = kept[raw]
    return kept
