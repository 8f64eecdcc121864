"""Divides a text into captions for reading, by the times of its words."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from apps.speech.options import Layout
from apps.speech.segments import Word
from speculative.text.scripts import CLAUSE_ENDED, SENTENCE_ENDED

_MAX_WIDTH = 42  # of a line in characters, by default
_MAX_LINES = 2
_MOST = 3.0  # the strength of a sentence's end

Caption = tuple[float, float, str]  # beginning and end in seconds, text


def captions(words: Sequence[Word], layout: Layout, end: float) -> Iterator[Caption]:
    """The captions for reading, each in lines, so divided that the sum of costs is least. end: the sound's, in seconds"""
    max_width = layout.max_line_width or _MAX_WIDTH
    max_lines = layout.max_line_count or _MAX_LINES
    max_words = layout.max_words_per_line or len(words)
    starts = [*(word.start for word in words), end + layout.cue_gap]
    strengths = [_strength(word, after) for word, after in zip(words, starts[1:], strict=True)]
    costs = [0.0, *[math.inf] * len(words)]  # of the first n words
    firsts = [0] * len(costs)  # of the last caption of these
    for first in range(len(words)):
        text = ""
        for last in range(first, len(words)):
            text += words[last].word
            lines = textwrap.wrap(text.strip(), max_width, break_on_hyphens=False)
            too_long = words[last].end - words[first].start > layout.max_cue_seconds
            too_long = too_long or last - first >= max_words
            if last > first and (too_long or len(lines) > max_lines):
                break
            shown = _end(words[first].start, words[last].end, len(text), starts[last + 1], layout)
            lacking = _seconds(len(text), layout) - (shown - words[first].start)
            crossed = sum(strengths[first:last])
            cost = 1 + _MOST - strengths[last] + 0.7 * crossed + 4 * max(0.0, lacking)
            if costs[first] + cost < costs[last + 1]:
                costs[last + 1] = costs[first] + cost
                firsts[last + 1] = first
    bounds = [len(words)]
    while bounds[-1]:
        bounds.append(firsts[bounds[-1]])
    for after, first in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        text = "".join(word.word for word in words[first:after]).strip()
        start = words[first].start
        stop = _end(start, words[after - 1].end, len(text), starts[after], layout)
        yield start, stop, _balanced(text, max_width)


def _strength(word: Word, after: float) -> float:
    """Rate, from 0 to 3, a caption's end behind a word. after: when the next word begins"""
    clause = float(CLAUSE_ENDED.search(word.word) is not None)
    marked = _MOST if SENTENCE_ENDED.search(word.word) else clause
    return max(marked, min(_MOST, 4 * (after - word.end)))


def _seconds(size: int, layout: Layout) -> float:
    return max(layout.min_cue_seconds, size / layout.reading_speed)


def _end(start: float, end: float, size: int, after: float, layout: Layout) -> float:
    """The end of a caption that is spoken from `start` to `end`, if the next begins at `after`."""
    wanted = min(max(end, start + _seconds(size, layout)), start + layout.max_cue_seconds)
    return max(min(wanted, after - layout.cue_gap), (start + min(end, after)) / 2)


def _balanced(text: str, max_width: int) -> str:
    """The text in as few lines as it needs, of about the same length."""
    lines = textwrap.wrap(text, max_width, break_on_hyphens=False)
    longest = max(map(len, text.split()), default=1)
    for width in range(max(longest, len(text) // max(1, len(lines))), max_width):
        narrow = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(narrow) == len(lines):
            return "\n".join(narrow)
    return "\n".join(lines)
