"""Plain text: lines, and paragraphs that are wrapped over several."""

from collections.abc import Iterator
from itertools import groupby, islice

from apps.documents.document import Document, Passage, Span, in_text, lines_of, passage
from apps.documents.line_marks import LIST_MARKS, without
from apps.documents.sentences import paragraphs
from speculative.text.cues import line_spans


def parse(data: bytes, bilingual: bool = False) -> Document:
    return in_text(data, _paragraphs, below="\n" if bilingual else "")


def _paragraphs(source: str) -> Iterator[Passage]:
    for (_, has_text), block in groupby(_lines(source), lambda line: line[0]):
        if has_text:
            _, whole, spans = zip(*block, strict=True)
            remaining = iter(spans)
            texts = [source[start:stop].lstrip("\ufeff") for start, stop in whole]
            for paragraph in paragraphs(texts):
                first, *others = islice(remaining, len(paragraph))
                yield passage(source, [without(LIST_MARKS, source, first), *others])


def _lines(source: str) -> Iterator[tuple[tuple[int, bool], Span, Span]]:
    """The lines: how deep each is quoted and whether it has text, its place behind the marks for that, and its words'."""
    for (begin, end), (start, stop) in zip(line_spans(source), lines_of(source), strict=True):
        words = source[start:stop].lstrip("> \t")
        depth = source.count(">", start, stop - len(words))
        if depth:
            begin = start = stop - len(words)
        yield (depth, start < stop), (begin, end), (start, stop)
