"""OpenAI's requests: a body to the options of its rows.

The fields of decoding are those that speculative/options.py declares. What would change a text and is not done
here is refused by name; so is what is unknown. A value that is null is as good as none.
"""

import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
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


# ---------------------------------------------------------------------------------------------
# Fields


def _joined(content: Any) -> Any:
    """A message's content: a text, or parts of text."""
    if isinstance(content, list):
        parts: list[Any] = [
            part.get("text") if isinstance(part, dict) else None for part in content
        ]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(content, str):
        raise ValueError("has to be text here")
    return content


def _texts(prompt: Any) -> Any:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("is not a text or a list of texts")
    if not all(isinstance(text, str) for text in prompts):
        raise ValueError("has to be text here, not tokens")
    if len(prompts) > _MOST_PROMPTS:
        raise ValueError(f"has {len(prompts)} entries; {_MOST_PROMPTS} at most")
    return prompts


def _only(values: tuple, why: str = "is not supported here") -> Any:
    """A field that may be one of these values."""

    def check(value: Any) -> None:
        if value is not None and value not in values:
            raise ValueError(why)

    return Annotated[Any, AfterValidator(check)], None


def _entries(values: Any) -> int:
    """Of a list or an object, and of the lists in it."""
    return sum(_entries(v) if isinstance(v, list) else 1 for v in values)


def _most(name: str) -> AfterValidator:
    """What requests may ask for as an option; `Options` checks all else of its value."""

    def check(value: Any) -> Any:
        size = _entries(value) if isinstance(value, (list, dict)) else value
        if most is not None and isinstance(size, int) and size > most:
            found = f"is {size}" if size is value else f"has {size} entries"
            raise ValueError(f"{found}; {most} at most")
        return value

    most = DECLARED[name].served
    return AfterValidator(check)


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: str
    content: Annotated[Any, BeforeValidator(_joined)]


_Penalty = Annotated[float, Field(ge=-2, le=2)]
_FIELDS: dict[str, Any] = {
    **{field: (Annotated[Any, _most(name)], None) for field, name in _NAMES.items()},
    **{field: _only(values) for field, values in _NEUTRAL.items()},
    **{field: _only((), "is the server's: it is set when that starts") for field in _THE_SERVERS},
    **dict.fromkeys(_OF_NO_MATTER, (Any, None)),
}
_Fields: Any = create_model("_Fields", **_FIELDS)


class Asked(_Fields):
    """What a request asks for: what completions and chats have both."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    origins: bool | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    # JSON's keys are texts.
    logit_bias: Annotated[
        dict[Annotated[int, Strict(False)], float] | None, _most("logit_bias")
    ] = None

    @property
    def include_usage(self) -> bool:
        """At a stream's end."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def options(self, defaults: Options) -> Options:
        """Those of its rows; InputError for what cannot be had."""
        asked = {name: getattr(self, field) for field, name in _NAMES.items()} | self._own()
        asked = {name: value for name, value in asked.items() if value is not None}
        penalties = (self.presence_penalty or 0.0, self.frequency_penalty or 0.0)
        if any(penalties):
            asked["processors"] = (*defaults.processors, CountPenalty(*penalties))
        try:
            return replace(defaults, **asked)
        except InputError as error:
            fields = {name: field for field, name in _NAMES.items() if field != name}
            pattern = rf"\b({'|'.join(fields)})\b"
            raise InputError(re.sub(pattern, lambda found: fields[found[0]], str(error))) from None

    def _own(self) -> dict[str, Any]:
        """The options that completions and chats spell differently."""
        raise NotImplementedError


class Completion(Asked):
    prompt: Annotated[list[str], BeforeValidator(_texts)]
    logprobs: Annotated[Any, _most("logprobs")] = None

    def _own(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs}


class Chat(Asked):
    messages: Annotated[list[_Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[Any, _most("logprobs")] = None
    max_completion_tokens: Annotated[Any, _most("max_tokens")] = None

    def _own(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs needs logprobs: true")
        best = self.top_logprobs or 0 if self.logprobs else None
        tokens = self.max_completion_tokens
        return {"logprobs": best, "max_tokens": self.max_tokens if tokens is None else tokens}


# ---------------------------------------------------------------------------------------------
# Reading


def parse(body: bytes, kind: type[Asked]) -> Asked:
    """What a request's body asks for; InputError for what is no such request."""
    try:
        return kind.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        raise InputError(_said(error)) from None
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def _said(error: ValidationError) -> str:
    """The first thing that is wrong, in a line."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = first["loc"][:1] if "logit_bias" in first["loc"] else first["loc"]  # not the user's keys
    where, kind, what = ".".join(map(str, path)), first["type"], first["msg"]
    if kind == "extra_forbidden":
        return f"there is no field {where[:50]!r}"
    if not where:
        return "the body is not a JSON object"
    if kind == "value_error":
        return f"{where} {first['ctx']['error']}"
    return f"{where}: {what[0].lower()}{what[1:]}"
