"""--show-draft: text that shows where each of its tokens comes from.

On a terminal with colour, in its own colours; on one without, between brackets; in a pipe or a file
nothing is added. NO_COLOR (no-color.org) and TERM are heeded.
"""

import curses
import os
from collections.abc import Mapping
from itertools import groupby
from typing import TextIO

from decoder import Response

Marks = Mapping[str, tuple[str, str]]
"""What goes before and after the text of an origin. Those that are missing are not marked."""

# Of the 16 colours that a terminal's theme makes legible; the underline is for who cannot tell
# green from red.
_COLOURS = {
    "copied": ("\033[35m", "\033[0m"),
    "drafted": ("\033[32m", "\033[0m"),
    "corrected": ("\033[4;91m", "\033[0m"),
}
_BRACKETS = {"copied": ("{", "}"), "drafted": ("[", "]"), "corrected": ("<", ">")}
_MEANINGS = {
    "copied": "copied and accepted",
    "drafted": "drafted and accepted",
    "corrected": "corrected by the target",
}
_NAMES = {"copied": "magenta", "drafted": "green", "corrected": "red, underlined"}


def marks_for(stream: TextIO) -> Marks:
    """The marks that can be shown on the stream."""
    if not stream.isatty():
        return {}
    return _COLOURS if _has_colour(stream) else _BRACKETS


def _has_colour(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    try:
        curses.setupterm(fd=stream.fileno())
        return curses.tigetnum("colors") >= 8
    except curses.error:  # TERM is not set, or unknown
        return False


def painted(response: Response, marks: Marks) -> str:
    """The response's text, with the marks of its tokens' origins around it.

    Without the marks it is `response.text`. A character made of several tokens has the mark of the
    last one. A space before a word stays outside its mark.
    """
    texts = [pair for pair in zip(response.origins, response.texts, strict=True) if pair[1]]
    runs = groupby(texts, key=lambda pair: pair[0])
    return "".join(_mark(origin, "".join(t for _, t in run), marks) for origin, run in runs)


def _mark(origin: str, text: str, marks: Marks) -> str:
    word = text.lstrip(" ")
    if not word or origin not in marks:
        return text
    before, after = marks[origin]
    return " " * (len(text) - len(word)) + before + word + after


def legend(marks: Marks, stream: TextIO) -> str:
    """One line on what the marks mean, for the stream: without escape codes unless it is a
    terminal."""
    if marks is _COLOURS and not stream.isatty():
        parts = [f"{_NAMES[origin]}: {meaning}" for origin, meaning in _MEANINGS.items()]
    else:
        parts = [_mark(origin, meaning, marks) for origin, meaning in _MEANINGS.items()]
    return ", ".join(parts) + ", plain: the target's own"
