"""OpenAI's requests: from a body to the options of its rows, which speculative/options.py declares. Unknown fields, and
unsupported ones that would change a text, are refused by name, wherever they are. null means that a field is not given."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from common.errors import InputError
from serving.bodies import Object
from serving.fields import (
    ALIASES,
    OPTION_NAMES,
    SERVED,
    check_names,
    check_sizes,
    normalised,
    request_name,
)
from speculative.options import FORMS, MAX_NUMBER, TOKENS, OptionError, Options
from speculative.processors import CountPenalty
from text.text_side import ChatTemplate, Prompt

_DROPPABLE = (  # fields that are dropped where the chat template has no use for them
    *("parsed", "name", "tool_call_id", "reasoning_content", "reasoning", "annotations"),
    *("id", "type", "status", "phase"),
)
_SWITCHES = ("enable_thinking", "thinking")  # in chat templates
_LANGUAGES = {"source_lang_code": "source_lang", "target_lang_code": "target_lang"}
_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def _joined(content: Any) -> str:
    """A message's content: a text or a list of text parts."""
    parts = content if isinstance(content, list) else [content]
    may = {"type", "text", "annotations", "logprobs", "cache_control"}
    texts = [x.get("text") if isinstance(x, dict) and x.keys() <= may else x for x in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("has to be text here")
    return "".join(map(str, texts))


def _parsed(function: Any) -> Any:
    """A called function with its arguments themselves, as chat templates expect them, not as JSON."""
    with suppress(ValueError, KeyError, TypeError):
        return {"name": function["name"], "arguments": from_json(function["arguments"])}
    return function


class _ToolCall(Object):
    """A tool's call in an earlier answer."""

    model_config = ConfigDict(extra="allow")
    function: Annotated[dict[str, Any], BeforeValidator(_parsed)]


class _Message(Object):
    """A message. Its other fields are for the chat template."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: Annotated[str, BeforeValidator(_joined)] = ""
    tool_calls: list[_ToolCall] = Field(default_factory=list)

    def for_template(self, template: str) -> dict[str, Any]:
        """The message as the template gets it, in the nearest role that it knows. Raises InputError for a field that it
        never uses."""
        role = self.role
        if template and not _uses(template, role):
            role = {"developer": "system", "tool": "user"}.get(role, role)
        message = {"role": role, "content": self.content}
        for name, value in self.model_dump(exclude={"role", "content"}).items():
            if value and _uses(template, name):
                message[name] = value
            elif value and name == "tool_calls":  # as the model wrote them
                calls = [json.dumps(call["function"], ensure_ascii=False) for call in value]
                message["content"] += " ".join(calls)
            elif value and name not in _DROPPABLE:
                raise InputError(f"the model's chat template has no use for {name[:50]!r}")
        return message


def _uses(template: str, *names: str) -> bool:
    """Whether a chat template has one of these variables, fields or roles."""
    return re.search(rf"\b({'|'.join(map(re.escape, names))})\b", template) is not None


class _Prediction(Object):
    """A text that the answer will resemble (OpenAI's predicted outputs)."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_joined)]


class _Schema(Object):
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


class _StreamOptions(Object):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class _Form(Object):
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


class Fields(Object):
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
    # JSON keys are strings, and PHP's empty object is []
    logit_bias: Annotated[
        dict[Annotated[int, Field(strict=False)], float] | None,
        BeforeValidator(lambda bias: None if bias == [] else bias),
    ] = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def options(self, defaults: Options, max_tokens: int = MAX_NUMBER) -> Options:
        """The options of its rows, with `max_tokens` tokens at most. Raises InputError if they are out of range."""
        more = {ALIASES.get(field, field): x for field, x in (self.model_extra or {}).items()}
        check_names(more, (*Completion.model_fields, *Chat.model_fields))
        given = {name: more.get(field) for field, name in OPTION_NAMES.items()}
        given |= {name: value for name, value in self._own().items() if value is not None}
        given = {name: normalised(name, x) for name, x in given.items() if x is not None}
        tokens = given.get("max_tokens")
        if isinstance(tokens, int) and not isinstance(tokens, bool):
            given["max_tokens"] = max_tokens if tokens == -1 else min(tokens, max_tokens)
        penalties = (self.presence_penalty or 0.0, self.frequency_penalty or 0.0)
        if any(penalties):
            given["processors"] = (*defaults.processors, CountPenalty(*penalties))
        if any(name in given for name in FORMS):
            given = dict.fromkeys(FORMS) | given
        limits = SERVED | {"max_tokens": max_tokens}
        check_sizes(given, limits)
        samples = given.get("num_samples", defaults.num_samples)
        if isinstance(samples, int) and samples > 1 and given.get("temp", defaults.temp) == 0:
            raise InputError("n above 1 needs temperature above 0")  # a request has no beams
        try:
            return replace(defaults, **given)
        except OptionError as error:
            max_value = limits.get(error.name, error.values.max_value)
            values = replace(error.values, max_value=max_value)
            raise OptionError(request_name(error.name), error.value, values) from None

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
        return super()._own() | {"logprobs": None if self.logprobs is False else self.logprobs}


class _Tool(Object):
    """A function that the model may call, or the choice of one."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)  # a JSON schema
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, tool: Any) -> Any:
        """A chat's tool with its function's fields beside its type, as /v1/responses has it."""
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            return tool
        return {name: x for name, x in tool.items() if name != "function"} | function


def _schema_of_call(tools: Sequence[_Tool]) -> dict[str, Any]:
    """The JSON schema of a call of one of these tools: its name, then its arguments."""
    calls = []
    closed = {"type": "object", "additionalProperties": False}
    for index, tool in enumerate(tools):
        # With an id, which older drafts call otherwise, "#" in its references is its own schema.
        arguments = tool.parameters | {"$id": f"tool://{index}/", "$schema": _JSON_SCHEMA}
        if "properties" in arguments or not arguments.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
            arguments = closed | arguments
        call = {"name": {"const": tool.name}, "arguments": arguments}
        calls.append(closed | {"properties": call, "required": [*call]})
    return {"anyOf": calls}


class Chat(Fields):
    messages: Annotated[list[_Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Any = None
    max_completion_tokens: Any = None
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | _Tool = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def callable_tools(self) -> list[_Tool]:
        """The tools of which the answer calls one; none: the answer is a text. With `auto` a tool's result is answered by a
        text, anything else by a call."""
        choice = self.tool_choice
        tools = self.tools
        if len({tool.name for tool in tools}) < len(tools):
            raise InputError("tools has two functions of one name")
        if isinstance(choice, _Tool):
            tools = [tool for tool in tools if tool.name == choice.name]
        elif choice == "none" or (choice == "auto" and self.messages[-1].role == "tool"):
            return []
        if not tools and choice != "auto":
            raise InputError("tool_choice asks for a function that is not in tools")
        return tools

    def prompt(self, chat: ChatTemplate | None, settings: Mapping[str, Any]) -> Prompt:
        """The prompt for a model with this chat template. settings: the server's own arguments for it. Raises InputError
        for what it cannot use."""
        source = chat.jinja if chat else ""
        template = dict(settings)
        is_off = self.reasoning_effort == "none" or self.enable_thinking is False
        if is_off or self.enable_thinking:
            template["enable_thinking"] = not is_off
        if is_off and chat and chat.thinking and not _uses(source, *_SWITCHES):
            raise InputError("reasoning_effort: this model's chat template always thinks")
        given = {"reasoning_effort", "continue_final_message", "add_generation_prompt"}
        template |= self.model_dump(include=given, exclude_none=True)
        if self.callable_tools and _uses(source, "tools"):
            functions = [
                tool.model_dump(exclude={"type"}, exclude_none=True) for tool in self.tools
            ]
            template["tools"] = [{"type": "function", "function": each} for each in functions]
        for name in self.chat_template_kwargs.keys() - {*_SWITCHES, *_LANGUAGES}:
            if not _uses(source, name):
                raise InputError(f"chat_template_kwargs: the template has no use for {name[:50]!r}")
        messages = [message.for_template(source) for message in self.messages]
        return Prompt(messages, template_kwargs=template | self.chat_template_kwargs)

    def _own(self) -> dict[str, Any]:
        if self.top_logprobs not in (None, 0) and not self.logprobs:
            raise InputError("top_logprobs needs logprobs: true")
        best = self.top_logprobs or 0 if self.logprobs else None
        own = super()._own() | {"logprobs": best, "max_tokens": self.max_completion_tokens}
        own |= {ours: self.chat_template_kwargs.get(name) for name, ours in _LANGUAGES.items()}
        if self.callable_tools:  # response_format is for texts
            own |= dict.fromkeys(FORMS) | {"json_schema": _schema_of_call(self.callable_tools)}
        return own


class _Text(Object):
    format: _Format | None = None
    verbosity: Literal["medium"] = "medium"


class _Reasoning(Object):
    effort: str | None = None
    summary: str | None = None


def _as_messages(given: Any) -> Any:
    """A response's input as messages, without what the model thought before."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        return items
    messages: list[Any] = []
    for kind, group in groupby(items, lambda x: x.get("type") if isinstance(x, dict) else None):
        if kind == "function_call":  # those in a row are one message's
            calls = [{"id": x.get("call_id"), "type": "function", "function": x} for x in group]
            messages.append({"role": "assistant", "tool_calls": calls})
        elif kind == "function_call_output":
            for x in group:
                result = {"tool_call_id": x.get("call_id"), "content": x.get("output")}
                messages.append({"role": "tool", **result})
        elif kind != "reasoning":
            messages += group
    return messages


class ResponseRequest(Chat):
    """A request of OpenAI's newer protocol, in its simple form: a chat under other names."""

    messages: Annotated[
        list[_Message], Field(alias="input", min_length=1), BeforeValidator(_as_messages)
    ]
    max_completion_tokens: Any = Field(None, alias="max_output_tokens")
    instructions: str | None = None
    text: _Text = Field(default_factory=_Text)
    reasoning: _Reasoning = Field(default_factory=_Reasoning)
    n: Literal[1] = 1
    logprobs: Literal[False] = False
    origins: Literal[False] = False

    @model_validator(mode="after")
    def _under_the_names_of_chats(self) -> "ResponseRequest":
        if self.instructions:
            self.messages.insert(0, _Message(role="system", content=self.instructions))
        self.response_format = self.text.format
        self.reasoning_effort = self.reasoning.effort
        return self
