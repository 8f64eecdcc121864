"""Documents in other encodings than UTF-8."""

import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from common.errors import InputError
from documents.document import AllTargets, Document, Texts, Written

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# Not UTF-16, in which this could not be read
_DECLARED = re.compile(rb"""(?i)(?:encoding|charset)\s*=\s*["']?(?!utf-16)([\w.:-]+)""")
_HEAD = 2000  # bytes in which an encoding is declared


def decoded(
    parse: Callable[[bytes], Document],
    data: bytes,
    encoding: str | None = None,
    is_markup: bool = False,
) -> Document:
    """The document that `parse` makes of the data in UTF-8, written in its own encoding again if possible. encoding: after
    a byte-order mark; None: as declared, if is_markup, UTF-8, or a guess, which is noted. InputError if it is wrong."""
    if data.startswith(b"PK"):  # an archive
        return parse(data)
    name, is_guess = _encoding(data, encoding, is_markup)
    try:
        source = data.decode(name)
    except (UnicodeError, LookupError):
        raise InputError(f"not {name} text; say its encoding with --encoding") from None
    document = parse(source.encode())
    notes = [f"read as {name}; --encoding changes that"] if is_guess else []

    def write(texts: Texts, targets: AllTargets = None) -> Written:
        new = document.write(texts, targets)
        try:
            errors = "xmlcharrefreplace" if is_markup else "strict"
            return replace(new, data=new.data.decode().encode(name, errors))
        except UnicodeEncodeError as error:
            lacking = error.object[error.start]
            note = f"written as UTF-8: {name} has no {lacking!r}"
            return replace(new, notes=[*new.notes, note])

    return replace(document, write=write, notes=[*notes, *document.notes])


def _encoding(data: bytes, given: str | None, is_markup: bool) -> tuple[str, bool]:
    """The encoding that the data are in, and whether it is a guess."""
    told = _MARKS.get(data[:2], given)
    if told:
        return told, False
    declared = _DECLARED.findall(data[:_HEAD])[:1] if is_markup else []
    for name in (*(each.decode() for each in declared), "utf-8"):
        with suppress(UnicodeError, LookupError):
            data.decode(name)
            return name, False
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    return (best.encoding, True) if best else ("utf-8", False)
