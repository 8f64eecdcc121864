"""--show-draft: text that shows where each of its tokens comes from.

On a terminal, in its own colours, or between brackets where TERM or NO_COLOR (no-color.org) says that it
has none; in a pipe or a file nothing is added.
"""

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
    "copied": ("magenta", "copied and accepted"),
    "drafted": ("green", "drafted and accepted"),
    "corrected": ("red, underlined", "corrected by the target"),
}


def marks_for(stream: TextIO) -> Marks:
    """The marks that can be shown on the stream."""
    if not stream.isatty():
        return {}
    colourless = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR")
    return _BRACKETS if colourless else _COLOURS


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
    """One line on what the marks mean, for the stream: no escape codes unless it is a terminal."""
    named = marks is _COLOURS and not stream.isatty()
    parts = [
        f"{name}: {meaning}" if named else _mark(origin, meaning, marks)
        for origin, (name, meaning) in _MEANINGS.items()
    ]
    return ", ".join([*parts, "plain: the target's own"])
