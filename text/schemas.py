"""JSON schemas for llguidance: what it cannot express in one, where that is, and what can be left out."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# As Python's json.dumps writes it, and models are used to. With free white space almost nothing would be forced.
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
STYLE |= {"lenient": True}  # warns of keywords that it does not support, and leaves them out
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SHARED = ("$defs", "definitions")
_BY_NAME = (*_SHARED, "properties", "patternProperties", "dependentSchemas")  # hold schemas by name
_VALUES = ("enum", "const", "default", "examples")  # hold no schemas
_IDLE = {"uniqueItems": False, "dependentRequired": {}, "dependentSchemas": {}}
_IDLE |= dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), True)  # they say nothing
_NARROWING = (  # without one of these a schema takes what it took, and more
    "patternProperties pattern format multipleOf minimum maximum exclusiveMinimum exclusiveMaximum"
    " minLength maxLength minItems maxItems minProperties maxProperties"
).split()


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly inside one, each with its place."""
    for key, value in schema.items():
        inside = {key: value}
        if key in _BY_NAME and isinstance(value, dict):
            inside = {f"{key}.{name}": part for name, part in value.items()}
        elif isinstance(value, list):
            inside = {f"{key}.{i}": part for i, part in enumerate(value)}
        for place, part in inside.items():
            if isinstance(part, dict) and key not in _VALUES:
                yield place, part


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all inside it."""
    if isinstance(schema, dict):
        yield schema
        for _, part in _parts(schema):
            yield from _nodes(part)


def _faults(schema: Any, widens: bool) -> list[str]:
    """What llguidance cannot do with a schema. widens: it may leave out what it does not support."""
    from llguidance import LLMatcher

    try:
        text = json.dumps(schema)
        json.loads(text, parse_int=_check_number, parse_float=_check_number)
        if any({"minProperties", "patternProperties"} <= node.keys() for node in _nodes(schema)):
            raise ValueError("minProperties with patternProperties: use required")
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=STYLE)
    except ValueError as error:
        return [str(error)]
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if widens and not is_error:
        return []
    messages = [message for message in messages if not message.startswith("Unknown format")]
    return [re.sub(r" \(\d+ times\)|\n  while processing.*", "", each) for each in messages]


def check(schema: Any, widens: bool = False) -> None:
    """Raise ValueError, with the place, for what llguidance cannot do with a schema. widens: see `_faults`"""
    faults = _faults(schema, widens)
    if faults:
        place = _place(schema, faults[0], widens, {})
        reason = faults[0]
        if reason.startswith("oneOf"):
            reason = "the alternatives of oneOf may overlap; use anyOf"
        raise ValueError(f"at {place}: {reason}" if place else reason)


def _place(schema: Any, fault: str, widens: bool, shared: Mapping[str, Any]) -> str:
    """The innermost place with this fault; "": the schema itself. shared: definitions that it may refer to"""
    if not isinstance(schema, dict):
        return ""
    shared = {**shared, **{key: schema[key] for key in _SHARED if key in schema}}
    for place, part in _parts(schema):
        if fault in _faults(shared | part, widens):
            return f"{place}.{_place(part, fault, widens, shared)}".rstrip(".")
    return ""


def leave_out(schema: Any, widens: bool = False) -> None:
    """Take the keywords that say nothing out of a schema and, if it `widens`, those that llguidance cannot express and
    that only narrow."""
    for node in [*_nodes(schema)]:
        for key in [key for key in _IDLE if node.get(key) == _IDLE[key]]:
            del node[key]
        for key in [key for key in _NARROWING if widens and key in node]:
            names = {"type", "patternProperties", key} & node.keys()
            if _faults({name: node[name] for name in names}, widens):
                del node[key]
                if key == "patternProperties":  # which may be there all the same
                    node["additionalProperties"] = True


def schema_of_call(index: int, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a tool's call: its name, then its arguments, which fit `parameters` as far as llguidance can
    express it. index: another for each tool. ValueError, with the place, if that is no schema."""
    leave_out(parameters, widens=True)
    closed = {"type": "object", "additionalProperties": False}
    # With an id, which older drafts call otherwise, "#" in its references is its own schema.
    arguments = parameters | {"$id": f"tool://{index}/", "$schema": _DIALECT}
    if "properties" in arguments or not arguments.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
        arguments = closed | arguments
    check(arguments, widens=True)
    call = {"name": {"const": name}, "arguments": arguments}
    return closed | {"properties": call, "required": [*call]}


def _check_number(text: str) -> float:
    """The number. Raises ValueError for those near the end of 64 bits, with which llguidance overflows its stack."""
    if float(text) < -9.2e18:
        raise ValueError(f"{text} is below -9.2e18")
    return float(text)
