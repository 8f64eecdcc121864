"""Markdown (CommonMark, with tables): code, HTML, links' targets, tables and front matter stay."""

import re
from collections.abc import Iterator

from documents.document import Document, Segment, Span, in_text, lines_of, segment

_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)
_MARKS = r"(?P<tick>`+)(?:(?!`).)+?(?P=tick)(?!`)|!\[[^\]]*\]\([^()]*\)|\]\([^()]*\)|\]\[[^\]]*\]|\[\^[^\]]+\]|\*\*|\["


def read(data: bytes) -> Document:
    return in_text(data, _segments, marks=_MARKS)


def _segments(source: str) -> Iterator[Segment]:
    from markdown_it import MarkdownIt

    front = _FRONT.match(source)
    hidden = re.sub(r"[^\r\n]", " ", front[0]) if front else ""
    shown = hidden + source[len(hidden) :].replace("\ufeff", " ")
    begins = [0, *(found.end() for found in re.finditer(r"\r\n?|\n", source)), len(source)]
    end = 0  # of the last span: a table's cells share a line
    for token in MarkdownIt("commonmark").enable("table").parse(shown):
        if token.type != "inline" or not token.map:
            continue
        first, spans = token.map[0], list[Span]()
        for number, line in enumerate(token.content.split("\n"), first):
            at = source.find(line.strip(), max(begins[number], end), begins[number + 1])
            if at >= 0 and line.strip():
                spans += lines_of(source, at, at + len(line.strip()))
                end = spans[-1][1]
        if spans:
            yield segment(source, spans)
