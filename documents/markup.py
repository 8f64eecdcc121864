"""Tags of XML and HTML, and archives of such files."""

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from zipfile import BadZipFile, ZipFile

from documents.document import Document, Passage, Place, in_text
from documents.marks import Paragraph, Slot, spread
from errors import InputError

TAG = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)"
    r"""(?P<attributes>(?:"[^"]*"|'[^']*'|[^'">])*?)(?P<empty>/?)>""",
    re.DOTALL,
)
_WRONG = (BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error)


def attribute(attributes: str, name: str) -> str:
    """An attribute's value, or nothing."""
    match = re.search(
        rf"""(?<![\w:-]){name}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", attributes
    )
    return (match[1] or match[2] or match[3] or "") if match else ""


@dataclass
class Lost:
    """What `write` could not keep: words that became plain, and what a reader should check."""

    plain: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def in_markup(
    data: bytes,
    find: Callable[[str], Iterable[Paragraph]],
    written: Callable[[Paragraph, Slot, str], str],
    lost: Lost,
) -> Document:
    """A document of paragraphs with marks. written: how words are written into a slot."""

    def fit(passage: Passage, text: str, placed: Sequence[Place] | None) -> list[str | None]:
        assert isinstance(passage, Paragraph)
        parts, plain, unsure = spread(passage, text, placed)
        lost.plain += plain
        lost.problems += [
            f"{passage.text[:40]!r}: check the link or change of {words!r}" for words in unsure
        ]
        slots = zip(passage.slots, parts, strict=True)
        return [None if part is None else written(passage, slot, part) for slot, part in slots]

    return in_text(data, find, fit_marked=fit, **vars(lost))


def in_archive(
    data: bytes,
    ending: str,
    parts_of: Callable[[ZipFile], Collection[str]],
    parse: Callable[[bytes, str, Lost], Document],
) -> Document:
    """The document in a zip archive. parts_of: the names of the files with text. parse: reads one of them."""
    try:
        archive = ZipFile(BytesIO(data))
        files = archive.infolist()
        contents = [archive.read(file) for file in files]
        names = parts_of(archive)
    except (*_WRONG, KeyError) as error:
        raise InputError(f"not a {ending} file: {error}") from None
    lost = Lost()
    parts = [
        parse(content, file.filename, lost) if file.filename in names else None
        for file, content in zip(files, contents, strict=True)
    ]

    def write(
        texts: Sequence[str | None], places: Sequence[Sequence[Place]] | None = None, /
    ) -> bytes:
        output = BytesIO()
        begin = 0
        with ZipFile(output, "w") as archive:
            for file, content, part in zip(files, contents, parts, strict=True):
                if part:
                    end = begin + len(part.passages)
                    content = part.write(texts[begin:end], places and places[begin:end])
                    begin = end
                archive.writestr(file, content)
        return output.getvalue()

    def place(passage: Passage) -> str:
        return repr(passage.text[:40])

    passages = [passage for part in parts if part for passage in part.passages]
    return Document(passages, write, place, **vars(lost))
