"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from xml.parsers import expat
from xml.sax.saxutils import escape
from zipfile import BadZipFile, ZipFile

from documents.document import MOST, Document, Segment, Span, spliced
from errors import InputError

_PART = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_UNSEEN = re.compile(rb"<\w+:(?:lang|noProof)\b[^>]*>")  # in a run's formatting
_NAMESPACE = "/wordprocessingml/"
_WRONG = (BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error)


@dataclass(frozen=True)
class _Text:
    """An element w:t, and its run's formatting."""

    text: str
    span: Span
    format: bytes


def read(data: bytes) -> Document:
    try:
        archive = ZipFile(BytesIO(data))
        files = archive.infolist()
        if (size := sum(file.file_size for file in files)) > 8 * MOST:
            raise InputError(f"{size >> 20} MB unpacked; {8 * MOST >> 20} MB at most")
        contents = [archive.read(file) for file in files]
    except _WRONG as error:
        raise (
            error if isinstance(error, InputError) else InputError(f"not a .docx file: {error}")
        ) from None
    if "word/document.xml" not in archive.namelist():
        raise InputError("not a .docx file: no word/document.xml")
    segments, made_of = list[Segment](), list[tuple[int, list[_Text]]]()
    for i, file in enumerate(files):
        if part := _PART.fullmatch(file.filename):
            for number, texts in enumerate(_Part(contents[i]).paragraphs, 1):
                text, spans = "".join(each.text for each in texts), (each.span for each in texts)
                segments.append(Segment(text, f"{part[1]}, paragraph {number}", tuple(spans)))
                made_of.append((i, texts))

    def write(texts: Sequence[str | None]) -> bytes:
        edits: list[list[tuple[Span, bytes]]] = [[] for _ in files]
        for (i, old), segment, text in zip(made_of, segments, texts, strict=True):
            if text not in (None, segment.text):
                new, dropped = _spread(old, text)
                document.dropped += dropped
                edits[i] += [
                    (each.span, _element(contents[i][slice(*each.span)], text))
                    for each, text in zip(old, new, strict=True)
                ]
        with ZipFile(output := BytesIO(), "w") as written:
            written.comment = archive.comment
            for file, content, of_file in zip(files, contents, edits, strict=True):
                written.writestr(file, spliced(content, of_file))
        return output.getvalue()

    document = Document(segments, write)
    return document


class _Part:
    """The paragraphs of an XML file; a tab or a line break ends one too. InputError if it is not XML."""

    def __init__(self, xml: bytes):
        self.paragraphs: list[list[_Text]] = []
        self._xml, self._format, self._text, self._at = xml, b"", "", 0
        self._open: list[list[_Text]] = []  # one inside another: text boxes
        self._parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._refuse
        if b"\0" in xml:
            raise InputError("its XML is not UTF-8")
        try:
            parser.Parse(xml, True)
        except (expat.ExpatError, ValueError) as error:
            raise InputError(f"not a .docx file: {error}") from None

    def _refuse(self, *_) -> None:
        raise InputError("its XML declares a document type")  # and with it entities

    def _start(self, name: str, _) -> None:
        space, _, name = name.rpartition(" ")
        if _NAMESPACE not in space:
            return
        if name == "p":
            self._open.append([])
        elif name in ("br", "cr", "tab"):
            self._close()
        elif name == "r":
            self._format = b""
        elif name in ("t", "rPr"):
            self._text, self._at = "", self._parser.CurrentByteIndex

    def _characters(self, text: str) -> None:
        self._text += text

    def _end(self, name: str) -> None:
        space, _, name = name.rpartition(" ")
        index = self._parser.CurrentByteIndex
        if _NAMESPACE not in space:
            return
        if name == "p":
            self._close()
            self._open.pop()
        elif name == "rPr":
            self._format = _UNSEEN.sub(b"", self._xml[self._at : index])
        elif name == "t" and self._text and self._open:
            span = self._at, self._xml.index(b">", index) + 1
            self._open[-1].append(_Text(self._text, span, self._format))

    def _close(self) -> None:
        if self._open and self._open[-1]:
            self.paragraphs.append(self._open[-1])
            self._open[-1] = []


def _element(old: bytes, text: str) -> bytes:
    """The element w:t with another text; its prefix need not be w."""
    name = old[1:].split(b">")[0].split()[0]
    content = escape(text).encode("ascii", "xmlcharrefreplace")
    return b'<%s xml:space="preserve">%s</%s>' % (name, content, name)


def _spread(old: Sequence[_Text], text: str) -> tuple[list[str], int]:
    """The text of each element, and how many marks are dropped. Marks, such as bold words, are what is not formatted
    as most of the paragraph; they are kept where the text has the same words."""
    sizes = dict[bytes, int]()
    for each in old:
        sizes[each.format] = sizes.get(each.format, 0) + len(each.text)
    usual = max(sizes, key=sizes.__getitem__)
    new, at, host, dropped, marks = [""] * len(old), 0, -1, 0, 0
    for of_format, group in groupby(range(len(old)), key=lambda i: old[i].format):
        first, *others = group
        words = "".join(old[i].text for i in (first, *others)).strip()
        if of_format == usual:
            host = first if host < 0 else host
        elif words:
            marks += 1
            found = text.find(words, at)
            if found < 0 or (host < 0 and found > at):
                dropped += 1
                continue
            if host >= 0:
                new[host] = text[at:found]
            new[first], at, host = words, found + len(words), -1
    if host >= 0:
        new[host] = text[at:]
    if host >= 0 or at == len(text):
        return new, dropped
    first = next(i for i, each in enumerate(old) if each.format == usual)
    return [text if i == first else "" for i in range(len(old))], marks
