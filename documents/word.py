"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from html import unescape
from io import BytesIO
from xml.etree import ElementTree
from xml.sax.saxutils import escape
from zipfile import BadZipFile, ZipFile

from documents.document import Document, Segment, Span, in_text
from errors import InputError

_PART = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_TAG = re.compile(
    r"(?P<cut></?w:p\b|<w:(?:br|cr|tab)\b)|(?P<run><w:r\b)|<w:rPr>(?P<format>.*?)</w:rPr>"
    r"|<w:t(?P<text>(?:\s[^>]*)?>[^<]+)</w:t>",
    re.DOTALL,
)
_UNSEEN = re.compile(r"<w:(?:lang|noProof)\b[^>]*>")  # in a run's formatting
_WRONG = (BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error)


def read(data: bytes) -> Document:
    try:
        archive = ZipFile(BytesIO(data))
        files = archive.infolist()
        contents = [archive.read(file) for file in files]
        archive.getinfo("word/document.xml")
    except (*_WRONG, KeyError) as error:
        raise InputError(f"not a .docx file: {error}") from None
    plain = list[str]()
    named = ((i, _PART.fullmatch(file.filename)) for i, file in enumerate(files))
    parts = {i: _part(contents[i], found[1], plain) for i, found in named if found}

    def write(texts: Sequence[str | None]) -> bytes:
        left = iter(texts)
        with ZipFile(output := BytesIO(), "w") as written:
            for i, file in enumerate(files):
                part = parts.get(i)
                new = part and part.write([next(left) for _ in part.segments])
                written.writestr(file, new or contents[i])
        return output.getvalue()

    def place(segment: Segment) -> str:
        return repr(segment.text[:40])

    segments = [each for part in parts.values() for each in part.segments]
    return Document(segments, write, place, plain=plain)


def _part(xml: bytes, name: str, plain: list[str]) -> Document:
    if b"<!DOCTYPE" in xml:  # and with it entities
        raise InputError(f"not a .docx file: {name}.xml has a document type")
    try:
        ElementTree.fromstring(xml)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also: unknown encodings
        raise InputError(f"not a .docx file: {name}.xml: {error}") from None
    runs = dict[Span, tuple[str, str]]()  # text and formatting

    def find(source: str) -> Iterator[Segment]:
        format, spans = "", list[Span]()
        for tag in _TAG.finditer(source):
            if tag.lastgroup == "text":
                spans.append(tag.span("text"))
                runs[spans[-1]] = unescape(tag["text"].partition(">")[2]), format
            elif tag.lastgroup == "cut" and spans:
                yield Segment("".join(runs[span][0] for span in spans), tuple(spans))
                spans = []
            elif tag.lastgroup != "cut":
                format = _UNSEEN.sub("", tag["format"] or "")

    def fit(segment: Segment, text: str) -> list[str]:
        new = _spread([runs[span] for span in segment.spans], text, plain)
        return [f' xml:space="preserve">{escape(each)}' for each in new]

    return in_text(xml, find, fit)


def _spread(runs: Sequence[tuple[str, str]], text: str, plain: list[str]) -> list[str]:
    """What to write into each run. Marks, such as bold words, are what is not formatted as most of the paragraph; where
    the text has not the same words, they become plain and are added to `plain`."""
    sizes = Counter[str]()
    for words, format in runs:
        sizes[format] += len(words)
    usual = [i for i, (_, format) in enumerate(runs) if format == sizes.most_common(1)[0][0]]
    new, at, host = [""] * len(runs), 0, usual[0]
    for i, (words, _) in enumerate(runs):
        if i in usual or not (words := words.strip()):
            continue
        found = text.find(words, at)
        after = next((j for j in usual if j > i), None)
        ends = after is None and found + len(words) < len(text)  # and no run takes the rest
        if found < 0 or ends or (host > i and found > at):
            plain.append(words)
            continue
        if host < i:
            new[host] = text[at:found]
        new[i], at, host = words, found + len(words), i if after is None else after
    new[host] += text[at:]
    return new
