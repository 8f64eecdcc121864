"""Documents in encodings other than UTF-8."""

import codecs
import re
from contextlib import suppress
from dataclasses import replace

from apps.documents.document import AllTargets, Change, Document, Parse, Texts, Written
from speculative.common.errors import InputError

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# Not UTF-16, in which this could not be read
_DECLARED = re.compile(rb"""(?i)((?:encoding|charset)\s*=\s*["']?)(?!utf-16)([\w.:-]+)""")
_HEAD = 8000  # bytes in which an encoding is declared


def decoded(
    parse: Parse, data: bytes, encoding: str | None = None, lacking: str | None = None
) -> Document:
    """The document that `parse` makes of the data in UTF-8, written in its own encoding again if possible. encoding: after a
    byte-order mark; None: as declared, UTF-8, or a guess, which is noted. lacking: in formats that declare theirs, Python's
    name of what is done with a character that it lacks. InputError if it is wrong."""
    if data.startswith(b"PK"):  # an archive
        return parse(data)
    name, is_guess = _encoding(data, encoding, lacking is not None)
    try:
        source = data.decode(name)
    except (UnicodeError, LookupError):
        raise InputError(f"not {name} text; say its encoding with --encoding") from None
    document = parse(source.encode())
    notes = [f"read as {name}; --encoding changes that"] if is_guess else []

    def write(texts: Texts, targets: AllTargets = None, change: Change = None) -> Written:
        new = document.write(texts, targets, change)
        data = new.data
        try:
            return replace(new, data=data.decode().encode(name, lacking or "strict"))
        except UnicodeEncodeError as error:
            note = f"written as UTF-8: {name} has no {error.object[error.start]!r}"
        if lacking:
            data = _DECLARED.sub(rb"\1UTF-8", data, 1)
        return replace(new, data=data, notes=[*new.notes, note])

    return replace(document, write=write, notes=[*notes, *document.notes])


def _encoding(data: bytes, given: str | None, is_declared: bool) -> tuple[str, bool]:
    """The encoding that the data are in, and whether it is a guess."""
    told = _MARKS.get(data[:2], given)
    if told:
        return told, False
    declared = _DECLARED.findall(data[:_HEAD])[:1] if is_declared else []
    for name in (*(each.decode() for _, each in declared), "utf-8"):
        with suppress(UnicodeError, LookupError):
            if "\0" not in data.decode(name):  # as in UTF-16
                return name, False
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    return (best.encoding, True) if best else ("utf-8", False)
