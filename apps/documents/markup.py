"""Documents of paragraphs with marks: each is checked when it is written."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from apps.documents.paragraph import Paragraph, Writer, lost_marks, placed, plain_spans
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
    # Of markup, if spans are lines; these texts are markup themselves
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
    """A document of paragraphs with marks. Each is checked when it is written: what would lose some of its markup is written
    the plain way, and named. fields: `in_text`'s"""
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
        is_quoted = source[paragraph.spans[0][0] - 1] in "\"'"
        value = escape(text).replace("\n", "&#10;")
        return Fitted([value if is_quoted else f'"{value}"'])
    kept_words = any_of(stand_ins(paragraph.text))
    if markup.lines:
        markup = replace(markup, escape=partial(_escaped, markup.escape, kept_words))
    if targets is None:
        targets = targets_of([(paragraph.text, text)], paragraph.formatting, {})
    kept_spans = [match.span() for match in kept_words.finditer(text)]
    shown = zip(map(paragraph.shown, paragraph.marks), targets, strict=True)
    targets = [_around(words, target, kept_spans, text) for words, target in shown]
    if markup.below and not paragraph.is_single:
        return _with_source(markup, source, paragraph, text, targets, change)
    raw = paragraph.raw or "".join(source[start:stop] for start, stop in paragraph.spans)
    kept = {} if markup.lines else _kept(source, paragraph)
    before = outline_of(with_kept(markup.events, raw, kept))
    spans = placed(paragraph, text, targets)
    lost = [*lost_marks(paragraph, spans, targets)]
    words = " ".join([*paragraph.without_stand_ins(text, " ").split(), ""])
    if HIDDEN.search(raw):  # which may hold the end of what the text begins
        markup = replace(markup, is_inside=True)
    plain = words, plain_spans(paragraph, words), markup.escape
    ways = [(text, spans, markup.writes), plain]
    problems = list[str]()
    for new, spans, written in ways:
        writer = Writer(paragraph, new, spans, written)
        parts = writer.parts()
        after = outline_of(with_kept(markup.events, "".join(parts), kept))
        shown = outline_of(markup.events(written(writer.words()))).shown
        fault = fault_of(before, after, shown, writer.own_words())
        if not fault:
            problems += [f"check the {kind} of {of!r}" for kind, of in lost if kind != "look"]
            if markup.lines:
                parts = markup.lines(paragraph, parts[0].strip())
            return Fitted(parts, [of for kind, of in lost if kind == "look"], problems)
        problems = [f"its formatting is not kept: {fault}"]
        lost = []
    parts = [source[start:stop] for start, stop in paragraph.spans]
    return Fitted(parts, (), [f"not translated: {fault}"])


def _escaped(escape: Callable[[str], str], kept: re.Pattern[str], text: str) -> str:
    """The text as markup, with the stand-ins as they are."""
    pieces = re.split(f"({kept.pattern})", text)
    pieces[::2] = map(escape, pieces[::2])
    return "".join(pieces)


def _around(words: str, target: Target, kept_spans: Sequence[Span], text: str) -> Target:
    """The target in a text, whose edges are not within stand-ins unless the mark's own words are there."""
    (begin, end), sure = target
    if sure and words and text[begin:end] == words:  # such as a role's code
        return target
    for start, stop in kept_spans:
        if start < end < stop:
            end = stop
        if start < begin < stop:
            begin = start
    return (begin, end), sure


def _with_source(
    markup: Markup,
    source: str,
    paragraph: Paragraph,
    text: str,
    targets: Sequence[Target],
    change: Change,
) -> Fitted | None:
    """The source, and behind it the translation with what may be there twice: formatting, and what the text shows."""
    repeated = [
        (replace(mark, opens=_repeatable(mark.opens)), target)
        for mark, target in zip(paragraph.marks, targets, strict=True)
        if mark.may_be_plain or (mark.kind == "anchor" and paragraph.shown(mark))
    ]
    marks = tuple(mark for mark, _ in repeated)
    copy = replace(paragraph, marks=marks, ends=("", ""), edges=("", ""))
    raw = Writer(copy, paragraph.text, [mark.span for mark in marks], markup.writes).parts()[0]
    alone = replace(markup, below=None)
    kept = [target for _, target in repeated]
    fitted = _fit(alone, source, replace(copy, raw=raw), text, kept, change)
    parts = [source[start:stop] for start, stop in paragraph.spans]
    if not fitted or fitted.parts == parts or not markup.below:
        return fitted
    if markup.lines:
        parts[0] = paragraph.ends[0] + parts[0]
    head = paragraph.ends[1]
    tail = paragraph.run.tail if paragraph.run and head else ""
    new = " ".join(filter(None, fitted.parts))
    parts[-1] += f"{tail}{markup.below(new, change, paragraph)}{head}"
    return fitted._replace(parts=parts)


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
