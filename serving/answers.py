"""OpenAI's answers: turns rows into bodies, whole or in chunks of a stream."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from serving.engine import START, Progress
from serving.requests import Asked, Chat
from speculative.row import Row, Stats


class Writer:
    """Writes the bodies of a request's answers. Its rows are its prompts in order, `num_samples` of each."""

    def __init__(self, asked: Asked, rows: Sequence[Row], model: str, piece: Callable[[int], str]):
        """piece: the text of a token."""
        self._asked, self._rows, self._piece = asked, rows, piece
        self._told = [START] * len(rows)  # progress that the stream has sent
        self._chat = isinstance(asked, Chat)
        kind, name = ("chat.completion", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and asked.stream else kind,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, ends: Sequence[Progress]) -> dict[str, Any]:
        """The whole answer, once all rows have ended."""
        choices = [self._choice(i, START, end) for i, end in enumerate(ends)]
        return {**self._head, "choices": choices, "usage": self._usage(ends)}

    def begin(self) -> Iterator[dict[str, Any]]:
        """The first chunks of a stream."""
        for index in range(len(self._rows) if self._chat else 0):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def chunks(self, progress: Sequence[Progress]) -> Iterator[dict[str, Any]]:
        """Chunks with what the rows have gained since the last."""
        told, self._told = self._told, list(progress)
        for index, (before, now) in enumerate(zip(told, progress, strict=True)):
            if now is not before:
                yield self._chunk(self._choice(index, before, now))

    def end(self) -> Iterator[dict[str, Any]]:
        """The last chunks of a stream."""
        if self._asked.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage(self._told)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._asked.include_usage else chunk

    def _choice(self, index: int, before: Progress, now: Progress) -> dict[str, Any]:
        row, new = self._rows[index], slice(before.tokens, now.tokens)
        texts = row.texts[new]
        text = "".join(texts)
        choice: dict[str, Any] = {"index": index}
        if not self._chat:
            choice["text"] = text
        elif self._asked.stream:
            choice["delta"] = {"content": text}
        else:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        choice["logprobs"] = self._scored(row, new)
        choice["finish_reason"] = now.finish_reason
        if self._asked.origins:
            choice["origins"] = [list(pair) for pair in zip(texts, row.origins[new], strict=True)]
            choice["stats"] = counts(now.stats)
        return choice

    def _scored(self, row: Row, new: slice) -> dict[str, Any] | None:
        if row.options.logprobs is None:
            return None
        scores = list(zip(row.texts[new], row.logprobs[new], row.best[new], strict=True))
        if self._chat:
            content = [
                _token(text, score)
                | {"top_logprobs": [_token(self._piece(token), s) for token, s in best]}
                for text, score, best in scores
            ]
            return {"content": content, "refusal": None}
        lengths = [len(text) for text in row.texts[: new.stop]]
        return {
            "tokens": [text for text, _, _ in scores],
            "token_logprobs": [score for _, score, _ in scores],
            "top_logprobs": [
                {self._piece(token): of_token for token, of_token in best} for _, _, best in scores
            ],
            "text_offset": list(accumulate(lengths, initial=0))[new.start : new.stop],
        }

    def _usage(self, ends: Sequence[Progress]) -> dict[str, Any]:
        read = sum(len(row.prompt) for row in self._rows[:: self._rows[0].options.num_samples])
        stats = sum((end.stats for end in ends), Stats())
        return {
            "prompt_tokens": read,
            "completion_tokens": stats.tokens,
            "total_tokens": read + stats.tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.drafted - stats.accepted,
            },
        }


def _token(text: str, score: float) -> dict[str, Any]:
    return {"token": text, "logprob": score, "bytes": list(text.encode())}


def counts(stats: Stats) -> dict[str, int]:
    """The counts of tokens and calls."""
    names = ("tokens", "target_calls", "drafted", "accepted")
    return {name: getattr(stats, name) for name in names}


def pieces(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function that gives a token's text as within a text, with the space before it."""
    before = tokenizer.encode("a", add_special_tokens=False).ids
    known = len(tokenizer.decode(before, skip_special_tokens=False))
    return lambda token: tokenizer.decode([*before, token], skip_special_tokens=False)[known:]


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
