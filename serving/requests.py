"""OpenAI's requests: a body to the options of its rows, which speculative/options.py declares. What would change a
text and is not done here is refused by name; so is what is unknown. A value that is null is as good as none."""

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError
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


def _joined(content: Any) -> str:
    """A message's content: a text, or parts of text."""
    parts = content if isinstance(content, list) else [{"text": content}]
    try:
        return "".join(part["text"] for part in parts)
    except (TypeError, KeyError):
        raise ValueError("has to be text here") from None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: str
    content: Annotated[str, BeforeValidator(_joined)]


class _Prediction(BaseModel):
    """A text that the answer will resemble: OpenAI's predicted outputs."""

    model_config = ConfigDict(strict=True)
    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_joined)]


class Asked(BaseModel):
    """What a request asks for: what completions and chats have both, and in `model_extra` most options."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    origins: bool | None = None
    prediction: _Prediction | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[Annotated[int, Strict(False)], float] | None = None  # JSON's keys are texts

    @property
    def include_usage(self) -> bool:
        """At a stream's end."""
        return bool((self.stream_options or {}).get("include_usage"))

    def options(self, defaults: Options) -> Options:
        """Those of its rows; InputError for what cannot be had."""
        more = self.model_extra or {}
        _check_fields(more)
        asked = {name: more.get(field) for field, name in _NAMES.items()}
        asked |= {name: value for name, value in self._own().items() if value is not None}
        asked = {name: value for name, value in asked.items() if value is not None}
        penalties = (self.presence_penalty or 0.0, self.frequency_penalty or 0.0)
        if any(penalties):
            asked["processors"] = (*defaults.processors, CountPenalty(*penalties))
        try:
            _check_sizes(asked)
            return replace(defaults, **asked)
        except InputError as error:
            fields = {name: field for field, name in _NAMES.items() if field != name}
            pattern = rf"\b({'|'.join(fields)})\b"
            raise InputError(re.sub(pattern, lambda found: fields[found[0]], str(error))) from None

    def _own(self) -> dict[str, Any]:
        """The options that have fields here."""
        reference = self.prediction.content if self.prediction else None
        return {"logit_bias": self.logit_bias, "reference": reference}


class Completion(Asked):
    prompt: Annotated[
        list[str],
        Field(min_length=1, max_length=256),
        BeforeValidator(lambda prompt: [prompt] if isinstance(prompt, str) else prompt),
    ]
    logprobs: Any = None

    def _own(self) -> dict[str, Any]:
        return super()._own() | {"logprobs": self.logprobs}


class Chat(Asked):
    messages: Annotated[list[_Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Any = None
    max_completion_tokens: Any = None

    def _own(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs needs logprobs: true")
        best = self.top_logprobs or 0 if self.logprobs else None
        return super()._own() | {"logprobs": best, "max_tokens": self.max_completion_tokens}


def _check_fields(more: dict[str, Any]) -> None:
    """InputError for a field that nobody knows, or that asks for what is not done."""
    for field, value in more.items():
        if not any(field in known for known in (_NAMES, _NEUTRAL, _THE_SERVERS, _OF_NO_MATTER)):
            raise InputError(f"there is no field {field[:50]!r}")
        if field in _THE_SERVERS and value is not None:
            raise InputError(f"{field} is the server's: it is set when that starts")
        if field in _NEUTRAL and value not in (None, *_NEUTRAL[field]):
            raise InputError(f"{field} is not supported here")


def _check_sizes(asked: dict[str, Any]) -> None:
    """InputError for more of an option than requests may ask for."""
    for name, value in asked.items():
        most, is_list = DECLARED[name].served, isinstance(value, (list, dict))
        size = len(value) if is_list else value
        if most is not None and isinstance(size, int) and size > most:
            found = f"has {size} entries" if is_list else f"is {size}"
            raise InputError(f"{name} {found}; {most} at most")


def parse(body: bytes, kind: type[Completion] | type[Chat]) -> Completion | Chat:
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
    if not where:
        return "the body is not a JSON object"
    if kind == "value_error":
        return f"{where} {first['ctx']['error']}"
    return f"{where}: {what[0].lower()}{what[1:]}"
