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

from documents.document import Document, Passage, Span, in_text
from errors import InputError

_PART = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_TAG = re.compile(
    r"(?P<cut></?w:p\b|<w:(?:br|cr|tab)\b)|(?P<run><w:r\b)|<w:rPr>(?P<format>.*?)</w:rPr>"
    r"|<w:t(?P<text>(?:\s[^>]*)?>[^<]+)</w:t>",
    re.DOTALL,
)
_UNSEEN = re.compile(r"<w:(?:lang|noProof)\b[^>]*>")  # in a run's formatting
_WRONG = (BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error)


def parse(data: bytes) -> Document:
    try:
        archive = ZipFile(BytesIO(data))
        files = archive.infolist()
        contents = [archive.read(file) for file in files]
        archive.getinfo("word/document.xml")
    except (*_WRONG, KeyError) as error:
        raise InputError(f"not a .docx file: {error}") from None
    plain = list[str]()
    parts = dict[int, Document]()
    for i, file in enumerate(files):
        match = _PART.fullmatch(file.filename)
        if match:
            parts[i] = _part(contents[i], match[1], plain)

    def write(texts: Sequence[str | None]) -> bytes:
        remaining = iter(texts)
        output = BytesIO()
        with ZipFile(output, "w") as archive:
            for i, file in enumerate(files):
                part = parts.get(i)
                new = part and part.write([next(remaining) for _ in part.passages])
                archive.writestr(file, new or contents[i])
        return output.getvalue()

    def place(passage: Passage) -> str:
        return repr(passage.text[:40])

    passages = [each for part in parts.values() for each in part.passages]
    return Document(passages, write, place, plain=plain)


def _part(xml: bytes, name: str, plain: list[str]) -> Document:
    if b"<!DOCTYPE" in xml:  # and with it entities
        raise InputError(f"not a .docx file: {name}.xml has a document type")
    try:
        ElementTree.fromstring(xml)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also: unknown encodings
        raise InputError(f"not a .docx file: {name}.xml: {error}") from None
    runs = dict[Span, tuple[str, str]]()  # text and formatting

    def find(source: str) -> Iterator[Passage]:
        format = ""
        spans = list[Span]()
        for tag in _TAG.finditer(source):
            if tag.lastgroup == "text":
                spans.append(tag.span("text"))
                runs[spans[-1]] = unescape(tag["text"].partition(">")[2]), format
            elif tag.lastgroup == "cut" and spans:
                yield Passage("".join(runs[span][0] for span in spans), tuple(spans))
                spans = []
            elif tag.lastgroup != "cut":
                format = _UNSEEN.sub("", tag["format"] or "")

    def fit(passage: Passage, text: str) -> list[str]:
        new = _spread([runs[span] for span in passage.spans], text, plain)
        return [f' xml:space="preserve">{escape(each)}' for each in new]

    return in_text(xml, find, fit)


def _spread(runs: Sequence[tuple[str, str]], text: str, plain: list[str]) -> list[str]:
    """What to write into each run. Runs whose formatting differs from the paragraph's main one, such as bold words, keep
    it where the text has the same words; if not, these words become plain and are added to `plain`."""
    sizes = Counter[str]()
    for words, format in runs:
        sizes[format] += len(words)
    main_format = sizes.most_common(1)[0][0]
    main_runs = [i for i, (_, format) in enumerate(runs) if format == main_format]
    new = [""] * len(runs)
    position = 0  # in the text: what stands before it is in `new`
    host = main_runs[0]  # takes the text that comes next
    for i, (words, _) in enumerate(runs):
        words = words.strip()
        if i in main_runs or not words:
            continue
        start = text.find(words, position)
        end = start + len(words)
        next_main = next((j for j in main_runs if j > i), None)
        nobody_takes_the_rest = next_main is None and end < len(text)
        nobody_takes_the_text_before = host > i and start > position
        if start < 0 or nobody_takes_the_rest or nobody_takes_the_text_before:
            plain.append(words)
            continue
        if host < i:
            new[host] = text[position:start]
        new[i] = words
        position = end
        host = i if next_main is None else next_main
    new[host] += text[position:]
    return new
