"""--show-draft: mark where each token of a text comes from.

On a terminal, by colours, or by brackets if TERM or NO_COLOR (no-color.org) rules colours out. A pipe or a file gets
plain text.
"""

import os
from collections.abc import Mapping
from itertools import groupby
from typing import TextIO

from decoder import Response

Marks = Mapping[str, tuple[str, str]]
"""What goes before and after a text, by its origin; an origin that is missing gets no mark."""

# From the 16 colours that a terminal's theme keeps legible; underlined for readers who cannot tell
# green from red.
_COLOURS = {
    "copied": ("\033[35m", "\033[0m"),
    "drafted": ("\033[32m", "\033[0m"),
    "corrected": ("\033[4;91m", "\033[0m"),
}
_BRACKETS = {"copied": ("{", "}"), "drafted": ("[", "]"), "corrected": ("<", ">")}
_MEANINGS = {
    "copied": ("magenta", "copied and accepted"),
    "drafted": ("green", "drafted and accepted"),
    "corrected": ("red, underlined", "corrected by the target"),
}


def marks_for(stream: TextIO) -> Marks:
    """The marks that the stream can show."""
    if not stream.isatty():
        return {}
    colourless = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR")
    return _BRACKETS if colourless else _COLOURS


def painted(response: Response, marks: Marks) -> str:
    """The response's text, with each run of tokens marked by its origin.

    Without marks it is `response.text`. A character made of several tokens takes the mark of the
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
    """One line that explains the marks; with escape codes only if `stream` is a terminal."""
    named = marks is _COLOURS and not stream.isatty()
    parts = [
        f"{name}: {meaning}" if named else _mark(origin, meaning, marks)
        for origin, (name, meaning) in _MEANINGS.items()
    ]
    return ", ".join([*parts, "plain: the target's own"])
