"""Plain text: lines, and paragraphs that are wrapped over several."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from documents.document import Document, Segment, Span, in_text, line_number, lines_of, segment

_NARROWEST = 40  # characters; below that, lines are a list or verses
_ENDED = re.compile(r"""[.!?:;…。！？]["'»”’)\]]*$""")  # noqa: RUF001


def read(data: bytes) -> Document:
    return in_text(data, _segments)


def _segments(source: str) -> Iterator[Segment]:
    line, at = 1, 0
    for block in _blocks(source):
        for spans in [block] if _wrapped(source, block) else [[span] for span in block]:
            line, at = line + line_number(source[at : spans[0][0]], len(source)) - 1, spans[0][0]
            yield segment(source, f"line {line}", spans)


def _blocks(source: str) -> Iterator[list[Span]]:
    """Lines without an empty one between them."""
    block = list[Span]()
    for span in lines_of(source):
        if block and len(re.findall(r"\r\n?|\n", source[block[-1][1] : span[0]])) > 1:
            yield block
            block = []
        block.append(span)
    if block:
        yield block


def _wrapped(source: str, block: Sequence[Span]) -> bool:
    """Whether the lines are one paragraph: no line had room for the next one's first word, and some do not end a
    sentence."""
    lines = [source[start:stop] for start, stop in block]
    width = max(map(len, lines))
    full = all(len(a) + 1 + len(b.split()[0]) > width for a, b in pairwise(lines))
    return width >= _NARROWEST and full and not all(map(_ENDED.search, lines[:-1]))
