"""Plain text: lines, and paragraphs that are wrapped over several."""

from collections.abc import Iterator
from itertools import groupby, islice

from apps.documents.document import Document, Passage, in_text, lines_of, passage
from apps.documents.line_marks import LIST_MARKS, without
from apps.documents.sentences import paragraphs
from speculative.text.cues import line_spans


def parse(data: bytes, bilingual: bool = False) -> Document:
    return in_text(data, _paragraphs, below="\n" if bilingual else "")


def _paragraphs(source: str) -> Iterator[Passage]:
    both = zip(line_spans(source), lines_of(source), strict=True)
    for has_text, block in groupby(both, lambda line: line[1][0] < line[1][1]):
        if has_text:
            whole, spans = zip(*block, strict=True)
            remaining = iter(spans)
            for paragraph in paragraphs([source[start:stop] for start, stop in whole]):
                first, *others = islice(remaining, len(paragraph))
                yield passage(source, [without(LIST_MARKS, source, first), *others])
