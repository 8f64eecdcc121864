"""Documents of paragraphs with marks, alone or in archives."""

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from io import BytesIO
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile, ZipFile

from common.errors import InputError
from documents.document import Document, Passage, in_text
from documents.paragraph import Paragraph, written

_WRONG = (
    BadZipFile,
    ParseError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    zlib.error,
)


def _nothing_about() -> dict:
    return {"places": {}, "plain": [], "notes": []}


def in_markup(
    data: bytes,
    find: Callable[[str], Iterable[Paragraph]],
    escape: Callable[[Paragraph, str], str] = lambda paragraph, words: words,
    about: dict | None = None,
    fit: Callable[[Passage, str], list[str]] | None = None,
    **more,
) -> Document:
    """A document of paragraphs with marks. escape: writes text as markup; about: places, plain and notes of the
    `Document`, if it is a part of one; fit: spreads a text with its marks over a paragraph's spans; more: `in_text`'s."""
    about = _nothing_about() if about is None else about
    source = ""

    def paragraphs(text: str) -> Iterable[Paragraph]:
        nonlocal source
        source = text
        return find(text)

    def written_in(passage: Passage, text: str) -> list[str]:
        assert isinstance(passage, Paragraph)
        if text == passage.text:
            return [source[start:stop] for start, stop in passage.spans]
        parts, lost = written(passage, text, about["places"].get(passage), partial(escape, passage))
        for kind, words in lost:
            message = f"{passage.text[:40]!r}: check the {kind} of {words!r}"
            about["plain" if kind == "look" else "notes"].append(
                words if kind == "look" else message
            )
        return fit(passage, "".join(parts)) if fit else parts

    return in_text(data, paragraphs, written_in, **about, **more)


def in_archive(
    data: bytes,
    ending: str,
    parts_of: Callable[[ZipFile], Collection[str]],
    parse: Callable[[bytes, str, dict], Document],
) -> Document:
    """The document in a zip archive. parts_of: the names of the files with text. parse: reads one of them; its last
    argument is `in_markup`'s."""
    try:
        archive = ZipFile(BytesIO(data))
        contents = {file: archive.read(file) for file in archive.infolist()}
        names = parts_of(archive)
    except (*_WRONG, KeyError) as error:
        raise InputError(f"not a {ending} file: {error}") from None
    about = _nothing_about()
    parts = {
        file: parse(content, file.filename, about)
        for file, content in contents.items()
        if file.filename in names
    }

    def write(texts: Sequence[str | None]) -> bytes:
        remaining = iter(texts)
        output = BytesIO()
        with ZipFile(output, "w") as archive:
            for file, content in contents.items():
                part = parts.get(file)
                new = part and part.write([next(remaining) for _ in part.passages])
                archive.writestr(file, new or content)
        return output.getvalue()

    def place(passage: Passage) -> str:
        return repr(passage.text[:40])

    passages = [passage for part in parts.values() for passage in part.passages]
    return Document(passages, write, place, **about)
