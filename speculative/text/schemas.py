"""JSON schemas for llguidance: what it cannot express in one, where that is, and what can be left out."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# As Python's json.dumps writes it, and models are used to. With free white space almost nothing would be forced.
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
STYLE |= {"lenient": True}  # warns of the keywords that it leaves out
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BY_NAME = "$defs definitions properties patternProperties dependentSchemas".split()
_COMBINING = {"$ref", "allOf", "anyOf", "oneOf"}
_VALUES = ("enum", "const", "default", "examples")  # hold no schemas
_IDLE: dict[str, Any] = {"uniqueItems": False, "dependentRequired": {}, "dependentSchemas": {}}
_IDLE |= dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), True)
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


def _faults(schema: Mapping[str, Any], widens: bool) -> list[str]:
    """What llguidance cannot do with a schema. widens: it may leave out what it does not support."""
    from llguidance import LLMatcher

    try:
        text = json.dumps(schema)
        json.loads(text, parse_int=_check_number, parse_float=_check_number)
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=STYLE)
    except ValueError as error:
        return [str(error)]
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if widens and not is_error:
        return []
    shown = [re.sub(r" \(\d+ times\)|\n  while processing.*", "", each) for each in messages]
    return [each for each in shown if not each.startswith("Unknown format")]  # an annotation


def check(
    schema: Mapping[str, Any], widens: bool = False, place: str = "", defs: Any = None
) -> None:
    """Raise ValueError, with the place, for what llguidance cannot do with a schema. widens: as for `_faults`; place: of
    the schema, with a dot; defs: the definitions that it may refer to"""
    defs = (defs or {}) | {key: schema[key] for key in _BY_NAME[:2] if key in schema}
    for fault in _faults({**defs, **schema}, widens)[:1]:
        for inside, part in _parts(schema):
            if fault in _faults({**defs, **part}, widens):
                check(part, widens, f"{place}{inside}.", defs)
        if fault.startswith("oneOf"):
            fault = "the alternatives of oneOf may overlap; use anyOf"
        raise ValueError(f"{place.rstrip('.')}: {fault}".removeprefix(": "))


def leave_out(schema: dict[str, Any], widens: bool = False) -> None:
    """Take the keywords that say nothing out of a schema and, if it `widens`, those that llguidance cannot express and
    that only narrow."""
    for _, part in _parts(schema):
        leave_out(part, widens)
    idle = [key for key in _IDLE if schema.get(key) == _IDLE[key]]
    for key in [key for key in _NARROWING if widens and key in schema]:
        if _faults({name: schema[name] for name in {"type", key} & schema.keys()}, widens):
            idle.append(key)
    if "patternProperties" in idle:  # which may be there all the same
        schema["additionalProperties"] = True
    for key in idle:
        del schema[key]


def schema_of_calls(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a call of one of these functions: its name, then its arguments, which fit its `parameters` as far
    as llguidance can express them. ValueError, with name and place, for what is no schema."""
    calls = []
    closed = {"type": "object", "additionalProperties": False}
    for index, function in enumerate(functions):
        leave_out(function["parameters"], widens=True)
        # With an id, which older drafts call otherwise, "#" in its references is its own schema.
        arguments = function["parameters"] | {"$id": f"tool://{index}/", "$schema": _DIALECT}
        is_whole = "properties" in arguments or not arguments.keys() & _COMBINING
        if is_whole and not _faults(closed | arguments, True):  # such as a property only required
            arguments = closed | arguments
        check(arguments, True, f"{function['name']}.")
        call = {"name": {"const": function["name"]}, "arguments": arguments}
        calls.append(closed | {"properties": call, "required": [*call]})
    return {"anyOf": calls, "x-guidance": STYLE}


def _check_number(text: str) -> float:
    """The number. Raises ValueError for those near the end of 64 bits, with which llguidance overflows its stack."""
    if float(text) < -9.2e18:
        raise ValueError(f"{text} is below -9.2e18")
    return float(text)
