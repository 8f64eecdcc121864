"""A text that a sound's transcript will resemble, such as a script or an earlier transcript: drafts are copied from it."""

import html
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import regex

from apps.speech.rules import SECONDS_PER_TIMESTAMP, Special
from speculative.common.errors import InputError
from speculative.text import cues

Part = tuple[float | None, float | None, str]  # start and end in seconds, if known, and text
Encode = Callable[[str], list[int]]
_LONG = 4  # tokens that match by no chance


def parse(text: str) -> tuple[Part, ...]:
    """The parts of a reference: subtitles, a plain text, or JSON with `segments`, `text` or `content`, or InputError."""
    try:
        content = json.loads(text, parse_int=float)
    except ValueError:
        content = None
    except RecursionError:
        content = {}
    if not isinstance(content, dict):
        return tuple(_cues(text)) or _sentences(text)
    try:
        if "segments" in content:
            parts = tuple(map(_segment, content["segments"]))
        else:
            parts = _sentences(content["text"] if "text" in content else content["content"])
        "".join(text for *_, text in parts).encode()
    except (KeyError, TypeError, ValueError):
        form = '{"segments": [{"start": 0.5, "end": 2.0, "text": "So."}]}; times are finite numbers'
        fault = f"the reference's JSON has no segments, text or content, as in {form}"
        raise InputError(fault) from None
    return parts


def _segment(values: Mapping[str, Any]) -> Part:
    """ValueError if a time is no finite number; it may be a text."""
    times = [float(str(values[name])) for name in ("start", "end")]  # a bool is no number
    if not all(map(math.isfinite, times)):
        raise ValueError
    return times[0], times[1], values["text"]


def _sentences(text: str) -> tuple[Part, ...]:
    sentences = filter(None, regex.split(r"(?<=\p{STerm})\s+", str.strip(text)))
    return tuple((None, None, sentence) for sentence in sentences)


def _cues(text: str) -> Iterator[Part]:
    for cue in cues.cues(text):
        lines = "\n".join(text[start:stop] for start, stop in cue.lines)
        yield cue.start, cue.end, html.unescape(cues.TAG.sub("", lines.replace("\\h", " ")))


class Reference:
    """Follows a sound's text through its reference, window by window."""

    def __init__(self, parts: Sequence[Part], encode: Encode, special: Special, longest: int):
        """longest: tokens that a window's text may have"""
        texts = [(start, end, encode(" ".join(text.split()))) for start, end, text in parts]
        self._parts = [(start, end, tokens) for start, end, tokens in texts if tokens]
        self._tokens = [token for *_, tokens in self._parts for token in tokens]
        self._special, self._longest = special, longest
        self._position = 0  # in the tokens, where the next window begins

    def follow(self, text: Sequence[int]) -> None:
        """Advance to the end of a window's text. text: its tokens"""
        self._position = self._after(text)

    def draft(self, seconds: float, rest: list[int]) -> list[int]:
        """The likely text of a window. seconds: when the window begins; rest: the beginning, if it is known"""
        position = self._after(rest)
        tokens = list(rest)
        before = 0  # tokens in the parts before
        for start, end, part in self._parts:
            begin = max(0, position - before)
            before += len(part)
            if begin < len(part) and len(tokens) < self._longest:
                if not (begin and tokens):
                    tokens.append(self._stamp(start, seconds))
                tokens += part[begin:]
                if end is not None:
                    tokens.append(self._stamp(end, seconds))
        return tokens

    def _stamp(self, time: float | None, window: float) -> int:
        """The timestamp of a time. One that is not known is wrong, but stands where the text will have one."""
        late = 0.0 if time is None else max(0.0, time - window)
        stamp = self._special.first_timestamp + round(late / SECONDS_PER_TIMESTAMP)
        return min(stamp, self._special.last_timestamp)

    def _after(self, text: Sequence[int]) -> int:
        """The position after a text, which is most probably near; if it is nowhere, the position as it is."""
        words = [token for token in text if self._special.is_text(token)]
        near = self._position + 2 * self._longest
        for start, end in ((self._position, near), (0, len(self._tokens))):
            matcher = SequenceMatcher(None, self._tokens[start:end], words, autojunk=False)
            blocks = [block for block in matcher.get_matching_blocks() if block.size >= _LONG]
            if blocks:
                return start + blocks[-1].a + len(words) - blocks[-1].b
        return self._position
