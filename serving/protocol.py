"""OpenAI's JSON: a request's body to the options of its rows, and rows to an answer's body.

What would change a text and is not done here is refused, by name; so is what is unknown. A value that is null is as
good as none.
"""

import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from decoder import Options
from errors import InputError
from serving.engine import START, Progress
from speculative.processors import CountPenalty
from speculative.row import Row, Stats

# Fields of a request -> of options.Options.
_RENAMED = {"temperature": "temp", "n": "num_samples"}
_OPTIONS = {
    **_RENAMED,
    **{
        name: name
        for name in (
            *("max_tokens", "top_p", "seed", "stop", "logit_bias"),
            *("num_draft", "top_k", "min_p", "min_tokens", "no_repeat_ngram_size"),
            *("repetition_penalty", "repetition_context_size", "bad_words_ids", "suppress_tokens"),
            *("forced_bos_token_id", "forced_eos_token_id", "source_lang", "target_lang"),
        )
    },
}
_OURS = {"model", "stream", "stream_options", "origins", "presence_penalty", "frequency_penalty"}
_OURS |= {"logprobs"}
_COMPLETION = {"prompt"}
_CHAT = {"messages", "max_completion_tokens", "top_logprobs"}
_OF_NO_MATTER = {  # to a text
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls"),
}
_NEUTRAL: dict[str, tuple] = {  # what is not done -> the values that ask for nothing
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_MOST = {  # of what a step's time or memory grows with
    "n": 64,
    "logprobs": 20,
    "top_logprobs": 20,
    "no_repeat_ngram_size": 64,
    "num_draft": 64,
}
_LONGEST = {"prompt": 256, "stop": 16, "logit_bias": 1024, "bad_words_ids": 256}  # lists
_DIGITS = 18


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    model: str | None
    prompts: list[str]  # of a completion
    messages: list[dict[str, str]]  # of a chat: role and content
    options: Options
    stream: bool
    include_usage: bool  # at a stream's end
    origins: bool


# ---------------------------------------------------------------------------------------------
# Requests


def read_json(body: bytes) -> dict[str, Any]:
    """A request's body; InputError for one that is no JSON object."""
    try:
        value = json.loads(
            body, parse_int=_integer, parse_float=_finite_number, parse_constant=_no_constant
        )
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # no UTF-8 either
        reason = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise InputError("the body is not a JSON object")
    return {name: of_name for name, of_name in value.items() if of_name is not None}


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise InputError("the body has a number of too many digits")
    return int(digits)


def _finite_number(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise InputError("the body has a number that is too large")
    return number


def _no_constant(name: str) -> None:
    raise InputError(f"the body is not JSON: it has {name}")


def parse(fields: Mapping[str, Any], defaults: Options, chat: bool) -> Asked:
    """What a body asks for; InputError for what cannot be had, and for what is no such request."""
    _check_names(fields, chat)
    options = _options(fields, defaults, chat)
    stream_options = _typed(fields, "stream_options", dict, {})
    return Asked(
        model=_typed(fields, "model", str, None),
        prompts=[] if chat else _prompts(fields),
        messages=_messages(fields) if chat else [],
        options=options,
        stream=_typed(fields, "stream", bool, False),
        include_usage=_typed(stream_options, "include_usage", bool, False),
        origins=_typed(fields, "origins", bool, False),
    )


def _check_names(fields: Mapping[str, Any], chat: bool) -> None:
    known = {*_OPTIONS, *_OURS, *_OF_NO_MATTER, *(_CHAT if chat else _COMPLETION)}
    for name, value in fields.items():
        if name in known or value in _NEUTRAL.get(name, ()):
            continue
        if name in _NEUTRAL:
            raise InputError(f"{name} is not supported here")
        if name in ("lookup", "delta", "acceptance"):
            raise InputError(f"{name} is the server's: it is set when that starts")
        raise InputError(f"there is no field {name[:50]!r}")


def _options(fields: Mapping[str, Any], defaults: Options, chat: bool) -> Options:
    for name, most in _MOST.items():
        value = fields.get(name)
        if isinstance(value, int) and value > most:
            raise InputError(f"{name} is {value}; {most} at most")
    for name, most in _LONGEST.items():
        value = fields.get(name)
        if isinstance(value, (list, dict)) and len(value) > most:
            raise InputError(f"{name} has {len(value)} entries; {most} at most")
    words = fields.get("bad_words_ids")
    of_words = [word for word in words if isinstance(word, list)] if isinstance(words, list) else []
    if sum(map(len, of_words)) > _LONGEST["bad_words_ids"]:
        raise InputError("bad_words_ids has too many tokens")
    given = {ours: fields[name] for name, ours in _OPTIONS.items() if name in fields}
    if "max_completion_tokens" in fields:
        given["max_tokens"] = fields["max_completion_tokens"]
    if "logit_bias" in given:
        given["logit_bias"] = _biases(given["logit_bias"])
    given |= _logprobs(fields, chat)
    penalties = [_penalty(fields, f"{kind}_penalty") for kind in ("presence", "frequency")]
    if any(penalties):
        given["processors"] = (*defaults.processors, CountPenalty(*penalties))
    try:
        return replace(defaults, **given)
    except InputError as error:
        names = {ours: name for name, ours in _RENAMED.items()}
        pattern = rf"\b({'|'.join(names)})\b"
        raise InputError(re.sub(pattern, lambda found: names[found[0]], str(error))) from None


def _logprobs(fields: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    if not chat:
        return {"logprobs": fields["logprobs"]} if "logprobs" in fields else {}
    if _typed(fields, "logprobs", bool, False):
        return {"logprobs": fields.get("top_logprobs", 0)}
    if "top_logprobs" in fields:
        raise InputError("top_logprobs needs logprobs: true")
    return {}


def _biases(value: Any) -> Any:
    """JSON's keys are texts."""
    try:
        return {int(token): bias for token, bias in value.items()}
    except (ValueError, AttributeError):
        raise InputError("logit_bias is not an object of tokens' ids with a number each") from None


def _penalty(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name, 0.0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -2 <= value <= 2:
        raise InputError(f"{name} is not a number from -2 to 2")
    return float(value)


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        what = {bool: "true or false", str: "a text", dict: "an object"}[kind]
        raise InputError(f"{name} is not {what}")
    return value


def _prompts(fields: Mapping[str, Any]) -> list[str]:
    prompt = fields.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise InputError("prompt is not a text or a list of texts")
    if not all(isinstance(text, str) for text in prompts):
        raise InputError("prompt has to be text here, not tokens")
    return prompts


def _messages(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InputError("messages is not a list of messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError("a message is an object with role and content")
    content = message.get("content")
    if isinstance(content, list):  # of parts
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise InputError("a message's content has to be text here")
        content = "".join(map(str, parts))
    if not isinstance(content, str):
        raise InputError("a message's content is not text")
    return {"role": message["role"], "content": content}


# ---------------------------------------------------------------------------------------------
# Answers


class Writer:
    """The bodies of a request's answers. Its rows are its prompts in their order, `num_samples` of each."""

    def __init__(self, asked: Asked, rows: Sequence[Row], model: str, piece: Callable[[int], str]):
        """piece: the text of a token."""
        self._asked, self._rows, self._piece = asked, rows, piece
        self._chat = bool(asked.messages)
        kind = (
            ("chat.completion.chunk" if asked.stream else "chat.completion") if self._chat else ""
        )
        self._head = {
            "id": ("chatcmpl-" if self._chat else "cmpl-") + uuid.uuid4().hex,
            "object": kind or "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, ends: Sequence[Progress]) -> dict[str, Any]:
        """The answer, where all rows have ended like this."""
        choices = [self._choice(i, START, end) for i, end in enumerate(ends)]
        return {**self._head, "choices": choices, "usage": self._usage(ends)}

    def begin(self) -> Iterator[dict[str, Any]]:
        """What a stream begins with."""
        for index in range(len(self._rows) if self._chat else 0):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def part(self, index: int, before: Progress, now: Progress) -> dict[str, Any]:
        """What a row has gained, as a chunk of a stream."""
        return self._chunk(self._choice(index, before, now))

    def end(self, ends: Sequence[Progress]) -> Iterator[dict[str, Any]]:
        """What a stream ends with."""
        if self._asked.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage(ends)}

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
            choice["stats"] = _counts(now.stats)
        return choice

    def _scored(self, row: Row, new: slice) -> dict[str, Any] | None:
        if row.options.logprobs is None:
            return None
        scores = list(zip(row.texts[new], row.logprobs[new], row.best[new], strict=True))
        if self._chat:
            content = [
                {
                    **_token(text, score),
                    "top_logprobs": [_token(self._piece(t), s) for t, s in best],
                }
                for text, score, best in scores
            ]
            return {"content": content, "refusal": None}
        offset, offsets = len("".join(row.texts[: new.start])), []
        for text, _, _ in scores:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": [text for text, _, _ in scores],
            "token_logprobs": [_finite(score) for _, score, _ in scores],
            "top_logprobs": [
                {self._piece(token): _finite(of_token) for token, of_token in best}
                for _, _, best in scores
            ],
            "text_offset": offsets,
        }

    def _usage(self, ends: Sequence[Progress]) -> dict[str, Any]:
        read = sum(len(row.prompt) for row in self._rows[:: self._asked.options.num_samples])
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


def _counts(stats: Stats) -> dict[str, int]:
    return {
        "tokens": stats.tokens,
        "target_calls": stats.target_calls,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
    }


def _token(text: str, score: float) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(score), "bytes": list(text.encode())}


def _finite(score: float) -> float:
    """JSON has no infinities: OpenAI's own number for what is impossible."""
    return score if score > -9999 else -9999.0


def pieces(tokenizer: Tokenizer) -> Callable[[int], str]:
    """What says a token's text, as it is within a text: with the space before it."""
    before = tokenizer.encode("a", add_special_tokens=False).ids
    known = tokenizer.decode(before, skip_special_tokens=False)

    @lru_cache(maxsize=1 << 16)
    def piece(token: int) -> str:
        return tokenizer.decode([*before, token], skip_special_tokens=False)[len(known) :]

    return piece


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an answer that is an error."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
