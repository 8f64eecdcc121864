"""OpenAI's JSON: what its fields mean here, that nothing is passed over in silence, and that no body, however it is
made, raises anything but an InputError."""

import asyncio
import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.serving.answers import Answer, Calls
from apps.serving.bodies import IGNORED, NEUTRAL, SERVER_WIDE, parse
from apps.serving.completions import CompletionWriter
from apps.serving.engine import START, Progress
from apps.serving.requests import Chat, Completion, ResponseRequest
from apps.serving.transport import RowStep
from speculative.common.errors import InputError
from speculative.step.options import DECLARED, Options
from speculative.step.processors import CountPenalty
from speculative.step.row import Row, Stats
from speculative.text.text_side import ChatTemplate
from speculative.text.thinking import Thinking

FIELDS = json.loads("""{
    "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a", "b"], "logprobs": 2, "num_draft": 3,
    "top_k": 9, "min_p": 0.1, "min_tokens": 2, "repetition_penalty": 1.5, "repetition_context_size": 20,
    "no_repeat_ngram_size": 3, "bad_words_ids": [[4], [5, 6]], "suppress_tokens": [8], "forced_bos_token_id": 9,
    "forced_eos_token_id": 1, "source_lang": "eng_Latn", "target_lang": "deu_Latn"
}""")
CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}
NAMED = {"type": "function", "function": {"name": "g"}}
KINDS = (Completion, Chat, ResponseRequest)


def parsed(fields, kind=Completion) -> Completion | Chat:
    given = {Chat: CHAT, ResponseRequest: {"input": "x"}}.get(kind, {"prompt": "x"})
    return parse(json.dumps({**given, **fields}).encode(), kind)


def options_of(fields, kind=Completion, defaults=Options()) -> Options:  # noqa: B008
    return parsed(fields, kind).options(defaults)


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


def test_a_message_has_what_its_template_uses():
    """A tool's call with its arguments themselves; where the template knows no tools, as the model wrote it."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call], "audio": None},
        {"role": "tool", "tool_call_id": "1", "content": "r", "annotations": []},
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}], "color": "red"},
    ]
    called, result, user = parsed({"messages": messages}, Chat).messages
    itself = call | {"function": {"name": "f", "arguments": {"a": 1}}}
    first = called.for_template("{{ m.tool_calls }}")
    assert first == {"role": "assistant", "content": "", "tool_calls": [itself]}
    written = '{"name": "f", "arguments": {"a": 1}}'
    assert called.for_template("x") == {"role": "assistant", "content": written}
    assert result.for_template("x") == {"role": "user", "content": "r"}
    assert result.for_template("tool")["role"] == "tool"
    item = {"type": "function_call", "call_id": "1", **call["function"]}
    output = {"type": "function_call_output", "call_id": "1", "output": "r"}
    calls, answer = parsed({"input": [item, item, output]}, ResponseRequest).messages
    assert calls.tool_calls == called.tool_calls * 2
    assert answer.for_template("x") == result.for_template("x")
    assert user.for_template("user color")["content"] == "ab"
    with pytest.raises(InputError, match="no use for 'color'"):
        user.for_template("user")


@pytest.mark.parametrize(
    "fields, called",
    [
        ({"tools": [TOOL]}, ["f"]),
        ({"tools": [TOOL, NAMED]}, ["f", "g"]),
        ({"tools": [TOOL, NAMED], "tool_choice": "required"}, ["f", "g"]),
        ({"tools": [TOOL, NAMED], "tool_choice": NAMED}, ["g"]),
        ({"tools": [TOOL, NAMED], "tool_choice": "none"}, []),
        ({"tools": [TOOL, NAMED], "messages": [{"role": "tool", "content": "r"}]}, []),
        ({"tools": []}, []),
    ],
)
def test_the_tools_that_are_meant_give_the_form(fields, called):
    request = parsed({**fields, "response_format": {"type": "json_object"}}, Chat)
    options = request.options(Options())
    functions = (options.tools or {}).get("functions", [])
    assert [function["name"] for function in functions] == called
    assert options.json_schema == {"type": "object"}


@pytest.mark.parametrize("arguments", ["{}", r'{"a": "}\"{", "b": [{"c": {}}]}', '"}"', "-1.5"])
def test_a_call_is_split_wherever_it_is_cut(arguments):
    """Its name comes once, and its arguments never with the brace that ends the call."""
    head = '{"name": "f", "arguments": '
    text = f"{head}{arguments}}}"
    for end, size in itertools.product(range(len(text) + 1), (1, 3, 99)):
        calls = Calls("")
        pushed = [calls.push(text[i : min(i + size, end)], False) for i in range(0, end, size)]
        parts = [part for before, parts in [*pushed, calls.push("", True)] for part in parts]
        assert [name for _, name, _ in parts if name] == ["f"] * (end >= len(head))
        split = "".join(more for _, _, more in parts)
        assert split == text[len(head) : min(end, len(text) - 1)]


@pytest.mark.parametrize("mark", ["<call>", "[CALLS] ["])
def test_a_text_and_its_calls_are_split_wherever_they_are_cut(mark):
    """Also a call that is an argument of a call."""
    arguments = ['{"a": "}{\\"name\\": \\""}', '{"b": {"name": "f", "arguments": {}}}']
    called = [f'{{"name": "f{i}", "arguments": {x}}}' for i, x in enumerate(arguments)]
    text = f"Let me see: <cal, [CA\n\n{mark}{' , '.join(called)} end"
    for size in (1, 3, 7, 999):
        calls = Calls(mark.split()[0])
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        pushed = [calls.push(piece, False) for piece in pieces] + [calls.push("", True)]
        assert "".join(before for before, _ in pushed) == "Let me see: <cal, [CA"
        parts = [part for _, parts in pushed for part in parts]
        assert [name for _, name, _ in parts if name] == ["f0", "f1"] and len(calls.ids) == 2
        for i in range(2):
            assert "".join(more for j, _, more in parts if j == i) == arguments[i]
    for rest in ("no <cal", "no call. \n"):
        calls = Calls(mark)
        assert calls.push(rest[:5], False)[0] + calls.push(rest[5:], True)[0] == rest


TOLD = ChatTemplate(str, "tools tool_calls tool", calling=("<c>", "</c>"))
TOLD.__dict__["call_marks"] = ("<c>", "</c><c>", "</c>")


@pytest.mark.parametrize(
    "fields, called, marks",
    [
        ({}, "may", ("<c>", "</c><c>", "</c>")),
        ({"messages": [{"role": "tool", "content": "r"}]}, "may", ("<c>", "</c><c>", "</c>")),
        ({"parallel_tool_calls": False}, "may", ("<c>", "", "</c>")),
        ({"tool_choice": "required"}, "has to", ("<c>", "</c><c>", "</c>")),
        ({"tool_choice": NAMED["function"] | {"name": "f"}}, "has to", ("<c>", "</c><c>", "</c>")),
        ({"tool_choice": "none"}, "", None),
    ],
)
def test_where_the_template_marks_calls_the_model_chooses(fields, called, marks):
    request = parsed({"tools": [TOOL], **fields}, Chat)
    tools = request.options(Options(), chat=TOLD).tools
    assert (tools and tools["marks"]) == marks
    assert not called or tools["or_text"] == (called == "may")
    assert ("tools" in request.prompt(TOLD, {}, tools).template_kwargs) == bool(called)


def test_functions_of_older_clients_are_tools_and_are_called_in_their_form():
    function = {"name": "f", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "f", "content": "r"},
    ]
    fields = {"functions": [TOOL["function"]], "function_call": {"name": "f"}, "messages": messages}
    request, newer = (parsed(x, Chat) for x in (fields, {"tools": [TOOL]}))
    assert request.tools == newer.tools and request.tool_choice.name == "f"
    _, called, result = [m.for_template("tool_calls tool") for m in request.messages]
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert called["tool_calls"] == [call] and result["role"] == "tool"
    (row,) = of_rows = rows(1, tools=request.options(Options()).tools)
    row.texts = ['{"name": "f", "argu', 'ments": {"a": ', "1}}"]
    (choice,) = writer(fields, of_rows, Chat).whole({row: END})["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == function


def test_arguments_for_a_template_are_languages_or_its_own():
    chat = ChatTemplate(str, "{{ enable_thinking }}{{ tools }}{{ user }}", ("<t>", "</t>"))
    kwargs = {"source_lang_code": "en", "target_lang_code": "de", "enable_thinking": True}
    fields = {"chat_template_kwargs": kwargs, "reasoning_effort": "none", "tools": [TOOL]}
    request = parsed(fields, Chat)
    options = request.options(Options(target_lang="fr"))
    assert (options.source_lang, options.target_lang) == ("en", "de")
    prompt = request.prompt(chat, {"enable_thinking": False, "of_server": 1}, options.tools)
    assert prompt.template_kwargs == {
        **kwargs,
        "reasoning_effort": "none",
        "of_server": 1,
        "tools": [TOOL],
    }
    for fields, reason in (
        ({"chat_template_kwargs": {"enable_thinkng": True}}, "no use for 'enable_thinkng'"),
        ({"reasoning_effort": "none"}, "always thinks"),
    ):
        with pytest.raises(InputError, match=reason):
            parsed(fields, Chat).prompt(replace(chat, jinja="user"), {})


def test_a_chats_parts_are_its_text():
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}]
    request = parsed({"messages": messages}, Chat)
    assert [message.content for message in request.messages] == ["a", "bc"]
    parts[0] = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InputError, match=r"messages\.1\.content has to be text here, not pictures"):
        parsed({"messages": messages}, Chat)


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


# ---------------------------------------------------------------------------------------------
# Answers


def rows(count: int, **options) -> list[Row]:
    made = [Row([5, 6, 7], Options(**options)) for _ in range(count)]
    for row in made:
        row.tokens = [3, 4, 5]
        row.texts, row.origins = [" one", "", " two"], ["target", "draft_model", "draft_model"]
        row.logprobs = [-0.5, -1.0, -2.0]
        row.best = [[(3, -0.5)], [(4, -1.0)], [(5, -2.0)]]
    return made


def writer(fields, of_rows, kind=Completion) -> CompletionWriter:
    answers = [Answer(row, Thinking(None)) for row in of_rows]
    request = parsed(fields, kind)
    return CompletionWriter(request, answers, "model", lambda token, first: (f"t{token}", b"x"))


HALF = Progress(1, None, Stats(tokens=1))
END = Progress(3, "stop", Stats(tokens=3, draft_tokens=4, accepted_lengths=Counter({0: 1, 2: 1})))


def test_a_chats_answers():
    fields = {"logprobs": True, "top_logprobs": 1}
    of_rows = rows(1, logprobs=1)
    whole = writer(fields, of_rows, Chat).whole({of_rows[0]: END})
    (choice,) = whole["choices"]
    assert whole["object"] == "chat.completion" and choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": " one two", "refusal": None}
    scored = choice["logprobs"]["content"]
    assert [token["token"] for token in scored] == ["t3", "t4", "t5"]
    assert scored[0]["top_logprobs"] == [{"token": "t3", "logprob": -0.5, "bytes": [120]}]
    details = {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 2}
    assert whole["usage"]["completion_tokens_details"] == details


def test_a_chats_stream():
    (row,) = of_rows = rows(1)
    written = writer({"stream": True, "stream_options": {"include_usage": True}}, of_rows, Chat)

    async def steps():
        yield RowStep(row, START, HALF)
        yield RowStep(row, HALF, END)

    async def events():
        return [event async for event in written.events(steps())]

    first, *chunks, last, done = asyncio.run(events())
    first, *chunks, last = [json.loads(event[6:]) for event in (first, *chunks, last)]
    assert first["object"] == "chat.completion.chunk" and first["usage"] is None
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [{"content": " one"}, {"content": " two"}]
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3
    assert done == "data: [DONE]\n\n"


def test_a_prompt_is_counted_once():
    of_rows = rows(2, num_samples=2, temp=1)
    usage = writer({"n": 2, "temperature": 1}, of_rows).whole(dict.fromkeys(of_rows, END))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 6)
