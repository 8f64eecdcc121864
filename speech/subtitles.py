"""Subtitles for reading: cues that break at sentences and pauses and stay long enough, as Netflix's and Subtitle Edit's
rules have it."""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.errors import InputError
from speech.segments import Word

_MOST = 3.0  # the strength of a sentence's end
_SENTENCE = re.compile(r"""[.?!…。？！]["'”’)\]»]*$""")  # noqa: RUF001
_CLAUSE = re.compile(r"""[,;:、，]["'”’)\]»]*$""")  # noqa: RUF001


@dataclass(frozen=True)
class Rules:
    """What a cue for reading is to be."""

    max_line_width: int = 42  # in characters
    max_line_count: int = 2
    min_cue_seconds: float = 1.0
    max_cue_seconds: float = 7.0
    reading_speed: float = 17.0  # characters a second, where there is room
    cue_gap: float = 0.08  # seconds between two cues

    def __post_init__(self):
        for name, value in vars(self).items():
            if not 0 < value < math.inf and (name, value) != ("cue_gap", 0):
                raise InputError(f"{name} is {value}, not a number above 0")


def cues(words: Sequence[Word], rules: Rules, end: float) -> Iterator[tuple[float, float, str]]:
    """The start, end and lines of each cue, so divided that the sum of `_cost` is least. end: the sound's, in seconds"""
    starts = [*(word.start for word in words), end + rules.cue_gap]
    strengths = [_strength(word, after) for word, after in zip(words, starts[1:], strict=True)]
    costs = [0.0, *[math.inf] * len(words)]  # of the first n words
    firsts = [0] * len(costs)  # of the last cue of these
    for first in range(len(words)):
        lines = 0
        length = 0
        size = 0
        for last in range(first, len(words)):
            text = words[last].word
            size += len(text)
            length += len(text)
            if not lines or length > rules.max_line_width:
                lines += 1
                length = len(text.strip())
            too_long = words[last].end - words[first].start > rules.max_cue_seconds
            if last > first and (too_long or lines > rules.max_line_count):
                break
            shown = _end(words[first].start, words[last].end, size, starts[last + 1], rules)
            lacking = _seconds(size, rules) - (shown - words[first].start)
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
        stop = _end(start, words[after - 1].end, len(text), starts[after], rules)
        yield start, stop, _balanced(text, rules)


def _strength(word: Word, after: float) -> float:
    """How well a cue may end behind a word, from 0 to 3. after: when the next word begins"""
    clause = float(_CLAUSE.search(word.word) is not None)
    marked = _MOST if _SENTENCE.search(word.word) else clause
    return max(marked, min(_MOST, 4 * (after - word.end)))


def _seconds(size: int, rules: Rules) -> float:
    return max(rules.min_cue_seconds, size / rules.reading_speed)


def _end(start: float, end: float, size: int, after: float, rules: Rules) -> float:
    """When a cue ends that is spoken from `start` to `end`, if the next begins at `after`."""
    wanted = min(max(end, start + _seconds(size, rules)), start + rules.max_cue_seconds)
    return max(min(wanted, after - rules.cue_gap), (start + min(end, after)) / 2)


def _balanced(text: str, rules: Rules) -> str:
    """The text in as few lines as it needs, of about the same length."""
    lines = textwrap.wrap(text, rules.max_line_width, break_on_hyphens=False)
    for width in range(-(-len(text) // max(1, len(lines))) or 1, rules.max_line_width):
        narrow = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(narrow) == len(lines):
            return "\n".join(narrow)
    return "\n".join(lines)
