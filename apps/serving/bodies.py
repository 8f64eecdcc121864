"""JSON bodies of all interfaces: parsed and validated, with errors in one line."""

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import from_json

from speculative.common.errors import InputError

Kind = TypeVar("Kind", bound=BaseModel)
_SHAPES = {
    "prompt": "a string, a list of token ids, or a list of these",
    "prediction": '{"type": "content", "content": "..."}',
    "logit_bias": 'token ids with a number each, such as {"1234": -5.0}',
    "input": "a text, or a list of messages and function calls (no item_reference: store: false)",
    "tool_choice": "none, auto, required, or a function's name: "
    '{"type": "function", "function": {"name": "..."}}',
}


class Object(BaseModel, strict=True, extra="forbid"):
    """An object of a request: a field that is null is not given, and one that is not declared is refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


def parse(body: bytes, kind: type[Kind]) -> Kind:
    """Parse a request's body. Raises InputError if it is not such a request."""
    return validated(read_json(body), kind)


def read_json(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None


def validated(fields: Any, kind: type[Kind]) -> Kind:
    """The request of these fields. Raises InputError, in one line, if they are none."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise InputError(_message(error)) from None


def _message(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = first["loc"][:1] if "logit_bias" in first["loc"] else first["loc"]  # not the user's keys
    where = ".".join(map(str, path)).removesuffix(".[key]")
    kind = first["type"]
    message = re.sub(r" or instance of \w+", "", first["msg"])
    if kind == "value_error":
        return f"{where} {first['ctx']['error']}".lstrip()
    if not where:
        return "the body is not a JSON object"
    if kind == "extra_forbidden" or path[-1] == "[key]":
        return f"there is no field {where[:99]!r}"
    if path[0] in _SHAPES and (len(path) > 1 or kind.endswith(("_type", "_parsing"))):
        return f"{path[0]} is not {_SHAPES[path[0]]}"
    return f"{where}: {message[0].lower()}{message[1:]}"
