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
TOOL = {"type": "function", "function": {"name": "speak", "parameters": ARGUMENTS}}
ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders, "--allowed-origins", f"http://localhost:3000, {ORIGIN}") as server:
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


def test_one_tool_is_called_and_its_result_answered(client):
    pytest.importorskip("llguidance")
    chats = client.chat.completions
    fields = dict(model="", messages=CHAT, tools=[TOOL])
    whole = chats.create(**fields).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert call.function.name == "speak" and json.loads(call.function.arguments).keys() == {
        "loud",
        "times",
    }
    with chats.stream(**fields, tool_choice="required") as stream:
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls
    assert (streamed.finish_reason, again.function.arguments) == (
        "tool_calls",
        call.function.arguments,
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    fields["messages"] = [*CHAT, whole.message, result]
    assert chats.create(**fields).choices[0].message.content == ANSWER


def test_a_response_is_a_chat_under_other_names(client):
    whole = client.responses.create(model="", input=PROMPT, instructions="Be brief.")
    assert (whole.output_text, whole.status) == (ANSWER, "completed")
    cut = client.responses.create(model="", input=CHAT, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 3 and ANSWER.startswith(cut.output_text)
    with client.responses.stream(model="", input=CHAT) as stream:
        parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert len(parts) > 1 and "".join(parts) == last.output_text == ANSWER
    assert last.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("origin", [ORIGIN, "https://other.example"])
def test_pages_of_the_allowed_origins_may_send_requests(server, origin):
    asks = {"origin": origin, "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization, content-type"
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("OPTIONS", "/v1/chat/completions", headers=asks)
    response = connection.getresponse()
    allowed = origin if origin == ORIGIN else None
    assert response.status == (200 if allowed else 400)
    assert response.getheader("access-control-allow-origin") == allowed
    response.read()
    connection.request("POST", "/v1/audio/transcriptions", "", {"origin": origin})
    # This model hears nothing.
    assert connection.getresponse().status == (400 if allowed else 403)
