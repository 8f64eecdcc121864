"""Markdown (CommonMark, with tables): code, HTML, links' targets, tables and front matter stay."""

import re
from collections.abc import Iterator

from documents.document import Document, Passage, Span, in_text, lines_of, passage

_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)
_MARKS = r"(?P<tick>`+)(?:(?!`).)+?(?P=tick)(?!`)|!\[[^\]]*\]\([^()]*\)|\]\([^()]*\)|\]\[[^\]]*\]|\[\^[^\]]+\]|\*\*|\["


def parse(data: bytes) -> Document:
    return in_text(data, _passages, marks=_MARKS)


def _passages(source: str) -> Iterator[Passage]:
    from markdown_it import MarkdownIt

    front = _FRONT.match(source)
    hidden = re.sub(r"[^\r\n]", " ", front[0]) if front else ""
    shown = hidden + source[len(hidden) :].replace("\ufeff", " ")
    begins = [0, *(match.end() for match in re.finditer(r"\r\n?|\n", source)), len(source)]
    end = 0  # of the last span: a table's cells share a line
    for token in MarkdownIt("commonmark").enable("table").parse(shown):
        if token.type != "inline" or not token.map:
            continue
        spans = list[Span]()
        for number, line in enumerate(token.content.split("\n"), token.map[0]):
            start = source.find(line.strip(), max(begins[number], end), begins[number + 1])
            if start >= 0 and line.strip():
                spans += lines_of(source, start, start + len(line.strip()))
                end = spans[-1][1]
        if spans:
            yield passage(source, spans)
