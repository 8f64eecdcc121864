"""OpenAI's answers: turns rows into bodies, whole or in chunks of a stream."""

import json
import re
import time
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from serving.engine import START, Progress
from serving.requests import Chat, Fields
from serving.transport import event_of
from speculative.row import Row, Stats
from text.thinking import Thinking
from text.tokenizer import token_bytes

Piece = Callable[[int, bool], tuple[str, bytes]]
_STRING = r'"(?:[^"\\]|\\.)*"'  # JSON's
_NAMED = re.compile(rf'\{{"name": ({_STRING}), "arguments": ')


class Call:
    """Splits the call of a function that a row writes, {"name": ..., "arguments": ...}, as its text arrives."""

    def __init__(self) -> None:
        self.id = f"call_{uuid.uuid4().hex}"
        self._text = ""
        self._sent = 0  # characters of the arguments

    def push(self, text: str) -> tuple[str | None, str]:
        """Add the text's next piece. Returns the function's name, once it is complete, and more of its arguments."""
        before = _NAMED.match(self._text)
        self._text += text
        head = _NAMED.match(self._text)
        if head is None:
            return None, ""
        arguments = self._text[head.end() :]
        outside = re.sub(f"{_STRING}?", "", arguments) if arguments.endswith("}") else ""
        if outside.count("}") > outside.count("{"):  # the last one ends the call
            arguments = arguments[:-1]
        new = arguments[self._sent :]
        self._sent = len(arguments)
        return None if before else json.loads(head[1]), new


class Writer:
    """Writes the bodies of a request's answers. Its rows are its prompts in order, `num_samples` of each."""

    def __init__(
        self,
        request: Fields,
        rows: Sequence[Row],
        model: str,
        piece: Piece,
        thinking: Sequence[Thinking],
    ):
        """piece: see `pieces`; thinking: one for each row."""
        self._request = request
        self._rows = rows
        self._piece = piece
        self._thinking = thinking
        self._sent = [START] * len(rows)  # progress that the stream has sent
        self._chat = isinstance(request, Chat)
        is_call = isinstance(request, Chat) and request.callable_tools
        self._calls = [Call() for _ in rows] if is_call else []
        kind, name = ("chat.completion", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and request.stream else kind,
            "created": int(time.time()),
            "model": model,
            "seed": rows[0].options.seed,  # null: none was needed
        }

    def event(self, body: dict[str, Any]) -> str:
        """A body of a stream as its event."""
        return event_of(body)

    def whole(self, ends: Sequence[Progress]) -> dict[str, Any]:
        """The whole answer, once all rows have ended."""
        choices = [self._choice(i, START, end) for i, end in enumerate(ends)]
        return {**self._head, "choices": choices, "usage": self._usage(ends)}

    def begin(self) -> Iterator[dict[str, Any]]:
        """The first chunks of a stream."""
        for index in range(len(self._rows) if self._chat else 0):
            delta = {"role": "assistant", "content": None if self._calls else ""}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def chunks(self, progress: Sequence[Progress]) -> Iterator[dict[str, Any]]:
        """Chunks with what the rows have gained since the last."""
        sent = self._sent
        self._sent = list(progress)
        for index, (before, now) in enumerate(zip(sent, progress, strict=True)):
            if now is not before:
                yield self._chunk(self._choice(index, before, now))

    def end(self) -> Iterator[dict[str, Any]]:
        """The last chunks of a stream."""
        if self._request.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage(self._sent)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._request.include_usage else chunk

    def _choice(self, index: int, before: Progress, now: Progress) -> dict[str, Any]:
        row = self._rows[index]
        new = slice(before.tokens, now.tokens)
        texts = row.texts[new]
        thought, text = self._split(index, before, now)
        choice: dict[str, Any] = {"index": index}
        if not self._chat:
            choice["text"] = text
        else:
            message = self._call(index, text) if self._calls else {"content": text}
            if thought:
                message["reasoning_content"] = thought
            if self._request.stream:
                choice["delta"] = message
            else:
                choice["message"] = {"role": "assistant", "refusal": None, **message}
        choice["logprobs"] = self._scored(row, new)
        choice["finish_reason"] = now.finish_reason
        if self._calls and now.finish_reason == "stop":
            choice["finish_reason"] = "tool_calls"
        if self._request.origins:
            choice["origins"] = [list(pair) for pair in zip(texts, row.origins[new], strict=True)]
            choice["stats"] = {"tokens": now.stats.tokens, **now.stats.drafting}
        return choice

    def _split(self, index: int, before: Progress, now: Progress) -> tuple[str, str]:
        """The thoughts and the text that a row has gained."""
        text = "".join(self._rows[index].texts[before.tokens : now.tokens])
        return self._thinking[index].push(text, bool(now.finish_reason))

    def _call(self, index: int, text: str) -> dict[str, Any]:
        """The fields that a piece of a row's text adds to its message, which is a tool's call."""
        name, arguments = self._calls[index].push(text)
        call: dict[str, Any] = {"function": {"arguments": arguments}}
        if name is not None:
            call = {"id": self._calls[index].id, "type": "function", **call}
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
        positions = range(new.start, new.stop)
        first = next((i for i, token in enumerate(tokens) if self._piece(token, False)[1]), 0)
        scored = [_token(self._piece(tokens[i], i <= first), row.logprobs[i]) for i in positions]
        best = [
            [_token(self._piece(token, i <= first), score) for token, score in row.best[i]]
            for i in positions
        ]
        if self._chat:
            pairs = zip(scored, best, strict=True)
            content = [token | {"top_logprobs": others} for token, others in pairs]
            return {"content": content, "refusal": None}
        return {
            "tokens": [token["token"] for token in scored],
            "token_logprobs": row.logprobs[new],
            "top_logprobs": [{t["token"]: t["logprob"] for t in others[::-1]} for others in best],
            "text_offset": [*accumulate(map(len, row.texts[: new.stop]), initial=0)][new],
        }

    def _usage(self, ends: Sequence[Progress]) -> dict[str, Any]:
        samples = self._rows[0].options.num_samples
        prompt_tokens = sum(len(row.prompt) for row in self._rows[::samples])
        cached = sum(end.stats.cached_tokens for end in ends[::samples])
        stats = sum((end.stats for end in ends), Stats())
        return {
            "prompt_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": stats.tokens,
            "total_tokens": prompt_tokens + stats.tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.draft_tokens - stats.accepted,
            },
        }


def _token(piece: tuple[str, bytes], score: float) -> dict[str, Any]:
    name, data = piece
    return {"token": name, "logprob": score, "bytes": list(data)}


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


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
