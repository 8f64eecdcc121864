"""OpenAI's requests and their options. Unknown fields, and unsupported ones that would change a text, are refused by name."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import from_json

from apps.serving.bodies import Object
from apps.serving.fields import (
    OPTION_NAMES,
    THINKING_OFF,
    check_names,
    check_size,
    with_options,
)
from speculative.common.errors import InputError
from speculative.step.options import MAX_NUMBER, TOKENS, Options
from speculative.step.processors import CountPenalty
from speculative.text.text_side import ChatTemplate, Prompt

_DROPPABLE = (  # fields that are dropped where the chat template has no use for them
    "parsed name tool_call_id reasoning_content reasoning reasoning_details thinking_blocks annotations id type status phase"
    " opts provider_specific_fields timestamp created created_at updated_at model metadata refusal"
).split()
_OTHER_PARTS = {"image": "pictures", "audio": "sound", "video": "videos", "file": "files"}
_SWITCHES = ("enable_thinking", "thinking")  # in chat templates
_LANGUAGES = {"source_lang_code": "source_lang", "target_lang_code": "target_lang"}


def _joined(content: Any) -> str:
    """A message's content: a text or a list of text parts."""
    parts = content if isinstance(content, list) else [content]
    may = {"type", "text", "annotations", "logprobs", "cache_control"}
    texts = [x.get("text") if isinstance(x, dict) and x.keys() <= may else x for x in parts]
    if not all(isinstance(text, str) for text in texts):
        kinds = " ".join(str(x.get("type")) for x in parts if isinstance(x, dict))
        sent = "".join(f", not {name}" for kind, name in _OTHER_PARTS.items() if kind in kinds)
        raise ValueError(f"has to be text here{sent}")
    return "".join(map(str, texts))


def _parsed(function: Any) -> Any:
    """A called function with its arguments themselves, as chat templates expect them, not as JSON."""
    with suppress(ValueError, KeyError, TypeError):
        return {"name": function["name"], "arguments": from_json(function["arguments"])}
    return function


class _ToolCall(Object, extra="allow"):
    function: Annotated[dict[str, Any], BeforeValidator(_parsed)]


class _ChatMessage(Object, extra="allow"):
    """A message. Its other fields are for the chat template."""

    role: str
    content: Annotated[str, BeforeValidator(_joined)] = ""
    tool_calls: list[_ToolCall] = Field(default=[])

    @model_validator(mode="before")
    @classmethod
    def _of_older_clients(cls, message: Any) -> Any:
        """A message of a function, or with a call of one, under the names that tools have."""
        if not isinstance(message, dict):
            return message
        message = dict(message)
        called = message.pop("function_call", None)
        if called:
            message["tool_calls"] = [{"type": "function", "function": called}]
        if message.get("role") == "function":
            message["role"] = "tool"
        return message

    def for_template(self, template: str) -> dict[str, Any]:
        """The message, in the nearest role that the template knows. Raises InputError for a field that it never uses."""
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
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    fields: dict[str, Any] | None = Field(None, alias="schema")


class _ResponseFormat(_Schema):
    """OpenAI's response_format; the schema may also be beside the type, as llama.cpp has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    def schema_of_text(self) -> dict[str, Any] | None:
        """The JSON schema of the text; None: any text. Raises InputError if that does not fit the type."""
        named = self.json_schema.fields if self.json_schema else None
        schema = self.fields if named is None else named
        if schema is None and self.type == "json_schema":
            raise InputError('response_format: no schema in "json_schema": {"schema": {...}}')
        if schema is not None and self.type == "text":
            raise InputError("response_format: a schema for the type text")
        return {"type": "object"} if schema is None and self.type == "json_object" else schema


class _Form(Object):
    """vLLM's structured_outputs."""

    of_json: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None


_Penalty = Annotated[float, Field(ge=-2, le=2)]


class Fields(Object, extra="allow", allow_inf_nan=False):
    """The fields that completions and chats share; most options are in `model_extra`."""

    model: str | None = None
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool | None] = Field({})
    origins: bool = False
    prediction: _Prediction | None = None
    response_format: _ResponseFormat | None = None
    structured_outputs: _Form = _Form.model_validate({})
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    # JSON keys are strings, and PHP's empty object is []
    logit_bias: Annotated[
        dict[Annotated[int, Field(strict=False)], float] | None,
        BeforeValidator(lambda bias: None if bias == [] else bias),
    ] = None

    def options(
        self, defaults: Options, max_tokens: int = MAX_NUMBER, chat: ChatTemplate | None = None
    ) -> Options:
        """The options of its rows, with `max_tokens` tokens at most. Raises InputError if they are out of range."""
        more = self.model_extra or {}
        check_names(more, (*Completion.model_fields, *Chat.model_fields))
        given = {OPTION_NAMES[field]: x for field, x in more.items() if field in OPTION_NAMES}
        given |= {name: value for name, value in self._own(chat).items() if value is not None}
        return with_options(defaults, given, max_tokens)

    def _own(self, chat: ChatTemplate | None) -> dict[str, Any]:
        """The options that are fields of this class."""
        own = dict[str, Any](logit_bias=self.logit_bias)
        if self.prediction:
            own["reference"] = self.prediction.content
        if self.presence_penalty or self.frequency_penalty:
            penalty = CountPenalty(self.presence_penalty, self.frequency_penalty)
            own["processors"] = (penalty,)
        form = self.structured_outputs
        schema = self.response_format and self.response_format.schema_of_text()
        given = form.model_dump(exclude_none=True, by_alias=True)
        if schema is not None:
            given["response_format"] = schema
        if len(given) > 1:
            raise InputError(f"{' and '.join(sorted(given))} cannot be used together")
        regex = form.regex
        if form.choice:
            regex = "|".join(map(re.escape, form.choice))
        own["json_schema"] = form.of_json if schema is None else schema
        return own | {"regex": regex, "grammar": form.grammar}


class Completion(Fields):
    prompt: Annotated[
        list[str | list[int]],
        Field(min_length=1, max_length=256),
        BeforeValidator(lambda p: [p] if isinstance(p, str) or (p and TOKENS.accepts(p)) else p),
    ]
    logprobs: Any = None

    def _own(self, chat: ChatTemplate | None) -> dict[str, Any]:
        return super()._own(chat) | {"logprobs": None if self.logprobs is False else self.logprobs}


class _Tool(Object):
    """A function that the model may call, or the choice of one."""

    type: Literal["function"] = "function"
    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field({})  # a JSON schema
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, tool: Any) -> Any:
        """A chat's tool with its function's fields beside its type, as /v1/responses has it."""
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            return tool
        return {name: x for name, x in tool.items() if name != "function"} | function


class Chat(Fields):
    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    logprobs: Annotated[bool, Field(strict=False)] = False  # others send 0
    top_logprobs: Any = 0
    max_completion_tokens: Any = None
    tools: list[_Tool] = Field(default=[], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | _Tool = "auto"
    parallel_tool_calls: bool = True
    functions: Annotated[list[_Tool], BeforeValidator(lambda given: given or [])] = Field([])
    function_call: Literal["none", "auto"] | _Tool = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default={})
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _as_tools(self) -> "Chat":
        if self.functions:
            self.tools = self.functions
            self.tool_choice = self.function_call
            self.parallel_tool_calls = False
        return self

    def calls(self, chat: ChatTemplate | None) -> dict[str, Any] | None:
        """The tools' calls that the answer has or, with `or_text`, may have, for `Options.tools`; None: it is a text. A model
        whose calls have no mark calls a tool for every message but a tool's result."""
        choice = self.tool_choice
        marks = chat and chat.call_marks
        tools = self.tools
        if isinstance(choice, _Tool):
            tools = [tool for tool in tools if tool.name == choice.name]
        is_auto = choice == "auto"
        if choice == "none" or (is_auto and not marks and self.messages[-1].role == "tool"):
            return None
        if not (tools or is_auto):
            raise InputError("tool_choice asks for a function that is not in tools")
        start, between, end = marks or ("", "", "")
        if not self.parallel_tool_calls:
            between = ""
        functions = [tool.model_dump(include={"name", "parameters"}) for tool in tools]
        for function in functions:
            check_size(f"the function {function['name'][:50]!r}", function)
        form = dict(functions=functions, marks=(start, between, end))
        return form | {"or_text": bool(marks) and is_auto} if functions else None

    def prompt(self, chat: ChatTemplate | None, settings: Mapping, calls: Any = None) -> Prompt:
        """The prompt for this chat template. settings: the server's arguments for it; calls: see `calls`. InputError for
        what the template cannot use."""
        source = chat.jinja if chat else ""
        template = dict(settings)
        more = self.model_extra or {}
        thinks = self.enable_thinking
        is_off = any(more.get(name) in values for name, values in THINKING_OFF.items())
        if is_off or self.reasoning_effort == "none":
            thinks = False
        if thinks is not None:
            template["enable_thinking"] = thinks
        if thinks is False and chat and chat.thinking and not _uses(source, *_SWITCHES):
            raise InputError("reasoning_effort: this model's chat template always thinks")
        given = {"reasoning_effort", "continue_final_message", "add_generation_prompt"}
        template |= self.model_dump(include=given, exclude_none=True)
        if calls and _uses(source, "tools"):
            functions = self.model_dump(include={"tools"}, exclude_none=True)["tools"]
            template["tools"] = [{"type": each.pop("type"), "function": each} for each in functions]
        for name in self.chat_template_kwargs.keys() - {*_SWITCHES, *_LANGUAGES}:
            if not _uses(source, name):
                raise InputError(f"chat_template_kwargs: the template has no use for {name[:50]!r}")
        messages = [message.for_template(source) for message in self.messages]
        return Prompt(messages, template_kwargs=template | self.chat_template_kwargs)

    def _own(self, chat: ChatTemplate | None) -> dict[str, Any]:
        own = super()._own(chat) | {"max_tokens": self.max_completion_tokens}
        if self.logprobs:
            own["logprobs"] = self.top_logprobs
        elif self.top_logprobs != 0:
            raise InputError("top_logprobs needs logprobs: true")
        own |= {ours: self.chat_template_kwargs.get(name) for name, ours in _LANGUAGES.items()}
        return own | {"tools": self.calls(chat)}


class _Text(Object):
    format: _ResponseFormat | None = None
    verbosity: Literal["medium"] = "medium"


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
        list[_ChatMessage], Field(alias="input", min_length=1), BeforeValidator(_as_messages)
    ]
    max_completion_tokens: Any = Field(None, alias="max_output_tokens")
    instructions: str | None = None
    text: _Text = _Text()
    reasoning: dict[Literal["effort", "summary"], str | None] = Field(default={})
    n: Literal[1] = 1
    logprobs: Literal[False] = False
    origins: Literal[False] = False

    @model_validator(mode="after")
    def _under_the_names_of_chats(self) -> "ResponseRequest":
        if self.instructions:
            self.messages.insert(0, _ChatMessage(role="system", content=self.instructions))
        self.response_format = self.text.format
        self.reasoning_effort = self.reasoning.get("effort")
        return self
