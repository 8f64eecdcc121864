"""An answer as its text grows: what the model thinks, the text, and its calls of functions."""

import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from apps.serving.engine import START
from apps.serving.transport import RowStep
from speculative.step.row import Row, Stats
from speculative.text.thinking import Thinking, before_mark

DONE = "data: [DONE]\n\n"  # ends a stream
CallParts = list[tuple[int, str | None, str]]
_DECODER = json.JSONDecoder()
_NAMED = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')


class Calls:
    """Splits a text into what is before its calls of functions, {"name": ..., "arguments": ...}, and these calls, as the
    text arrives. White space before the mark of the first call belongs to neither."""

    def __init__(self, mark: str):
        """mark: what begins the first call; "": it begins the text"""
        self.ids: list[str] = []  # of the calls that have begun
        self._mark = mark
        self._text = ""
        self._sent = [0]  # characters of the text before the calls, and of the arguments of each

    def push(self, text: str, is_last: bool) -> tuple[str, CallParts]:
        """What the text's next piece adds before the calls, and to calls: a call's number, its name if it is new, and
        more of its arguments."""
        self._text += text
        before, *rest = self._text.split(self._mark, 1) if self._mark else ("", self._text)
        if rest:
            before = before.rstrip()
        elif not is_last:  # its end may be the beginning of the mark
            before = before_mark(before, self._mark).rstrip()
        new: CallParts = []
        for i, (name, arguments) in enumerate(_calls_in("".join(rest))):
            if i == len(self.ids):
                self.ids.append(f"call_{uuid.uuid4().hex}")
                self._sent.append(0)
                new.append((i, name, self._unsent(i + 1, arguments)))
            elif len(arguments) > self._sent[i + 1]:
                new.append((i, None, self._unsent(i + 1, arguments)))
        return self._unsent(0, before), new

    def _unsent(self, part: int, text: str) -> str:
        begin = self._sent[part]
        self._sent[part] = len(text)
        return text[begin:]


def _calls_in(text: str) -> Iterator[tuple[str, str]]:
    """The name and the arguments of each call in a text, of the last one as far as it goes."""
    head = _NAMED.search(text)
    while head:
        end = len(text)
        with suppress(ValueError, RecursionError):  # not complete, or deeper than Python reads
            _, value_end = _DECODER.raw_decode(text, head.end())
            if text[value_end : value_end + 1] == "}":
                end = value_end
        yield json.loads(head[1]), text[head.end() : end]
        head = _NAMED.search(text, end)


class Answer:
    """A row's text, taken apart as it grows."""

    def __init__(self, row: Row, thinking: Thinking):
        self.row = row
        self.now = START  # what has been taken apart
        self.thinking = thinking
        self.calls: Calls | None = None
        if row.options.tools:
            self.calls = Calls("".join(row.options.tools["marks"][0].split()[:1]))

    def take(self, step: RowStep) -> tuple[str, str, CallParts]:
        """What a step adds to the thoughts, to the text and to the calls."""
        self.now = step.now
        is_last = bool(step.now.finish_reason)
        thought, text = self.thinking.push("".join(self.row.texts[step.new]), is_last)
        if self.calls is None:
            return thought, text, []
        return thought, *self.calls.push(text, is_last)


def head_of(row: Row, kind: str, name: str, model: str) -> dict[str, Any]:
    """What the body of an answer begins with. name: of the kind, in its id"""
    return {
        "id": f"{name}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "seed": row.options.seed,  # null: none was needed
    }


def usage_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """The tokens of prompts, in order, and of `num_samples` answers to each."""
    prompts = answers[:: answers[0].row.options.num_samples]
    prompt_tokens = sum(len(answer.row.prompt) for answer in prompts)
    stats = sum((answer.now.stats for answer in answers), Stats())
    cached_tokens = sum(answer.now.stats.cached_tokens for answer in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens": stats.tokens,
        "total_tokens": prompt_tokens + stats.tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.draft_tokens - stats.accepted,
        },
    }
