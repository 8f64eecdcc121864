"""OpenAI's answers: turns rows into bodies, whole or in chunks of a stream."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from serving.engine import START, Progress
from serving.requests import Chat, Fields
from speculative.row import Row, Stats

Piece = Callable[[int, bool], str]


class Writer:
    """Writes the bodies of a request's answers. Its rows are its prompts in order, `num_samples` of each."""

    def __init__(self, asked: Fields, rows: Sequence[Row], model: str, piece: Piece):
        """piece: see `pieces`."""
        self._asked, self._rows, self._piece = asked, rows, piece
        self._told = [START] * len(rows)  # progress that the stream has sent
        self._chat = isinstance(asked, Chat)
        kind, name = ("chat.completion", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and asked.stream else kind,
            "created": int(time.time()),
            "model": model,
            "seed": rows[0].options.seed,  # null: none was needed
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
        texts, scores = row.texts[new], row.logprobs[new]
        offsets = [*accumulate(map(len, row.texts[: new.stop]), initial=0)][new]
        best = [
            [(self._piece(token, not offset), score) for token, score in pairs]
            for pairs, offset in zip(row.best[new], offsets, strict=True)
        ]
        if self._chat:
            content = [
                _token(text, score) | {"top_logprobs": [_token(*pair) for pair in pairs]}
                for text, score, pairs in zip(texts, scores, best, strict=True)
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": texts,
            "token_logprobs": scores,
            "top_logprobs": [dict(reversed(pairs)) for pairs in best],
            "text_offset": offsets,
        }

    def _usage(self, ends: Sequence[Progress]) -> dict[str, Any]:
        samples = self._rows[0].options.num_samples
        read = sum(len(row.prompt) for row in self._rows[::samples])
        cached = sum(end.stats.cached_tokens for end in ends[::samples])
        stats = sum((end.stats for end in ends), Stats())
        return {
            "prompt_tokens": read,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": stats.tokens,
            "total_tokens": read + stats.tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.draft_tokens - stats.accepted,
            },
        }


def _token(text: str, score: float) -> dict[str, Any]:
    return {"token": text, "logprob": score, "bytes": list(text.encode())}


def counts(stats: Stats) -> dict[str, int]:
    """The counts of tokens and calls."""
    names = ("tokens", "target_calls", "draft_tokens", "accepted")
    return {name: getattr(stats, name) for name in names}


def pieces(tokenizer: Tokenizer) -> Piece:
    """A function that gives a token's text: with the space before it, unless it is a text's first."""
    before = tokenizer.encode("a", add_special_tokens=False).ids
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    known = len(decode(before))
    return lambda token, first: decode([token]) if first else decode([*before, token])[known:]


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
