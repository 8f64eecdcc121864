"""Plain text: lines, and paragraphs that are wrapped over several."""

from collections.abc import Iterator
from itertools import islice

from documents.document import Document, Passage, blocks_of, in_text, lines_of, passage
from documents.sentences import paragraphs
from text.cues import NEWLINE


def parse(data: bytes, bilingual: bool = False) -> Document:
    return in_text(data, _passages, below="\n" if bilingual else "")


def _passages(source: str) -> Iterator[Passage]:
    for start, end in blocks_of(source):
        spans = lines_of(source, start, end)
        lines = NEWLINE.split(source[start:end].rstrip("\r\n"))
        for paragraph in paragraphs(lines):
            yield passage(source, islice(spans, len(paragraph)))
