"""gettext's .po and .pot: messages without a translation, or with a fuzzy one. What is written is fuzzy until a translator
has seen it."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from gettext import c2py

import regex

from apps.documents.document import (
    AllTargets,
    Change,
    Document,
    Fitted,
    Passage,
    Span,
    Texts,
    Written,
    in_text,
    newline_of,
)
from apps.documents.prose import changed
from speculative.common.errors import InputError

_LINE = r'(?>"[^\r\n]*")'  # to the last quote, of which it gives none back
_STRING = rf"[ \t]*({_LINE}(?:\s*+{_LINE})*+)"
_TEXT = re.compile(rf"msgstr(?:\[\d+\])?{_STRING}")
_ENTRY = re.compile(
    rf"(?<![^\r\n\ufeff])(?:msgctxt{_STRING}\s+)?msgid(?P<id>{_STRING})\s+"
    rf"(?:msgid_plural(?P<plural>{_STRING})\s+)?(?P<texts>(?:{_TEXT.pattern}\s*+)+)"
)
_FLAGS = re.compile(r"^#,([^\r\n]*)[\r\n]+", re.MULTILINE)
_PREVIOUS = re.compile(r"^#\|[^\r\n]*[\r\n]+", re.MULTILINE)  # the message that a fuzzy text is of
_HEAD = re.compile(
    r'^"Language:(?P<language>[ \t]*)\\n"|charset=(?P<charset>CHARSET|(?:US-)?ASCII)'
    r'|^"Plural-Forms:(?P<forms>[ \t]*(?:nplurals=INTEGER; plural=EXPRESSION;)?)\\n"',
    re.MULTILINE,
)
_FORMS = re.compile(r"nplurals\s*=\s*(\d)\s*;\s*plural\s*=\s*([^;]+)")
# An accelerator within a word, which goes to its beginning: E_xit, Sa&ve
_ACCELERATOR = regex.compile(r"(?<![\w&])(\p{Lu}\p{Ll}*)([_&])(?=\p{Ll}+(?![\w&]))")

Edits = dict[Span, str]
Forms = tuple[int, Callable[[int], int]]


@dataclass(frozen=True, slots=True)
class _Message(Passage):
    """A message's text. before: what stands before it in its span; others: what is written into its other spans"""

    before: str = ""
    others: tuple[str, ...] = ()


def parse(data: bytes, fuzzy: bool = True, change: Change = None) -> Document:
    """fuzzy: mark what is written. change: its target completes the head and plural forms."""
    find = partial(_messages, fuzzy=fuzzy, change=change)
    document = in_text(data, find, _fit)

    def write(texts: Texts, targets: AllTargets = None, change: Change = None) -> Written:
        if not change:
            return document.write(texts)
        # Its language may have other forms of plurals, of the same texts.
        new = parse(data, fuzzy, change)
        known = dict(zip((each.text for each in document.passages), texts, strict=True))
        return new.write([known.get(each.text) for each in new.passages])

    return replace(document, write=write)


def _messages(source: str, fuzzy: bool, change: Change) -> Iterator[Passage]:
    newline = newline_of(source)
    entries = [*_ENTRY.finditer(source)]
    if not entries:
        raise InputError("not a .po file: it has no messages")
    head, forms = _head(source, entries[0], change)
    after = 0
    for entry in entries:
        # Behind a message that is obsolete
        begin = max(after, source.rfind("#~", after, entry.start()))
        after = entry.end()
        strings = [*_TEXT.finditer(source, *entry.span("texts"))]
        flags, edits = _comments(source, begin, entry.start(), fuzzy)
        done = {i for i, each in enumerate(strings) if each[1].strip('" \t\r\n')}
        one, many = (_unquoted(entry[name] or "") for name in ("id", "plural"))
        if not one or (len(done) == len(strings) and "fuzzy" not in flags):
            continue
        edits |= head
        number, form_of = forms or (len(strings), c2py("n != 1"))
        for i in range(number, len(strings)):
            if i not in done:
                edits[strings[i - 1].end(), strings[i].end()] = ""
        texts = _plurals(one, many, number, form_of) if many else [one]
        others = (*edits.values(),)
        for i, text in enumerate(texts):
            if i in done and "fuzzy" not in flags:
                continue
            span = strings[-1].end(), strings[-1].end()
            before = f"{newline}msgstr[{i}] "  # for a form that is not there
            if i < len(strings):
                span = strings[i].span(1)
                before = ""
            text = _ACCELERATOR.sub(r"\2\1", text)
            yield _Message(text, (span, *edits), before=before, others=others)


def _fit(source: str, passage: Passage, text: str, *_: object) -> Fitted:
    assert isinstance(passage, _Message)
    return Fitted([passage.before + _quoted(text, newline_of(source)), *passage.others])


def _head(source: str, entry: re.Match, change: Change) -> tuple[Edits, Forms | None]:
    """The edits that complete the head, and the plural forms: their number, and which one a count takes."""
    given = {"charset": "UTF-8"}
    if change:
        from babel import UnknownLocaleError
        from babel.messages.plurals import get_plural

        tag = change.target.replace("-", "_")
        given["language"] = f" {tag}"
        with suppress(UnknownLocaleError, ValueError):
            given["forms"] = " nplurals={}; plural={};".format(*get_plural(tag))
    edits = dict[Span, str]()
    forms = _FORMS.search(source)
    for match in () if _unquoted(entry["id"]) else _HEAD.finditer(source, *entry.span()):
        name = match.lastgroup or ""
        if name in given:
            edits[match.span(name)] = given[name]
        if name == "forms":
            forms = _FORMS.search(given.get(name, ""))
    with suppress(ValueError):
        if forms:
            return edits, (int(forms[1]), c2py(forms[2]))
    return edits, None


def _comments(source: str, begin: int, end: int, fuzzy: bool) -> tuple[list[str], Edits]:
    """A message's flags, and the edits that make it fuzzy or not, without the message that its old text was of."""
    edits = {match.span(): "" for match in _PREVIOUS.finditer(source, begin, end)}
    lines = [*_FLAGS.finditer(source, begin, end)]
    flags = [flag.strip() for line in lines for flag in line[1].split(",")]
    if fuzzy != ("fuzzy" in flags):
        edits |= {line.span(): "" for line in lines}
        new = ["fuzzy", *flags] if fuzzy else [flag for flag in flags if flag != "fuzzy"]
        start = lines[0].start() if lines else end
        edits[start, start] = f"#, {', '.join(new)}{newline_of(source)}" if new else ""
    return flags, edits


def _plurals(one: str, many: str, number: int, form_of: Callable[[int], int]) -> Iterator[str]:
    """The source of each form: the singular only for the form of 1, if it serves all its other counts, too."""
    lost = changed(one, many)
    for i in range(number):
        counts = [n for n in range(200) if form_of(n) == i]
        is_singular = 1 in counts and number > 1 and (counts == [1] or not lost)
        yield one if is_singular else many


def _unquoted(strings: str) -> str:
    from babel.messages.pofile import unescape

    return "".join(map(unescape, re.findall(r'"[^\r\n]*"', strings)))


def _quoted(text: str, newline: str) -> str:
    from babel.messages.pofile import escape

    lines = [*map(escape, re.findall(r"[^\n]*\n|[^\n]+", text))]
    return newline.join(['""', *lines] if len(lines) > 1 else lines)
