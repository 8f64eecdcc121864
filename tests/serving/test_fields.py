"""OpenAI's fields: what they mean here, that nothing is passed over in silence, and that no body, however it is
made, raises anything but an InputError."""

import json
from dataclasses import replace

import pytest
from helpers.openai_requests import KINDS, NAMED, TOOL, options_of, parsed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.serving.bodies import parse
from apps.serving.fields import IGNORED, NEUTRAL, SERVER_WIDE
from apps.serving.requests import Chat, Completion
from speculative.common.errors import InputError
from speculative.step.options import DECLARED, Options
from speculative.step.processors import CountPenalty
from speculative.text.text_side import ChatTemplate

FIELDS = json.loads("""{
    "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a", "b"], "logprobs": 2, "num_draft": 3,
    "top_k": 9, "min_p": 0.1, "min_tokens": 2, "repetition_penalty": 1.5, "repetition_context_size": 20,
    "no_repeat_ngram_size": 3, "bad_words_ids": [[4], [5, 6]], "suppress_tokens": [8], "forced_bos_token_id": 9,
    "forced_eos_token_id": 1, "source_lang": "eng_Latn", "target_lang": "deu_Latn"
}""")


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}},
                }
            },
            {"json_schema": {}},
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"a": 1}}},
            {"json_schema": {"a": 1}},
        ),
        (
            {"response_format": {"type": "json_schema", "schema": {"a": 1}}},
            {"json_schema": {"a": 1}},
        ),
        ({"structured_outputs": {"json": "{}"}}, {"json_schema": "{}"}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["ä", '"']}}, {"regex": 'ä|"'}),
    ],
)
def test_the_form_asked_for_replaces_the_servers(fields, option):
    assert options_of(fields, Chat, Options(regex="b")) == Options(**option or {"regex": "b"})


def test_each_field_is_an_option():
    expected = {"temp" if name == "temperature" else name: x for name, x in FIELDS.items()}
    assert options_of(FIELDS) == Options(**expected)
    more = options_of({"n": 2, "temperature": 1, "logit_bias": {"5": 1.5}})
    assert (more.num_samples, more.logit_bias) == (2, {5: 1.5})
    penalties = options_of({"presence_penalty": 0.5, "frequency_penalty": -1})
    assert penalties.processors == (CountPenalty(0.5, -1.0),)
    chat = options_of({"max_completion_tokens": 5, "logprobs": True, "top_logprobs": 4}, Chat)
    assert (chat.max_tokens, chat.logprobs) == (5, 4)
    assert options_of({"logprobs": True}, Chat).logprobs == 0


def test_what_is_not_said_is_the_servers():
    defaults = Options(temp=0.7, seed=5, stop=("x",), lookup=True, num_draft=3, max_tokens=9)
    assert options_of({}, defaults=defaults) == defaults
    assert options_of({"temperature": None, "seed": None}, defaults=defaults) == defaults
    assert options_of({"user": "me", "metadata": {}, "best_of": 1, "echo": False}) == Options()


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"response_format": {"type": "json_schema"}}, "no schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "no schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "a schema for the type text"),
        ({"response_format": {"type": "text", "schma": {}}}, "no field 'response_format.schma'"),
        ({"stream_options": {"include_usge": True}}, "no field 'stream_options.include_usge'"),
        ({"prediction": {"type": "content", "content": "x", "n": 1}}, "no field 'prediction.n'"),
        ({"temprature": 1}, "no field 'temprature'; nearest: 'temperature'"),
        ({"adapters": "x"}, "no field 'adapters'$"),
        (
            {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
            "a function that is not in tools",
        ),
        (
            {"tools": [TOOL], "tool_choice": "requird"},
            "^tool_choice is not none, auto, required, or",
        ),
        ({"tool_choice": "required"}, "^tool_choice asks for a function that is not in tools$"),
        ({"tools": [TOOL], "tool_choice": NAMED}, "a function that is not in tools"),
        ({"tools": [{"type": "web_search"}]}, r"^tools\.0\.type: input should be 'function'$"),
        ({"max_new_tokens": 5}, "no field 'max_new_tokens'; nearest: 'max_tokens'"),
        ({"verbosity": "low"}, "verbosity is not supported"),
        (
            {"structured_outputs": {"choice": ["a"], "grammar": "start: "}},
            "^choice and grammar cannot be used together$",
        ),
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "choice and regex cannot"),
        (
            {"structured_outputs": {"grammar": "".join(f'a{i}: "b"\n' for i in range(20_000))}},
            "^grammar has 228890 characters; 65536 at most$",
        ),
        (
            {"tools": [{"name": "f", "parameters": {"enum": ["x" * 70_000]}}]},
            "^the function 'f' has 70.* characters; 65536 at most$",
        ),
        (
            {"structured_outputs": {"regex": "b"}, "response_format": {"type": "json_object"}},
            "^regex and response_format cannot be used together$",
        ),
    ],
)
def test_what_is_not_obeyed_is_refused_at_every_depth(fields, reason):
    with pytest.raises(InputError, match=reason):
        options_of(fields, Chat)


@pytest.mark.parametrize(
    "fields, expected",
    [
        (dict.fromkeys(("reasoning_effort", "audio", "stop_token_ids", "adapters", "xyz")), {}),
        ({"stream_options": {"include_usage": None}, "response_format": None}, {}),
        ({"chat_id": "x", "session_id": "y", "verbosity": "medium", "cache_prompt": True}, {}),
        ({"top_k": -1, "top_p": 0, "stop": ""}, {"stop": ()}),
        ({"stop": ["", "x"], "logprobs": 0}, {"stop": ["x"]}),
        ({"repetition_penalty": 0.0}, {"repetition_penalty": 1.0}),
        ({"max_tokens": 256.0, "seed": 3.0}, {"max_tokens": 256, "seed": 3}),
        ({"num_draft_tokens": 3}, {"num_draft": 3}),
        ({"max_tokens": 8192}, {"max_tokens": 4096}),
        ({"max_completion_tokens": 1 << 40}, {"max_tokens": 4096}),
        ({"max_tokens": -1}, {"max_tokens": 4096}),
        ({"top_k": 0, "min_p": 0, "presence_penalty": 0, "min_tokens": 0}, {"min_tokens": 0}),
        ({"top_logprobs": 0, "logprobs": False, "logit_bias": []}, {}),
        ({"seed": -2}, {"seed": -2}),
        ({"seed": 0}, {"seed": 0}),
    ],
)
def test_nulls_off_values_and_large_limits_are_taken(fields, expected):
    assert parsed(fields, Chat).options(Options(), 4096) == Options(**expected)


def test_seed_minus_one_is_a_new_one():
    """As with vLLM, llama.cpp and Ollama, also if the server has one."""
    assert options_of({"seed": -1}, defaults=Options(seed=5)).seed is None


@pytest.mark.parametrize("field", [*NEUTRAL, *IGNORED])
def test_of_an_unsupported_field_only_what_changes_nothing_is_taken(field):
    for kind in KINDS:
        if field in kind.model_fields:
            continue
        for value in NEUTRAL.get(field, [{"x": 1}]):
            assert options_of({field: value}, kind) == Options()
        if field in NEUTRAL:
            with pytest.raises(InputError, match=f"^{field} is not supported"):
                options_of({field: {"x": 1}}, kind)


def test_fields_that_clients_send_though_they_are_off():
    """The fields' names are others', so they are written out here."""
    fields = dict(
        typical_p=1.0, mirostat=0, repeat_penalty=1, length_penalty=1, use_beam_search=False
    )
    fields |= dict(
        documents=[], keep_alive="5m", include_stop_str_in_output=False, tfs_z=1, echo=False
    )
    assert options_of(fields | {"enable_thinking": False, "logprobs": False}) == Options()
    assert options_of(fields | {"enable_thinking": False}, Chat) == Options()
    thinks = ChatTemplate(str, "user", ("<t>", "</t>"))
    with pytest.raises(InputError, match="always thinks"):
        parsed({"enable_thinking": False}, Chat).prompt(thinks, {})
    switch = replace(thinks, jinja="user enable_thinking")
    for value in (True, False):
        prompt = parsed({"enable_thinking": value}, Chat).prompt(switch, {"enable_thinking": True})
        assert prompt.template_kwargs == {"enable_thinking": value}


def test_what_is_off_or_bookkeeping_is_taken_and_forms_of_other_servers_have_a_hint():
    off = {"thinking": {"type": "disabled"}, "reasoning": {"enabled": False}, "provider": {}}
    off |= {"plugins": [], "usage": {"include": True}, "tags": ["a"], "ttl": 300, "timeout": 60}
    for kind in (Completion, Chat):
        assert options_of(off, kind) == Options()
    switch = ChatTemplate(str, "user enable_thinking", ("<t>", "</t>"))
    for field in ("thinking", "reasoning"):
        prompt = parsed({field: off[field]}, Chat).prompt(switch, {"enable_thinking": True})
        assert prompt.template_kwargs == {"enable_thinking": False}
    for field in ("guided_json", "grammar", "json_schema", "guided_regex"):
        with pytest.raises(InputError, match=f"'{field}'; use response_format or structured"):
            options_of({field: {"a": 1}}, Chat)
    own = {"opts": {}, "provider_specific_fields": {"a": 1}, "timestamp": 1, "created": 2}
    (message,) = parsed({"messages": [{"role": "user", "content": "x"} | own]}, Chat).messages
    assert message.for_template("user") == {"role": "user", "content": "x"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


DECLARED_HERE = {field.alias or name for kind in KINDS for name, field in kind.model_fields.items()}
NAMES = sorted({*DECLARED_HERE, *DECLARED, *NEUTRAL, *IGNORED, *SERVER_WIDE})


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    fields=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    kind=st.sampled_from(KINDS),
    garbage=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()),
)
def test_no_body_raises_anything_else(fields, kind, garbage):
    try:
        request = parsed(fields, kind)
        options = request.options(Options())
        if isinstance(request, Chat):
            request.prompt(ChatTemplate(str, "user tools"), {}, options.tools)
    except InputError as error:
        assert "\n" not in str(error)
    with pytest.raises(InputError) as refused:
        parse(garbage, Completion)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000, "NaN", "-Infinity"])
@pytest.mark.parametrize("field", ["seed", "temperature", "logit_bias", "presence_penalty"])
def test_numbers_that_no_option_could_hold_are_refused(field, number):
    value = f'{{"5": {number}}}' if field == "logit_bias" else number
    with pytest.raises(InputError, match=f"{field}|not JSON"):
        body = f'{{"prompt": "x", "{field}": {value}}}'.encode()
        parse(body, Completion).options(Options())


@pytest.mark.parametrize("name", [name for name in DECLARED if DECLARED[name].served])
def test_what_a_request_may_ask_for_is_declared(name):
    declared = DECLARED[name]
    field, most = declared.request or name, declared.served
    entries = [[i] for i in range(most + 1)] if declared.values.kind is not int else []
    more = dict.fromkeys(range(most + 1), 1) if name == "logit_bias" else entries or most + 1
    with pytest.raises(InputError, match=rf"^{field} (is|has) .*{most} at most"):
        options_of({field: more})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"temperature": -1}, "temperature is -1, not a number from 0 to 1000000000"),
        (
            {"num_draft": "fast"},
            "num_draft is 'fast', not a whole number from 0 to 1000000000, or auto",
        ),
        ({"n": 0}, "n is 0, not a whole number from 1 to 1024"),
        ({"n": 65}, "n is 65; 64 at most"),
        ({"n": 2}, "n above 1 needs temperature above 0"),
        ({"n": "two"}, "n is 'two', not a whole number from 1 to 1024"),
        (
            {"max_tokens": "max_tokens"},
            "max_tokens is 'max_tokens', not a whole number from 1 to 1000000000",
        ),
        ({"target_lang": 2}, "target_lang is 2, not a language's code or name"),
        ({"source_lang": ["temp"]}, "source_lang is ['temp'], not a language's code or name"),
    ],
)
def test_a_value_out_of_range_is_told_in_the_requests_names(fields, message):
    """And what the user wrote stays as it is, even if it is an option's name."""
    with pytest.raises(InputError) as refused:
        parsed(fields).options(Options(), 9)
    assert str(refused.value) == message
