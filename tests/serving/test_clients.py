"""Requests as clients send them: chats for an encoder-decoder model, a tool's call, /v1/responses, pages of other origins."""

import json
from http.client import HTTPConnection

import pytest
from helpers.programs import ANSWER, PROMPT
from helpers.serving import Server, openai_client

pytestmark = pytest.mark.slow

CHAT = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "y"},
    {"role": "user", "content": PROMPT},
]
ARGUMENTS = {
    "type": "object",
    "properties": {"loud": {"type": "boolean"}, "times": {"type": "integer", "maximum": 9}},
    "required": ["loud", "times"],
}
LAMP = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOLS = [{"name": "speak", "parameters": ARGUMENTS}, {"name": "lamp", "parameters": LAMP}]
ORIGIN = "https://page.example"
EXTENSION = "moz-extension://5a0fc2f5"


@pytest.fixture(scope="module")
def server(demo_folders):
    allowed = f"http://localhost:3000, {ORIGIN}, moz-extension://*"
    with Server(demo_folders, "--allowed-origins", allowed) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai_client(server) as client:
        yield client


def test_an_encoder_decoder_model_answers_the_last_text(client, server):
    chats = client.chat.completions
    assert chats.create(model="", messages=CHAT).choices[0].message.content == ANSWER
    chunks = chats.create(model="", messages=CHAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    begun = [*CHAT, {"role": "assistant", "content": "eintausend"}]
    for path in ("/v1/chat/completions", "/chat/completions"):
        _, answer = server.post({"messages": begun}, path)
        assert answer["choices"][0]["message"]["content"] == ANSWER.removeprefix("eintausend")
    anew = {"messages": begun, "continue_final_message": False}
    assert server.post(anew, path)[1]["choices"][0]["message"]["content"] == ANSWER
    prompt = "translate English to French: The old king sees two red doors."
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "Le vieux"}]
    _, answer = server.post({"messages": messages}, path)
    assert answer["choices"][0]["message"]["content"] == " roi voit deux portes rouges."
    status, answer = server.post({"messages": CHAT[:1]}, path)
    assert status == 400 and "no text of the user's" in answer["error"]["message"]


@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS])
def test_a_tool_is_called_and_its_result_answered(client, tools):
    pytest.importorskip("llguidance")
    chats = client.chat.completions
    fields = dict(
        model="", messages=CHAT, tools=[{"type": "function", "function": f} for f in tools]
    )
    whole = chats.create(**fields).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    (tool,) = [tool for tool in tools if tool["name"] == call.function.name]
    assert [*json.loads(call.function.arguments)] == tool["parameters"]["required"]
    with chats.stream(**fields, tool_choice="required") as stream:
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls
    assert streamed.finish_reason == "tool_calls"
    assert (again.function.name, again.function.arguments) == (
        call.function.name,
        call.function.arguments,
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    fields["messages"] = [*CHAT, whole.message, result]
    assert chats.create(**fields).choices[0].message.content == ANSWER


def test_a_response_calls_a_tool_and_its_result_is_answered(client):
    pytest.importorskip("llguidance")
    fields = dict(model="", input=CHAT, tools=[{"type": "function", **tool} for tool in TOOLS])
    with client.responses.stream(**fields, tool_choice="required") as stream:
        _, added, *deltas, done, _, _ = events = list(stream)
        (call,) = stream.get_final_response().output
    kinds = "created output_item.added function_call_arguments.delta function_call_arguments.done"
    ends = ["output_item.done", "completed"]
    assert [*dict.fromkeys(x.type[9:] for x in events)] == [*kinds.split(), *ends]
    assert (added.item.name, added.item.call_id) == (call.name, call.call_id)
    assert "".join(event.delta for event in deltas) == done.arguments == call.arguments
    (again,) = client.responses.create(**fields).output
    assert (again.type, again.name, again.arguments) == ("function_call", call.name, call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    answer = client.responses.create(**fields | {"input": [*CHAT, call, result]})
    assert (answer.output_text, answer.tool_choice, len(answer.tools)) == (ANSWER, "auto", 2)


def test_a_response_is_a_chat_under_other_names(client):
    whole = client.responses.create(model="", input=PROMPT, instructions="Be brief.")
    assert (whole.output_text, whole.status) == (ANSWER, "completed")
    cut = client.responses.create(model="", input=CHAT, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 3 and ANSWER.startswith(cut.output_text)
    with client.responses.stream(model="", input=CHAT) as stream:
        parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert "".join(parts) == last.output_text == ANSWER
    assert last.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("origin", [ORIGIN, EXTENSION, "https://other.example"])
def test_pages_of_the_allowed_origins_may_send_requests(server, origin):
    asks = {"origin": origin, "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization, content-type"
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("OPTIONS", "/v1/chat/completions", headers=asks)
    response = connection.getresponse()
    allowed = origin if origin != "https://other.example" else None
    assert response.status == (200 if allowed else 400)
    assert response.getheader("access-control-allow-origin") == allowed
    response.read()
    connection.request("POST", "/v1/audio/transcriptions", "", {"origin": origin})
    # This model hears nothing.
    assert connection.getresponse().status == (400 if allowed else 403)
