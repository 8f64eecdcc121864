"""OpenAI's answers: turns rows into bodies, whole or in chunks of a stream."""

import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from serving.engine import START, Progress
from serving.requests import Chat, Fields
from serving.transport import RowStep, event_of
from speculative.row import Row, Stats
from text.thinking import Thinking
from text.tokenizer import token_bytes

Piece = Callable[[int, bool], tuple[str, bytes]]
Bodies = Iterator[dict[str, Any]]
_NAMED = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')


class Call:
    """Splits the call of a function that a row writes, {"name": ..., "arguments": ...}, as its text arrives."""

    def __init__(self) -> None:
        self.id = f"call_{uuid.uuid4().hex}"
        self._text = ""
        self._sent = 0  # characters; 0: not even the name

    def push(self, text: str, finish_reason: str | None) -> tuple[str | None, str]:
        """Add the text's next piece. Returns the function's name, once it is complete, and more of its arguments."""
        self._text += text
        head = _NAMED.match(self._text)
        if head is None:
            return None, ""
        name = None if self._sent else json.loads(head[1])
        end = len(self._text)
        if self._text.endswith("}") and finish_reason != "length":  # the call's, or sent later
            end -= 1
        arguments = self._text[max(self._sent, head.end()) : end]
        self._sent = end
        return name, arguments


class Writer:
    """Writes the bodies of a request's answers. Its rows are its prompts in order, `num_samples` of each."""

    def __init__(self, request: Fields, rows: Mapping[Row, Thinking], model: str, piece: Piece):
        """rows: with a splitter for the text of each; piece: see `pieces`."""
        self.rows = [*rows]
        self._request = request
        self._thinking = rows
        self._piece = piece
        self._ends = dict.fromkeys(rows, START)  # of what has been written
        self._chat = isinstance(request, Chat)
        is_call = isinstance(request, Chat) and request.callable_tools
        self._calls = {row: Call() for row in rows} if is_call else {}
        kind, name = ("chat.completion", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and request.stream else kind,
            "created": int(time.time()),
            "model": model,
            "seed": self.rows[0].options.seed,  # null: none was needed
        }

    async def events(self, steps: AsyncIterator[RowStep]) -> AsyncIterator[str]:
        """A stream."""
        for body in self.begin():
            yield self.event(body)
        async for step in steps:
            for body in self.chunks(step):
                yield self.event(body)
        for body in self.end():
            yield self.event(body)
        yield "data: [DONE]\n\n"

    def event(self, body: dict[str, Any]) -> str:
        """A body of a stream as its event."""
        return event_of(body)

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        """The whole answer, once all rows have ended."""
        choices = [self._choice(RowStep(row, START, ends[row])) for row in self.rows]
        self._ends |= ends
        return {**self._head, "choices": choices, "usage": self._usage()}

    def begin(self) -> Bodies:
        """The first chunks of a stream."""
        for index in range(len(self.rows) if self._chat else 0):
            delta = {"role": "assistant", "content": None if self._calls else ""}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def chunks(self, step: RowStep) -> Bodies:
        """Chunks with what a row has gained."""
        self._ends[step.row] = step.now
        yield self._chunk(self._choice(step))

    def end(self) -> Bodies:
        """The last chunks of a stream."""
        if self._request.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage()}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._request.include_usage else chunk

    def _choice(self, step: RowStep) -> dict[str, Any]:
        finish_reason = step.now.finish_reason
        thought, text = self._split(step)
        choice: dict[str, Any] = {"index": self.rows.index(step.row)}
        if not self._chat:
            choice["text"] = text
        else:
            message = self._call(step, text) if self._calls else {"content": text}
            if thought:
                message["reasoning_content"] = thought
            if self._request.stream:
                choice["delta"] = message
            else:
                choice["message"] = {"role": "assistant", "refusal": None, **message}
        choice["logprobs"] = self._scored(step.row, step.new)
        is_call = self._calls and finish_reason == "stop"
        choice["finish_reason"] = "tool_calls" if is_call else finish_reason
        if self._request.origins:
            choice |= step.drafts()
        return choice

    def _split(self, step: RowStep) -> tuple[str, str]:
        """The thoughts and the text that a row has gained."""
        text = "".join(step.row.texts[step.new])
        return self._thinking[step.row].push(text, bool(step.now.finish_reason))

    def _call(self, step: RowStep, text: str) -> dict[str, Any]:
        """The fields that a piece of a row's text adds to its message, which is a tool's call."""
        name, arguments = self._calls[step.row].push(text, step.now.finish_reason)
        call: dict[str, Any] = {"function": {"arguments": arguments}}
        if name is not None:
            call = {"id": self._calls[step.row].id, "type": "function", **call}
            call["function"]["name"] = name
        elif not arguments:
            return {"content": None}
        if self._request.stream:
            call["index"] = 0
        return {"content": None, "tool_calls": [call]}

    def _scored(self, row: Row, new: slice) -> dict[str, Any] | None:
        if row.options.logprobs is None:
            return None
        tokens = row.generated
        first = next((i for i, token in enumerate(tokens) if self._piece(token, False)[1]), 0)

        def scored(i: int, token: int, score: float) -> dict[str, Any]:
            name, data = self._piece(token, i <= first)
            return {"token": name, "logprob": score, "bytes": list(data)}

        content = [
            scored(i, tokens[i], row.logprobs[i])
            | {"top_logprobs": [scored(i, *best) for best in row.best[i]]}
            for i in range(new.start, new.stop)
        ]
        if self._chat:
            return {"content": content, "refusal": None}
        return {
            "tokens": [token["token"] for token in content],
            "token_logprobs": row.logprobs[new],
            "top_logprobs": [
                {best["token"]: best["logprob"] for best in token["top_logprobs"][::-1]}
                for token in content
            ],
            "text_offset": [*accumulate(map(len, row.texts[: new.stop]), initial=0)][new],
        }

    def _usage(self) -> dict[str, Any]:
        prompts = self.rows[:: self.rows[0].options.num_samples]
        prompt_tokens = sum(len(row.prompt) for row in prompts)
        stats = sum((end.stats for end in self._ends.values()), Stats())
        return {
            "prompt_tokens": prompt_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(self._ends[row].stats.cached_tokens for row in prompts)
            },
            "completion_tokens": stats.tokens,
            "total_tokens": prompt_tokens + stats.tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.draft_tokens - stats.accepted,
            },
        }


def pieces(tokenizer: Tokenizer, hidden: Container[int]) -> Piece:
    """A function that gives a token's name and bytes: with the space before it, unless it is a text's first."""
    bytes_of = token_bytes(tokenizer, hidden)

    def piece(token: int, first: bool) -> tuple[str, bytes]:
        text = bytes_of(token)
        if not text:  # special: shown unless it is hidden
            name = tokenizer.id_to_token(token) or ""
            return name, b"" if token in hidden else name.encode()
        if first and not tokenizer.decode([token]).startswith(" "):
            text = text.removeprefix(b" ")
        return text.decode(errors="backslashreplace"), text

    return piece
