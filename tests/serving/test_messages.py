"""OpenAI's messages and tools: what a chat template makes of them, and what is called."""

from dataclasses import replace

import pytest
from helpers.openai_requests import NAMED, TOOL, parsed

from apps.serving.requests import Chat, ResponseRequest
from speculative.common.errors import InputError
from speculative.step.options import Options
from speculative.text.text_side import ChatTemplate

TOLD = ChatTemplate(str, "tools tool_calls tool", calling=("<c>", "</c>"))
TOLD.__dict__["call_marks"] = ("<c>", "</c><c>", "</c>")


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
