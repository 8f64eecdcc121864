"""--show-draft: colour each token of a text by where it comes from.

On a terminal, unless TERM or NO_COLOR (no-color.org) rules colours out. All else gets plain text.
"""

import os
from itertools import groupby
from typing import TextIO

from decoder import Response

# From the 16 colours that a terminal's theme keeps legible; underlined for readers who cannot tell
# green from red.
_COLOURS = {
    "forced": ("\033[34m", "\033[0m"),
    "lookup": ("\033[35m", "\033[0m"),
    "draft_model": ("\033[32m", "\033[0m"),
    "corrected": ("\033[4;91m", "\033[0m"),
}
_MEANINGS = {
    "lookup": ("magenta", "prompt lookup's, accepted"),
    "draft_model": ("green", "the draft model's, accepted"),
    "corrected": ("red, underlined", "the target's, in place of a rejected token"),
    "forced": ("blue", "forced by the form of the output"),
}


def coloured(stream: TextIO) -> bool:
    """Whether the stream shows colours."""
    colourless = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR")
    return stream.isatty() and not colourless


def painted(response: Response) -> str:
    """The response's text, with each run of tokens coloured by its origin.

    A character made of several tokens takes the colour of the last one. A space before a word stays outside.
    """
    texts = [pair for pair in zip(response.origins, response.texts, strict=True) if pair[1]]
    runs = groupby(texts, key=lambda pair: pair[0])
    return "".join(_paint(origin, "".join(t for _, t in run)) for origin, run in runs)


def _paint(origin: str, text: str) -> str:
    word = text.lstrip(" ")
    if not word or origin not in _COLOURS:
        return text
    before, after = _COLOURS[origin]
    return " " * (len(text) - len(word)) + before + word + after


def legend(stream: TextIO) -> str:
    """One line that explains the colours; with escape codes only if `stream` is a terminal."""
    parts = [
        _paint(origin, meaning) if stream.isatty() else f"{name}: {meaning}"
        for origin, (name, meaning) in _MEANINGS.items()
    ]
    return ", ".join([*parts, "no colour: the target's own"])
