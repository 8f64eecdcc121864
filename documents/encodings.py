"""Documents in other encodings than UTF-8."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import replace

from common.errors import InputError
from documents.document import Document

_BINARY = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"PK")  # formats read these themselves


def decoded(
    parse: Callable[[bytes], Document], data: bytes, encoding: str | None = None
) -> Document:
    """The document that `parse` makes of the data in UTF-8; it is written in its own encoding again, if that has all
    characters. encoding: None: UTF-8, or else a guess, which is noted. InputError if that is wrong."""
    if data.startswith(_BINARY):
        return parse(data)
    guessed = encoding is None and _guess(data)
    name = encoding or guessed or "utf-8"
    try:
        document = parse(data.decode(name).encode())
    except (UnicodeDecodeError, LookupError):
        raise InputError(f"not {name} text; say its encoding with --encoding") from None
    if guessed:
        document.notes.append(f"read as {name}; --encoding changes that")

    def write(texts: Sequence[str | None]) -> bytes:
        new = document.write(texts)
        try:
            return new.decode().encode(name)
        except UnicodeEncodeError as error:
            lacking = error.object[error.start]
            document.notes.append(f"written as UTF-8: {name} has no {lacking!r}")
            return new

    return replace(document, write=write)


def _guess(data: bytes) -> str | None:
    """The encoding of text that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        best = from_bytes(data).best()
        return best.encoding if best else None
    return None
