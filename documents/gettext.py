"""gettext's .po and .pot: messages without a translation, or with a fuzzy one. What is written is fuzzy until a translator
has seen it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from gettext import c2py
from itertools import islice, pairwise
from typing import Any

from common.errors import InputError
from documents.document import Document, Fitted, Passage, Span, in_text, newline_of
from documents.sentences import changed, keep_pattern
from text.cues import NEWLINE

_UTF8 = (b"CHARSET", b"UTF-8", b"UTF8", b"ASCII", b"US-ASCII")
_CHARSET = re.compile(rb"charset=([-\w]+)")
_TEXT = re.compile(
    r'^msgstr(?:\[(\d+)\])?[ \t]*("[^\r\n]*"(?:[ \t]*[\r\n]+[ \t]*"[^\r\n]*")*)', re.MULTILINE
)
_MESSAGE = re.compile(r"^msg(?:ctxt|id)", re.MULTILINE)
_FLAGS = re.compile(r"^#,[^\r\n]*[\r\n]+", re.MULTILINE)
_FUZZY = re.compile(
    r"^#,[ \t]*fuzzy[ \t]*[\r\n]+|(?<=^#,)[ \t]*fuzzy,|,[ \t]*fuzzy\b", re.MULTILINE
)
_PREVIOUS = re.compile(r"^#\|[^\r\n]*[\r\n]+", re.MULTILINE)  # the message that a fuzzy text is of
_HEAD = re.compile(
    r'^"Language:(?P<language>[ \t]*)\\n"|charset=(?P<charset>CHARSET|(?:US-)?ASCII)'
    r'|^"Plural-Forms:(?P<forms>[ \t]*(?:nplurals=INTEGER; plural=EXPRESSION;)?)\\n"',
    re.MULTILINE,
)
_HEAD_ENTRY = re.compile(r'^msgid[ \t]+""\s+msgstr[ \t]+".*(?:\s+".*)*', re.MULTILINE)
_FORMS = re.compile(r"nplurals\s*=\s*(\d{1,9})\s*;\s*plural\s*=\s*([^;]+)")
# Placeholders: printf's without its space flag, and others by a message's flags
_PRINTF = (
    r"%(?:\(\w+\)|<\w+>|\d+\$)?[-+#0]*[\d*]*(?:\.[\d*]+)?(?:hh?|ll?|[jqzt])?[diouxXeEfFgGaAcsrp]"
)
_PLACEHOLDERS = {
    "qt-format": r"%L?(?:\d\d?|n)",
    "kde-format": r"%\d\d?",
    "boost-format": rf"%\d+%|{_PRINTF}|%%",
    "objc-format": rf"%(?:\d+\$)?@|{_PRINTF}|%%",
    "python-brace-format": "",
}

_MAX_FORMS = 9  # of plurals

Edits = dict[Span, str]
Forms = tuple[int, Callable[[int], int]]


@dataclass(frozen=True, slots=True)
class _Message(Passage):
    """A message's text. before: what stands before it in its span; others: what is written into its other spans"""

    before: str = ""
    others: tuple[str, ...] = ()


def parse(data: bytes, fuzzy: bool = True, language: str | None = None) -> Document:
    """fuzzy: mark what is written. language: the translations'; it completes the head and plural forms."""
    charset = _CHARSET.search(data)
    if charset and charset[1].upper() not in _UTF8:
        raise InputError("not UTF-8; convert it with msgconv -t UTF-8")
    find = partial(_messages, fuzzy=fuzzy, language=language)
    return in_text(data, find, _fit, strict=True, for_language=partial(parse, data, fuzzy))


def _messages(source: str, fuzzy: bool, language: str | None) -> Iterator[Passage]:
    newline = newline_of(source)
    head, forms = _head(source, language)
    for entry, begin, end in _entries(source):
        strings = [*_TEXT.finditer(source, begin, end)]
        if entry.obsolete or (entry.translated() and not entry.fuzzy) or not entry.msgid:
            continue
        placeholders = _placeholders(entry.flags)
        edits = head | _flags(source, begin, strings[0].start(), fuzzy, newline)
        number, form_of = forms or (len(strings), c2py("n != 1"))
        for one, other in pairwise(strings[number - 1 :]):
            if not _is_translated(other):
                edits[one.end(), other.end()] = ""
        for i, text in _sources(entry, number, form_of, placeholders):
            before = ""
            if i < len(strings):
                span = strings[i].span(2)
                if _is_translated(strings[i]) and not entry.fuzzy:
                    continue
            else:
                span = strings[-1].end(), strings[-1].end()
                before = f"{newline}msgstr[{i}] "
            spans = span, *edits
            yield _Message(
                text, spans, placeholders=placeholders, before=before, others=(*edits.values(),)
            )


def _fit(source: str, passage: Passage, text: str, _: object) -> Fitted:
    assert isinstance(passage, _Message)
    return Fitted([passage.before + _quoted(text, newline_of(source)), *passage.others])


def _entries(source: str) -> Iterator[tuple[Any, int, int]]:
    """polib's entries, with where they begin and end."""
    import polib

    try:
        # Behind a line break it is no path, which polib would open.
        entries = polib.pofile("\n" + NEWLINE.sub("\n", source.lstrip("\ufeff")))
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"not a .po file: {error!r}") from None
    starts = [0, *(match.end() for match in NEWLINE.finditer(source)), len(source)]
    begins = [starts[max(entry.linenum - 2, 0)] for entry in entries]
    ends = dict(pairwise([*sorted(begins), len(source)]))
    for begin, entry in zip(begins, entries, strict=True):
        yield entry, begin, ends[begin]


def _head(source: str, language: str | None) -> tuple[Edits, Forms | None]:
    """The edits that complete the head, and the plural forms: their number, and which one a count takes."""
    given = dict[str, str]()
    if language:
        from babel import UnknownLocaleError
        from babel.messages.plurals import get_plural

        tag = language.replace("-", "_")
        given["language"] = f" {tag}"
        with suppress(UnknownLocaleError, ValueError):
            given["forms"] = " nplurals={}; plural={};".format(*get_plural(tag))
    given["charset"] = "UTF-8"
    edits = dict[Span, str]()
    forms = _FORMS.search(source)
    entry = _HEAD_ENTRY.search(source)
    for match in _HEAD.finditer(source, *entry.span()) if entry else ():
        name = match.lastgroup or ""
        if name in given:
            edits[match.span(name)] = given[name]
        if name == "forms":
            forms = _FORMS.search(given.get(name, ""))
    number = int(forms[1]) if forms else 0
    if number > _MAX_FORMS:
        raise InputError(f"nplurals is {number}: no language has so many forms")
    with suppress(ValueError):
        if forms:
            return edits, (number, c2py(forms[2]))
    return edits, None


def _flags(source: str, begin: int, end: int, fuzzy: bool, newline: str) -> Edits:
    """The edits that make a message fuzzy or not, without the message that its old text was of."""
    edits = {match.span(): "" for match in _PREVIOUS.finditer(source, begin, end)}
    lines = [*_FLAGS.finditer(source, begin, end)]
    marks = [mark for line in lines for mark in _FUZZY.finditer(source, *line.span())]
    if not fuzzy:
        edits |= {mark.span(): "" for mark in marks}
    elif lines and not marks:
        edits[lines[0].start() + 2, lines[0].start() + 2] = " fuzzy,"
    elif not marks:
        for message in islice(_MESSAGE.finditer(source, begin, end), 1):
            edits[message.start(), message.start()] = f"#, fuzzy{newline}"
    return edits


def _is_translated(string: re.Match) -> bool:
    return string[2].strip('" \t\r\n') != ""


def _sources(
    entry: Any, number: int, form_of: Callable[[int], int], placeholders: str
) -> Iterator[tuple[int, str]]:
    """The source of each string of an entry: the singular only for the form of 1, and only if it serves all
    other counts of the form, too."""
    if not entry.msgid_plural:
        yield 0, entry.msgid
        return
    lost = changed(entry.msgid, entry.msgid_plural, keep_pattern(placeholders))
    for i in range(number):
        counts = [n for n in range(200) if form_of(n) == i]
        is_singular = 1 in counts and number > 1 and (counts == [1] or not lost)
        yield i, entry.msgid if is_singular else entry.msgid_plural


def _placeholders(flags: Sequence[str]) -> str:
    """The pattern of a message's placeholders."""
    for flag in flags:
        if flag in _PLACEHOLDERS:
            return _PLACEHOLDERS[flag]
    formats = [flag for flag in flags if flag.endswith("-format")]
    if formats and all(flag.startswith("no-") for flag in formats):
        return ""
    return f"{_PRINTF}|%%" if formats else rf"{_PRINTF}(?!\w)|%%"


def _quoted(text: str, newline: str) -> str:
    import polib

    lines = [f'"{polib.escape(line)}"' for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    return newline.join(['""', *lines] if len(lines) > 1 else lines)
