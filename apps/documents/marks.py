"""The targets of formatting, such as bold words, links and notes, in a translation."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import regex

from apps.documents.document import Span, Target
from apps.documents.prose import covered

Sentence = tuple[str, str]  # a prompt with its text
Align = Callable[[Span], Target]  # where words of a sentence are in its translation
# Not within a stand-in such as {1}
_BOUNDARY = regex.compile(r"(?w)(?:\b|(?=['’])|(?<=['’]))(?!(?<=\{\d{0,4})\d{0,4}\})|^|$")  # noqa: RUF001
WORD = regex.compile(r"(?w)(?<!\{\d{0,4})\w.*?(?=\b)")


def targets_of(
    pairs: Sequence[Sentence], formatting: Sequence[Span], aligned: Mapping[Sentence, Align]
) -> list[Target]:
    """The targets of a passage's formatting. pairs: all its sentences; aligned: where the words of some are"""
    sources, texts = zip(*pairs, strict=True)
    whole = "".join(sources)
    starts = [0, *accumulate(map(len, sources))]
    begins = [0, *accumulate(map(len, texts))]
    result = list[Target]()
    for start, end in (_trimmed(whole, mark) for mark in formatting):
        last = max(bisect_left(starts, end) - 1, 0)
        first = min(bisect_right(starts, start) - 1, last)
        if start == end and whole[start - 1 : start].isspace():
            # Otherwise it is a note of the sentence before it.
            first = last = min(bisect_right(starts, start), len(sources)) - 1
        parts = list[Target]()
        for i in sorted({first, last}):
            mark = max(start - starts[i], 0), min(end - starts[i], len(sources[i]))
            (begin, stop), sure = target_of(sources[i], texts[i], mark, aligned.get(pairs[i]))
            parts.append(((begins[i] + begin, begins[i] + stop), sure))
        result.append(((parts[0][0][0], parts[-1][0][1]), min(sure for _, sure in parts)))
    return result


def target_of(source: str, text: str, mark: Span, align: Align | None = None) -> Target:
    """The target of a mark of a sentence in its translation, and how sure that is: the whole sentence is the whole one, and
    words go where the same words are, or where the model has translated them; else to the same place, between words."""
    start, end = _trimmed(source, mark)
    words = source[start:end].strip()
    letters = WORD.search(text)
    is_drop_cap = (start, end) == (0, 1) and len(source) > 1 and source[:2].isalpha()
    if is_drop_cap and letters:
        return (letters.start(), letters.start() + 1), True
    if words and words == source.strip():
        return _trimmed(text, (0, len(text))), True
    same, is_certain = None, False
    if words or source[start - 1 : start].strip():
        same, is_certain = _same_words(source, text, (start, end))
    if align and not is_certain:
        target, sure = align((start, end))
        if sure:
            return target, sure
    if same:
        return same, True
    begin, stop = _same_place(source, text, start), _same_place(source, text, end)
    if words and not text[begin:stop].strip():
        spans = [match.span() for match in WORD.finditer(covered(text))]
        begin, stop = min(spans, key=lambda span: abs(span[0] - begin), default=(0, len(text)))
    return (begin, max(begin, stop)), False


def _trimmed(text: str, span: Span) -> Span:
    words = text[slice(*span)]
    if not words.strip():
        return span
    return span[0] + len(words) - len(words.lstrip()), span[0] + len(words.rstrip())


def _same_words(source: str, text: str, mark: Span) -> tuple[Span | None, bool]:
    """The nearest place of the words that a mark is around, within or behind, and whether both have them as often."""
    edges = _boundaries(source)
    start = edges[bisect_right(edges, mark[0]) - 1]
    end = edges[bisect_left(edges, mark[1])]
    if start == end:  # behind a word, such as a note
        start = edges[bisect_left(edges, end) - 1]
    here, there = (_finds(each, source[start:end]) for each in (source, text))
    if not there:
        return None, False
    share = start / len(source) * len(text)
    nearest = min(there, key=lambda at: abs(at - share))
    at = there[here.index(start)] if len(here) == len(there) else nearest
    return (at + mark[0] - start, at + mark[1] - start), len(here) == len(there)


def _finds(text: str, words: str) -> list[int]:
    edges = {*_boundaries(text)}
    found = regex.finditer(regex.escape(words), text, regex.IGNORECASE, overlapped=True)
    return [match.start() for match in found if edges.issuperset(match.span())]


@lru_cache(maxsize=2)  # of a source and its text, for each of their marks
def _boundaries(text: str) -> list[int]:
    """The places where words and marks of punctuation begin or end."""
    return [match.start() for match in _BOUNDARY.finditer(text)]


def _same_place(source: str, text: str, at: int) -> int:
    """The nearest place between words of the text, the nearer if it looks the same."""
    start, end = _trimmed(source, (0, len(source)))
    begin, stop = _trimmed(text, (0, len(text)))
    if at <= start:
        return begin if at else 0
    if at >= end:
        return stop if at == end else len(text)
    share = begin + (at - start) / (end - start) * (stop - begin)
    wanted = _neighbours(source, at)
    distances = dict[int, float]()
    for place in _boundaries(text):
        if begin <= place <= stop:
            distances[place] = abs(place - share)
            if _neighbours(text, place) != wanted:
                distances[place] += len(text) / 4
    return min(distances, key=distances.__getitem__)


def _neighbours(text: str, at: int) -> list[tuple[bool, bool]]:
    """The kinds of the characters before and after a place; an end is as white space."""
    sides = text[max(at - 1, 0) : at], text[at : at + 1]
    return [(each.isalnum(), not each.strip()) for each in sides]
