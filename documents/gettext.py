"""gettext's .po: messages without a translation, or with a fuzzy one, which then is no longer fuzzy."""

import re
from collections.abc import Sequence

from documents.document import Document, Segment, decoded, line_number, spliced
from errors import InputError

_CHARSET = re.compile(rb"charset=([-\w]+)")
_TEXT = re.compile(
    r'^msgstr(?:\[(\d+)\])?[ \t]*("[^\r\n]*"(?:[ \t]*\r?\n[ \t]*"[^\r\n]*")*)', re.MULTILINE
)
_FLAG = re.compile(r"^#,[ \t]*fuzzy[ \t]*\r?\n|(?<=#,)[ \t]*fuzzy,|,[ \t]*fuzzy\b", re.MULTILINE)
_PREVIOUS = re.compile(r"^#\|.*\n", re.MULTILINE)


def read(data: bytes) -> Document:
    try:
        import polib
    except ImportError:
        raise InputError(".po needs: pip install -r requirements-documents.txt") from None
    charset = _CHARSET.search(data)
    name = charset[1].decode() if charset else "utf-8"
    source, encoding = decoded(data, None if name in ("CHARSET", "UTF-8") else name)
    try:
        entries = polib.pofile(source.lstrip("\ufeff").replace("\r\n", "\n"))
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InputError(
            f"not a .po file: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from None
    starts = [0, *(found.end() for found in re.finditer("\n", source)), len(source)]
    begins = sorted([starts[entry.linenum - 1] for entry in entries] + [len(source)])
    segments, notes = (
        list[Segment](),
        list[tuple[int, int]](),
    )  # notes: where each one's comments are
    for entry in entries:
        if entry.obsolete or (entry.translated() and not entry.fuzzy) or not entry.msgid:
            continue
        begin = starts[entry.linenum - 1]
        end = begins[begins.index(begin) + 1]
        texts = list(_TEXT.finditer(source, begin, end))
        for found in texts:
            text = entry.msgid_plural if int(found[1] or 0) else entry.msgid
            place = f"line {line_number(source, found.start())}"
            segments.append(Segment(text, place, (found.span(2),)))
            notes.append((begin, texts[0].start()))

    def write(texts: Sequence[str | None]) -> bytes:
        kept = {note for note, text in zip(notes, texts, strict=True) if text is None}
        edits = dict[tuple[int, int], str]()
        for segment, text, note in zip(segments, texts, notes, strict=True):
            if note in kept:
                continue
            (span,) = segment.spans
            lines = (text or "").splitlines(keepends=True)
            quoted = "".join(f'\n"{polib.escape(line)}"' for line in lines)
            edits[span] = '""' + quoted if len(lines) > 1 else quoted.strip("\n")
            for pattern in (_FLAG, _PREVIOUS):
                edits |= {found.span(): "" for found in pattern.finditer(source, *note)}
        return spliced(source, edits.items()).encode(encoding, "strict")

    return Document(segments, write, strict=True)
