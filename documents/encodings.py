"""Documents in other encodings than UTF-8."""

import codecs
import re
from collections.abc import Callable
from dataclasses import replace

from common.errors import InputError
from documents.document import AllTargets, Document, Texts, Written

_BINARY = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"PK")  # formats read these themselves
_DECLARED = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?([\w.:-]+)""")
_HEAD = 2000  # bytes in which an encoding is declared


def decoded(
    parse: Callable[[bytes], Document],
    data: bytes,
    encoding: str | None = None,
    is_markup: bool = False,
) -> Document:
    """The document that `parse` makes of the data in UTF-8; it is written in its own encoding again, if that has all
    characters. encoding: None: UTF-8, or else a guess, which is noted. is_markup: it may declare its encoding, and write
    characters as numbers. InputError if the encoding is wrong."""
    if data.startswith(_BINARY):
        return parse(data)
    guessed = None
    name = encoding or (_declared(data) if is_markup else None)
    if not name:
        guessed = _guess(data)
        name = guessed or "utf-8"
    try:
        source = data.decode(name)
    except (UnicodeError, LookupError):
        raise InputError(f"not {name} text; say its encoding with --encoding") from None
    document = parse(source.encode())
    notes = [f"read as {name}; --encoding changes that"] if guessed else []

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


def _declared(data: bytes) -> str | None:
    """The encoding that a page declares, if it is one and the page is in it."""
    match = _DECLARED.search(data, 0, _HEAD)
    try:
        if match and not match[1].lower().startswith(b"utf-16"):  # which is not said in UTF-16
            data.decode(match[1].decode())
            return match[1].decode()
    except (UnicodeError, LookupError):
        pass
    return None


def _guess(data: bytes) -> str | None:
    """The encoding of text that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        best = from_bytes(data).best()
        return best.encoding if best else None
    return None
