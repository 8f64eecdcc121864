"""Divides what is said into captions for reading, by the times of its words."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter

import regex

from apps.speech.options import Layout
from apps.speech.segments import Segment, Word
from speculative.text.lines import columns, wrap
from speculative.text.scripts import CLAUSE_ENDED, SENTENCE_ENDED

# Netflix's columns of a line and characters a second, for the first script in which a fifth of a text is written
_SCRIPTS = (
    (regex.compile(r"[\p{Hiragana}\p{Katakana}]"), 26, 4.0),
    (regex.compile(r"\p{Hangul}"), 32, 12.0),
    (regex.compile(r"\p{Han}"), 32, 9.0),
    (regex.compile(r"(?s)."), 42, 17.0),
)
_MAX_LINES = 2
_MOST = 3.0  # the strength of a sentence's end

Caption = tuple[float, float, str]  # beginning and end in seconds, text


def captions(segments: Sequence[Segment], layout: Layout, end: float) -> Iterator[Caption]:
    """The captions for reading of all speakers by their beginnings, each in lines, with its speaker's name where the one
    before is another's. segments: with words, by their beginnings; end: the sound's, in seconds"""
    text = "".join(segment.text for segment in segments)
    _, width, speed = next(each for each in _SCRIPTS if 5 * len(each[0].findall(text)) >= len(text))
    width = layout.max_line_width or width
    speed = layout.reading_speed or speed
    turns = [list(turn) for _, turn in groupby(segments, attrgetter("speaker"))]
    ends = [*(turn[0].start - layout.cue_gap for turn in turns[1:]), end]
    made = list[tuple[float, float, str, str | None]]()
    for turn, stop in zip(turns, ends, strict=False):
        name = turn[0].speaker
        words = [word for segment in turn for word in segment.words or ()]
        stop = max(stop, words[-1].end)
        made += [(*each, name) for each in _captions(words, name, layout, width, speed, stop)]
    before = None
    for start, stop, text, name in sorted(made, key=itemgetter(0)):
        if name != before:
            text = f"{name}: {text}"
        before = name
        yield start, stop, _balanced(text, width)


def _captions(
    words: Sequence[Word], name: str | None, layout: Layout, width: int, speed: float, end: float
) -> list[Caption]:
    """The captions of a turn, each on one line with room for the name, so divided that the sum of costs is least."""
    max_lines = layout.max_line_count or _MAX_LINES
    max_words = layout.max_words_per_line or len(words)
    starts = [*(word.start for word in words), end + layout.cue_gap]
    strengths = [_strength(word, after) for word, after in zip(words, starts[1:], strict=True)]
    best = [(0.0, 0, 0.0, ""), *[(math.inf, 0, 0.0, "")] * len(words)]  # for the first n words
    for first in range(len(words)):
        text = ""
        for last in range(first, len(words)):
            text += words[last].word
            too_long = words[last].end - words[first].start > layout.max_cue_seconds
            too_long = too_long or last - first >= max_words
            shown = ": ".join(filter(None, [name, text.strip()]))
            if last > first and (too_long or len(wrap(shown, width)) > max_lines):
                break
            seconds = max(layout.min_cue_seconds, len(text) / speed)
            stop = _end(words[first].start, words[last].end, seconds, starts[last + 1], layout)
            lacking = seconds - (stop - words[first].start)
            crossed = sum(strengths[first:last])
            cost = 1 + _MOST - strengths[last] + 0.7 * crossed + 4 * max(0.0, lacking)
            if best[first][0] + cost < best[last + 1][0]:
                best[last + 1] = (best[first][0] + cost, first, stop, text.strip())
    made = list[Caption]()
    after = len(words)
    while after:
        _, after, stop, text = best[after]
        made.append((starts[after], stop, text))
    return made[::-1]


def _strength(word: Word, after: float) -> float:
    """Rate, from 0 to 3, a caption's end behind a word. after: when the next word begins"""
    clause = float(CLAUSE_ENDED.search(word.word) is not None)
    marked = _MOST if SENTENCE_ENDED.search(word.word) else clause
    return max(marked, min(_MOST, 4 * (after - word.end)))


def _end(start: float, end: float, seconds: float, after: float, layout: Layout) -> float:
    """The end of a caption that is spoken from `start` to `end` and read in some seconds, if the next begins at `after`."""
    wanted = min(max(end, start + seconds), start + layout.max_cue_seconds)
    return max(min(wanted, after - layout.cue_gap), (start + min(end, after)) / 2)


def _balanced(text: str, max_width: int) -> str:
    """The text in as few lines as it needs, of about the same length."""
    lines = wrap(text, max_width)
    narrower = (wrap(text, n) for n in range(columns(text) // len(lines), max_width))
    return "\n".join(next((each for each in narrower if len(each) == len(lines)), lines))
