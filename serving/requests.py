"""OpenAI's requests: a body to the options of its rows.

The fields of decoding are those that speculative/options.py declares. What would change a text and is not done
here is refused by name; so is what is unknown. A value that is null is as good as none.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from pydantic_core import from_json

from errors import InputError
from speculative.options import DECLARED, Options
from speculative.processors import CountPenalty

_NEUTRAL: dict[str, tuple] = {  # what is not done -> the values that ask for nothing
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
_OF_NO_MATTER = (  # to a text
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls"),
)
_THE_SERVERS = ("lookup", "delta", "acceptance")
_NAMES = {d.request or name: name for name, d in DECLARED.items() if d.request is not None}
_MOST_PROMPTS = 256


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
# Fields


def _joined(content: Any) -> Any:
    """A message's content: a text, or parts of text."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    if not isinstance(content, str):
        raise ValueError("has to be text here")
    return content


def _texts(prompt: Any) -> Any:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("is not a text or a list of texts")
    if not all(isinstance(text, str) for text in prompts):
        raise ValueError("has to be text here, not tokens")
    return prompts


def _only(values: tuple, why: str = "is not supported here") -> Any:
    """A field that may be one of these values."""

    def check(value: Any) -> Any:
        if value is not None and value not in values:
            raise ValueError(why)

    return Annotated[Any, AfterValidator(check)], None


def _at_most(most: int | None) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        size = _entries(value) if isinstance(value, (list, dict)) else value
        if most is not None and isinstance(size, int) and size > most:
            found = f"is {size}" if size is value else f"has {size} entries"
            raise ValueError(f"{found}; {most} at most")
        return value

    return check


def _entries(values: Any) -> int:
    """Of a list or an object, and of the lists in it."""
    return sum(_entries(v) if isinstance(v, list) else 1 for v in values)


def _served(name: str) -> Any:
    """A field that has an option's value, which `Options` checks, within what requests may ask for."""
    return Annotated[Any, AfterValidator(_at_most(DECLARED[name].served))], None


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: str
    content: Annotated[Any, BeforeValidator(_joined)]


_Penalty = Annotated[float, Field(ge=-2, le=2)]


class _Request(BaseModel):
    """What completions and chats have both, besides the options."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    origins: bool | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None


_FIELDS: dict[str, Any] = {
    **{field: _served(name) for field, name in _NAMES.items()},
    **{field: _only(values) for field, values in _NEUTRAL.items()},
    **{field: _only((), "is the server's: it is set when that starts") for field in _THE_SERVERS},
    **dict.fromkeys(_OF_NO_MATTER, (Any, None)),
}
_Prompts = Annotated[list[str], BeforeValidator(_texts), AfterValidator(_at_most(_MOST_PROMPTS))]
Completion = create_model(
    "Completion", __base__=_Request, prompt=(_Prompts, ...), logprobs=_served("logprobs"), **_FIELDS
)
Chat = create_model(
    "Chat",
    __base__=_Request,
    messages=(Annotated[list[_Message], Field(min_length=1)], ...),
    logprobs=(bool | None, None),
    top_logprobs=_served("logprobs"),
    max_completion_tokens=_served("max_tokens"),
    **_FIELDS,
)


# ---------------------------------------------------------------------------------------------
# Reading


def parse(body: bytes, defaults: Options, chat: bool) -> Asked:
    """What a request's body asks for; InputError for what cannot be had, and for what is no such request."""
    try:
        request = (Chat if chat else Completion).model_validate(_json(body))
    except ValidationError as error:
        raise InputError(_said(error)) from None
    given = request.model_dump(exclude_none=True)
    return Asked(
        model=given.get("model"),
        prompts=given.get("prompt", []),
        messages=given.get("messages", []),
        options=_options(given, defaults, chat),
        stream=given.get("stream", False),
        include_usage=given.get("stream_options", {}).get("include_usage", False),
        origins=given.get("origins", False),
    )


def _json(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def _said(error: ValidationError) -> str:
    """The first thing that is wrong, in a line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where, kind, what = ".".join(map(str, first["loc"])), first["type"], first["msg"]
    if kind == "extra_forbidden":
        return f"there is no field {where[:50]!r}"
    if not where:
        return "the body is not a JSON object"
    if kind == "value_error":
        return f"{where} {first['ctx']['error']}"
    return f"{where}: {what[0].lower()}{what[1:]}"


def _options(given: Mapping[str, Any], defaults: Options, chat: bool) -> Options:
    asked = {name: given[field] for field, name in _NAMES.items() if field in given}
    if "max_completion_tokens" in given:
        asked["max_tokens"] = given["max_completion_tokens"]
    if "logit_bias" in asked:
        asked["logit_bias"] = _biases(asked["logit_bias"])
    if chat and "top_logprobs" in given and not given.get("logprobs"):
        raise InputError("top_logprobs needs logprobs: true")
    if not chat and "logprobs" in given:
        asked["logprobs"] = given["logprobs"]
    elif chat and given.get("logprobs"):
        asked["logprobs"] = given.get("top_logprobs", 0)
    penalties = [given.get(f"{kind}_penalty", 0.0) for kind in ("presence", "frequency")]
    if any(penalties):
        asked["processors"] = (*defaults.processors, CountPenalty(*penalties))
    try:
        return replace(defaults, **asked)
    except InputError as error:
        fields = {name: field for field, name in _NAMES.items() if field != name}
        pattern = rf"\b({'|'.join(fields)})\b"
        raise InputError(re.sub(pattern, lambda found: fields[found[0]], str(error))) from None


def _biases(value: Any) -> Any:
    """JSON's keys are texts; its numbers may be too large for a float."""
    try:
        if all(map(math.isfinite, value.values())):
            return {int(token): bias for token, bias in value.items()}
        raise ValueError
    except (ValueError, OverflowError, TypeError, AttributeError):
        raise InputError("logit_bias is not an object of tokens' ids with a number each") from None
