"""OpenAI's answers: their parts wherever the text is cut, and what is counted."""

import asyncio
import itertools
import json
from collections import Counter

import pytest
from helpers.openai_requests import TOOL, parsed

from apps.serving.answers import Answer, Calls
from apps.serving.completions import CompletionWriter
from apps.serving.engine import START, Progress
from apps.serving.requests import Chat, Completion
from apps.serving.transport import RowStep
from speculative.step.options import Options
from speculative.step.row import Row, Stats
from speculative.text.thinking import Thinking


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
