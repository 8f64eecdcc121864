"""Showing responses: as text, as JSON or, with --show-draft, with each token coloured by where it comes from."""

import json
import os
import sys
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from common.reporting import reporter
from decoder import Response
from terminal import cli

# Of the 16 that a terminal's theme keeps legible; underlined for who cannot tell green from red
_COLOURS = {  # by origin
    "lookup": ("\033[35m", "magenta", "prompt lookup's, accepted"),
    "draft_model": ("\033[32m", "green", "the draft model's, accepted"),
    "corrected": ("\033[4;91m", "red, underlined", "the target's, in place of a rejected token"),
    "forced": ("\033[34m", "blue", "forced by the form of the output"),
}


@dataclass(frozen=True)
class Display:
    """The flags for showing responses."""

    as_json: bool = False
    verbose: bool = False  # statistics at the end
    in_colour: bool = False

    def text(self, response: Response) -> str:
        return painted(response) if self.in_colour else response.text

    def line(self, index: int, response: Response) -> str:
        """The response to a file's prompt `index`, on one line."""
        return to_json(index, response) if self.as_json else cli.one_line(self.text(response))


def to_json(index: int, response: Response) -> str:
    """The response as a JSON object on one line."""
    stats = response.stats
    counts = {**stats.drafting, "accepted_lengths": stats.histogram()}
    times = {"seconds": stats.seconds, "preparing_seconds": stats.preparing_seconds}
    fields = {"index": index, **vars(response), "stats": counts | times}
    fields["from_draft"] = response.from_draft
    fields["mean_logprob"] = response.mean_logprob
    left_out = {name for name in ("score", "seed") if fields[name] is None}
    if response.logprobs is None:
        left_out |= {"logprobs", "top_logprobs", "mean_logprob"}
    shown = {name: value for name, value in fields.items() if name not in left_out}
    return json.dumps(shown, ensure_ascii=False)


def coloured(stream: TextIO) -> bool:
    """Whether the stream shows colours: a terminal, unless TERM or NO_COLOR (no-color.org) rules them out."""
    colourless = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR")
    return stream.isatty() and not colourless


def painted(response: Response) -> str:
    """The text with each run of tokens coloured by origin; a character of several tokens takes the last one's colour."""
    texts = [pair for pair in zip(response.origins, response.texts, strict=True) if pair[1]]
    runs = groupby(texts, key=lambda pair: pair[0])
    return "".join(_paint(origin, "".join(t for _, t in run)) for origin, run in runs)


def _paint(origin: str, text: str) -> str:
    word = text.lstrip(" ")
    if not word or origin not in _COLOURS:
        return text
    return f"{' ' * (len(text) - len(word))}{_COLOURS[origin][0]}{word}\033[0m"


def show_legend() -> bool:
    """Whether stdout shows colours; says on stderr what they mean."""
    if not coloured(sys.stdout):
        return False
    parts = [f"{name}: {meaning}" for _, name, meaning in _COLOURS.values()]
    reporter.note(", ".join([*parts, "no colour: the target's own"]))
    return True
