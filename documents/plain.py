"""Plain text: lines, and paragraphs that are wrapped over several."""

import re
from collections.abc import Iterator
from itertools import pairwise

from documents.document import Document, Passage, blocks_of, in_text, lines_of, passage

_NARROWEST = 40  # characters; below that, lines are a list or verses
_ENDED = re.compile(r"""[.!?:;…。！？]["'»”’)\]]*$""")  # noqa: RUF001


def parse(data: bytes) -> Document:
    return in_text(data, _passages)


def _passages(source: str) -> Iterator[Passage]:
    for block in blocks_of(source):
        spans = [*lines_of(source, *block)]
        wrapped = _wrapped([source[start:stop] for start, stop in spans])
        yield from (passage(source, each) for each in ([spans] if wrapped else zip(spans)))


def _wrapped(lines: list[str]) -> bool:
    """Whether the lines are one paragraph: no line had room for the next one's first word, and some do not end a
    sentence."""
    width = max(map(len, lines))
    full = all(len(a) + 1 + len(b.split()[0]) > width for a, b in pairwise(lines))
    return width >= _NARROWEST and full and not all(map(_ENDED.search, lines[:-1]))
