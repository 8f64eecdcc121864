"""OpenAI's requests: from a body to the options of its rows, which speculative/options.py declares. Unknown fields, and
unsupported ones that would change a text, are refused by name, wherever they are. null means that a field is not given."""

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from errors import InputError
from speculative.options import DECLARED, FORMS, MOST, TOKENS, OptionError, Options
from speculative.processors import CountPenalty

_NEUTRAL: dict[str, tuple] = {  # unsupported fields -> values that change nothing
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
}
_OF_NO_MATTER = (  # fields that do not affect the text
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls", "cache_prompt", "priority", "request_id"),
    *("chat_id", "session_id", "id"),
)
_THE_SERVERS = ("lookup", "delta", "acceptance")
_SERVED = {name: d.served for name, d in DECLARED.items() if d.served is not None}
_FORMS = {
    "prompt": "a string, a list of token ids, or a list of these",
    "prediction": '{"type": "content", "content": "..."}',
    "logit_bias": 'token ids with a number each, such as {"1234": -5.0}',
}
_NAMES = {d.request or name: name for name, d in DECLARED.items() if d.request is not None}
_ALIASES = {"num_draft_tokens": "num_draft"}  # mlx-lm's names -> ours
_NEAR = 0.8  # difflib's similarity of a field that was probably meant
_OFF = {"top_k": (-1, 0), "top_p": (0, 1.0), "repetition_penalty": (0, 1.0), "stop": ("", ())}
# option -> other servers' value for "off", and ours


def _joined(content: Any) -> str:
    """A message's content: a text or a list of text parts."""
    parts = content if isinstance(content, list) else [content]
    may = {"type", "text", "cache_control"}  # the last is for a provider's cache
    texts = [x.get("text") if isinstance(x, dict) and x.keys() <= may else x for x in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("has to be text here")
    return "".join(map(str, texts))


class _Object(BaseModel):
    """An object of a request: a field that is null is not given, and one that is not declared is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        items = fields.items() if isinstance(fields, dict) else ()
        return {name: value for name, value in items if value is not None} if items else fields


class _Message(_Object):
    """A message. Its other fields are for the chat template."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: Annotated[str, BeforeValidator(_joined)] = ""

    def for_template(self, template: str) -> dict[str, Any]:
        """The message as the template gets it. Raises InputError for a field that the template never uses."""
        more = {name: value for name, value in (self.model_extra or {}).items() if value}
        more.pop("parsed", None)  # its content again, from the client of OpenAI
        for name in more:
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise InputError(f"the model's chat template has no use for {name[:50]!r}")
        return {"role": self.role, "content": self.content, **more}


class _Prediction(_Object):
    """A text that the answer will resemble (OpenAI's predicted outputs)."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_joined)]


class _Schema(_Object):
    """A JSON schema with its name."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    fields: dict[str, Any] | None = Field(None, alias="schema")


def _named(schema: Any) -> Any:
    """OpenAI's {"name": ..., "schema": ...}, also for a schema that stands in its place."""
    is_named = not isinstance(schema, dict) or "schema" in schema or "name" in schema
    return schema if is_named else {"schema": schema or None}


class _Format(_Schema):
    """OpenAI's response_format; the schema may also be beside the type, as llama.cpp has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[_Schema, BeforeValidator(_named)] | None = None

    def schema_of_text(self) -> dict[str, Any] | None:
        """The JSON schema of the text; None: any text. Raises InputError without the one that the type promises."""
        schemas = [self.fields, self.json_schema.fields if self.json_schema else None]
        given = [schema for schema in schemas if schema is not None]
        if len(given) > 1 or (given and self.type == "text"):
            raise InputError(f"response_format: {len(given)} schemas for the type {self.type}")
        if self.type == "json_schema" and not given:
            raise InputError('response_format: no schema in "json_schema": {"schema": {...}}')
        if given:
            return given[0]
        return {"type": "object"} if self.type == "json_object" else None


class _StreamOptions(_Object):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class _Form(_Object):
    """vLLM's structured_outputs."""

    of_json: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> "_Form":
        given = [name.removeprefix("of_") for name in sorted(self.model_fields_set)]
        if len(given) > 1:
            raise ValueError(f"can have only one of {' and '.join(given)}")
        return self


class Fields(_Object):
    """The fields that completions and chats share; most options are in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    origins: bool | None = None
    prediction: _Prediction | None = None
    response_format: _Format | None = None
    structured_outputs: _Form | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[Annotated[int, Field(strict=False)], float] | None = (
        None  # JSON keys are strings
    )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def options(self, defaults: Options, max_tokens: int = MOST) -> Options:
        """The options of its rows, with `max_tokens` tokens at most. Raises InputError if they are out of range."""
        more = {_ALIASES.get(field, field): x for field, x in (self.model_extra or {}).items()}
        _check_fields(more)
        given = {name: more.get(field) for field, name in _NAMES.items()}
        given |= {name: value for name, value in self._own().items() if value is not None}
        given = {name: _usual(name, x) for name, x in given.items() if x is not None}
        tokens = given.get("max_tokens")
        if isinstance(tokens, int) and not isinstance(tokens, bool):
            given["max_tokens"] = max_tokens if tokens == -1 else min(tokens, max_tokens)
        penalties = (self.presence_penalty or 0.0, self.frequency_penalty or 0.0)
        if any(penalties):
            given["processors"] = (*defaults.processors, CountPenalty(*penalties))
        if any(name in given for name in FORMS):
            given = dict.fromkeys(FORMS) | given
        limits = _SERVED | {"max_tokens": max_tokens}
        _check_sizes(given, limits)
        samples = given.get("num_samples", defaults.num_samples)
        if isinstance(samples, int) and samples > 1 and given.get("temp", defaults.temp) == 0:
            raise InputError("n above 1 needs temperature above 0")  # a request has no beams
        try:
            return replace(defaults, **given)
        except OptionError as error:
            most = limits.get(error.name, error.values.most)
            values = replace(error.values, most=most)
            raise OptionError(_field(error.name), error.value, values) from None

    def _own(self) -> dict[str, Any]:
        """The options that are fields of this class."""
        reference = self.prediction.content if self.prediction else None
        form = self.structured_outputs or _Form.model_validate({})
        schema = form.of_json
        regex = form.regex
        if form.choice:
            regex = "|".join(map(re.escape, form.choice))
        text_schema = self.response_format.schema_of_text() if self.response_format else None
        if text_schema is not None:
            if form.model_fields_set:
                raise InputError("response_format cannot be used with structured_outputs")
            schema = text_schema
        forms = {"json_schema": schema, "regex": regex, "grammar": form.grammar}
        return {"logit_bias": self.logit_bias, "reference": reference, **forms}


class Completion(Fields):
    prompt: Annotated[
        list[str | list[int]],
        Field(min_length=1, max_length=256),
        BeforeValidator(lambda p: [p] if isinstance(p, str) or (p and TOKENS.accepts(p)) else p),
    ]
    logprobs: Any = None

    def _own(self) -> dict[str, Any]:
        return super()._own() | {"logprobs": self.logprobs}


class Chat(Fields):
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
    """Raise InputError for an unknown or unsupported field."""
    for field, value in more.items():
        if not any(field in names for names in (_NAMES, _NEUTRAL, _THE_SERVERS, _OF_NO_MATTER)):
            fields = (*_NAMES, *Completion.model_fields, *Chat.model_fields)
            near = get_close_matches(field, fields, n=1, cutoff=_NEAR)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise InputError(f"there is no field {field[:50]!r}{hint}")
        if field in _THE_SERVERS and value is not None:
            raise InputError(f"{field} is set for the whole server when it starts")
        if field in _NEUTRAL and value not in (None, *_NEUTRAL[field]):
            raise InputError(f"{field} is not supported")


def _usual(name: str, value: Any) -> Any:
    """An option's value as `Options` takes it: JSON writes 256.0 for 256, and other servers have their own "off"."""
    if isinstance(value, float) and value.is_integer() and DECLARED[name].values.kind is int:
        value = int(value)
    theirs, ours = _OFF.get(name, (None, None))
    return ours if value == theirs and not isinstance(value, bool) else value


def _field(name: str) -> str:
    """An option's name in a request."""
    return DECLARED[name].request or name


def _check_sizes(options: dict[str, Any], limits: dict[str, int]) -> None:
    """Raise InputError if an option is above the limit for requests."""
    for name, value in options.items():
        most = limits.get(name)
        is_list = isinstance(value, (list, dict))
        size = len(value) if is_list else value
        if most is not None and isinstance(size, int) and size > most:
            excess = f"has {size} entries" if is_list else f"is {size}"
            raise InputError(f"{_field(name)} {excess}; {most} at most")


def parse(body: bytes, kind: type[Completion] | type[Chat]) -> Completion | Chat:
    """Parse a request's body. Raises InputError if it is not such a request."""
    try:
        return kind.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        raise InputError(_message(error)) from None
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def _message(error: ValidationError) -> str:
    """The first error, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = first["loc"][:1] if "logit_bias" in first["loc"] else first["loc"]  # not the user's keys
    where = ".".join(map(str, path))
    kind = first["type"]
    message = first["msg"]
    if not where:
        return "the body is not a JSON object"
    if kind == "extra_forbidden":
        return f"there is no field {where[:99]!r}"
    if kind == "value_error":
        return f"{where} {first['ctx']['error']}"
    if path[0] in _FORMS and (len(path) > 1 or kind.endswith(("_type", "_parsing"))):
        return f"{path[0]} is not {_FORMS[path[0]]}"
    return f"{where}: {message[0].lower()}{message[1:]}"
