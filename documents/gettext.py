"""gettext's .po: messages without a translation, or with a fuzzy one, which then is no longer fuzzy."""

import re
from collections.abc import Iterator
from itertools import pairwise

from documents.document import Document, Passage, in_text
from errors import InputError

_CHARSET = re.compile(rb"charset=([-\w]+)")
_TEXT = re.compile(
    r'^msgstr(?:\[(\d+)\])?[ \t]*("[^\r\n]*"(?:[ \t]*\r?\n[ \t]*"[^\r\n]*")*)', re.MULTILINE
)
# The flag, and comments with the message that the fuzzy translation is of
_FUZZY = re.compile(
    r"^#,[ \t]*fuzzy[ \t]*\r?\n|(?<=#,)[ \t]*fuzzy,|,[ \t]*fuzzy\b|^#\|.*\n", re.MULTILINE
)


def parse(data: bytes) -> Document:
    charset = _CHARSET.search(data)
    if charset and charset[1].upper() not in (b"CHARSET", b"UTF-8"):
        raise InputError("not UTF-8; convert it with msgconv -t UTF-8")
    return in_text(data, _passages, _quoted, strict=True)


def _passages(source: str) -> Iterator[Passage]:
    import polib

    try:
        entries = polib.pofile(source.lstrip("\ufeff").replace("\r\n", "\n"))
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"not a .po file: {error!r}") from None
    starts = [0, *(match.end() for match in re.finditer("\n", source)), len(source)]
    begins = [starts[max(entry.linenum - 1, 0)] for entry in entries]  # polib's first line is 0
    ends = dict(pairwise([*sorted(begins), len(source)]))
    for begin, entry in zip(begins, entries, strict=True):
        if entry.obsolete or (entry.translated() and not entry.fuzzy) or not entry.msgid:
            continue
        for i, match in enumerate(_TEXT.finditer(source, begin, ends[begin])):
            fuzzy = [] if i else _FUZZY.finditer(source, begin, match.start())
            text = entry.msgid_plural if int(match[1] or 0) else entry.msgid
            yield Passage(text, (match.span(2), *(each.span() for each in fuzzy)))


def _quoted(passage: Passage, text: str) -> list[str]:
    import polib

    lines = [f'"{polib.escape(line)}"' for line in text.splitlines(keepends=True)]
    return ["\n".join(['""', *lines] if len(lines) > 1 else lines), *[""] * len(passage.spans[1:])]
