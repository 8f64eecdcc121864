"""serve.py: OpenAI's client gets main.py's texts; what is wrong is refused in
OpenAI's shape; who goes away, is slow or sends garbage disturbs nobody; a signal finishes what runs."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from helpers.programs import ANSWER, PROMPT, call
from helpers.serving import Server, form, openai_client

import serve
from apps.cli import models
from decoder import load
from speculative.common.errors import InputError
from speculative.text.generation import GenerationDefaults

pytestmark = pytest.mark.slow


def long(tokens: int) -> dict:
    """A request for so many tokens, one a step."""
    return {"prompt": PROMPT, "min_tokens": tokens, "max_tokens": tokens, "num_draft": 0}


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders, "--batch-size", "8") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai_client(server) as client:
        yield client


def refuses(server) -> bool:
    return server.post({"prompt": PROMPT})[0] == 503


def test_the_answer_is_main_pys(client, demo_folders):
    arguments = ["--prompt", PROMPT, "--temp", "0.8", "--seed", "3"]
    printed = call(*arguments, cwd=demo_folders).stdout.strip()
    sampled = client.completions.create(model="demo-target", prompt=PROMPT, temperature=0.8, seed=3)
    greedy = client.completions.create(model="demo-target", prompt=PROMPT)
    assert (greedy.choices[0].text, sampled.choices[0].text) == (ANSWER, printed)
    assert greedy.choices[0].finish_reason == "stop"
    assert greedy.usage.total_tokens == greedy.usage.prompt_tokens + 10 == 27


def test_a_stream_adds_up_to_the_answer(client):
    prompts = [PROMPT, "repair: The kign sees the the house."]
    sampled = dict(logprobs=2, seed=5, temperature=0.6, n=2)
    fields = dict(model="demo-target", prompt=prompts, **sampled)
    whole = client.completions.create(**fields)
    parts = client.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    streamed, last = [["", None, []] for _ in range(4)], None
    for last in parts:
        for choice in last.choices:
            text, _, offsets = streamed[choice.index]
            offsets = offsets + choice.logprobs.text_offset
            streamed[choice.index] = [text + choice.text, choice.finish_reason, offsets]
    assert streamed == [[c.text, "stop", c.logprobs.text_offset] for c in whole.choices]
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_the_seed_that_an_answer_names_makes_it_again(client, demo_pair):
    ids = demo_pair[1].encode(PROMPT).ids
    fields = dict(model="demo-target", temperature=2.0, max_tokens=12)
    first, second = (client.completions.create(**fields, prompt=[ids, "x"]) for _ in range(2))
    fields |= dict(prompt=[PROMPT, "x"], seed=first.seed)
    assert first.seed != second.seed
    assert client.completions.create(**fields).choices == first.choices
    assert {part.seed for part in client.completions.create(**fields, stream=True)} == {first.seed}


def test_a_prediction_is_copied_and_changes_nothing(client):
    prompt = "translate English to French: The old king sees two red doors behind the church."
    fields = dict(model="demo-target", prompt=prompt)
    text = client.completions.create(**fields, extra_body={"num_draft": 0}).choices[0].text
    for field, value in (("prediction", {"type": "content", "content": text}), ("reference", text)):
        body = {field: value, "num_draft": 8}
        completion = client.completions.create(**fields, extra_body=body)
        assert completion.choices[0].text == text
        usage = completion.usage
        accepted = usage.completion_tokens_details.accepted_prediction_tokens
        assert 0.8 * usage.completion_tokens <= accepted < usage.completion_tokens


def test_origins_and_log_probabilities_are_those_of_the_text(server):
    fields = {"prompt": PROMPT, "num_draft": 3, "origins": True, "logprobs": 3}
    _, answer = server.post(fields)
    choice = answer["choices"][0]
    drafted = [origin for _, origin in choice["origins"]].count("draft_model")
    assert "".join(text for text, _ in choice["origins"]) == choice["text"] == ANSWER
    assert choice["stats"]["accepted"] == drafted > 0
    rejected = choice["stats"]["draft_tokens"] - drafted
    assert list(answer["usage"]["completion_tokens_details"].values()) == [drafted, rejected]
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == ANSWER + "</s>"
    tokens = zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True)
    for text, score, best in tokens:
        assert len(best) == 3 and max(best.values()) == pytest.approx(score)
        assert best[text] == max(best.values())


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_banned_tokens_are_json(server, stream):
    """JSON has no infinities: -9999.0 is OpenAI's number for what cannot be."""
    fields = {"prompt": PROMPT, "logprobs": 20, "max_tokens": 3, "stream": stream}
    status, answer = server.post({**fields, "forced_bos_token_id": 9, "suppress_tokens": [5]})
    bodies = answer.split("data: ")[1:-1] if stream else [json.dumps(answer)]
    assert status == 200 and "-9999.0" in "".join(bodies)
    for body in bodies:
        json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_model_is_listed(client, server):
    assert [model.id for model in client.models.list()] == ["demo-target"]
    assert client.models.retrieve("demo-target").id == "demo-target"
    assert json.loads(server.get("/health")) == {"status": "ok"}


def test_a_chat_is_decoded_in_the_models_template(tmp_path):
    pytest.importorskip("mlx_lm")
    from helpers import causal_folders

    causal_folders.write(tmp_path / "target")
    causal_folders.write(tmp_path / "draft", noise=0.05)
    arguments = ["--model", "target", "-m", "12"]
    prompt = [*arguments, "-p", "the cat sat"]
    printed = call(*prompt, "--system-prompt", "be brief", cwd=tmp_path).stdout
    raw = call(*prompt, "--ignore-chat-template", cwd=tmp_path).stdout
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "the cat sat"}]},
    ]
    fields = dict(model="target", messages=messages, max_completion_tokens=12, logprobs=True)
    with (
        Server(tmp_path, *arguments, "--draft-model", "draft") as server,
        openai_client(server) as client,
    ):
        chat = client.chat.completions.create(**fields).choices[0]
        assert chat.message.content + "\n" == printed
        own = b"".join(bytes(token.bytes) for token in chat.logprobs.content)
        assert own.decode(errors="replace") + "\n" == printed
        chunks = client.chat.completions.create(**fields, stream=True)
        parts = [chunk.choices[0].delta for chunk in chunks]
        assert parts[0].role == "assistant"
        assert "".join(part.content or "" for part in parts) + "\n" == printed
        again = client.chat.completions.create(**fields)
        assert again.choices[0].message.content + "\n" == printed
        usage = again.usage
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
        turn = again.choices[0].message.model_dump() | {"parsed": {}}
        sent_back = [*messages, turn, messages[1]]
        answer = client.chat.completions.create(**fields | {"messages": sent_back})
        assert answer.usage.prompt_tokens > usage.prompt_tokens
        longest = dict(prompt=[5] * 250, max_tokens=8192)
        assert client.completions.create(model="target", **longest).usage.total_tokens == 256
        text = client.completions.create(model="target", prompt="the cat sat").choices[0].text
        assert text + "\n" == raw != printed


DEAD_END = 'start: "a" ("b" | "c\\n") "\\n"'  # found only while decoding
WRONG = [
    (b"\xff\xfe{", 400, "not JSON"),
    (b'{"prompt": ' + b"[" * 100_000, 400, "not JSON"),
    ({}, 400, "prompt: field required"),
    ({"prompt": " "}, 400, "the prompt is empty"),
    ({"prompt": "x " * 5000}, 400, "4096 at most"),
    ({"prompt": "x" * (1 << 20)}, 413, "too large"),
    ({"prompt": [5, -6]}, 400, "prompt is not a string, a list of token ids, or a list of these"),
    ({"prompt": [5, 10**6]}, 400, "the prompt has the token 1000000"),
    ({"prompt": "x", "prediction": "y"}, 400, 'not {"type": "content", "content": "..."}'),
    ({"prompt": "x", "max_tokens": 0}, 400, "from 1 to 1000000000"),
    ({"prompt": "x", "n": 3}, 400, "n above 1 needs temperature above 0"),
    ({"prompt": "x", "logit_bias": {"99999": 1}}, 400, "no token 99999"),
    (
        {"prompt": "x", "logit_bias": {"a\nb": 1}},
        400,
        "logit_bias is not token ids with a number each",
    ),
    ({"prompt": "x", "echo": True}, 400, "echo is not supported"),
    ({"prompt": "x", "temprature": 1}, 400, "no field 'temprature'"),
    ({"prompt": "x", "lookup": True}, 400, "whole server"),
    ({"prompt": "x", "model": "gpt-9"}, 404, "demo-target"),
    ({"prompt": "x", "structured_outputs": {"regex": "a\nb"}}, 400, "vocabulary"),
    ({"prompt": "x", "structured_outputs": {"grammar": DEAD_END}}, 400, "vocabulary"),
]


@pytest.mark.parametrize("body, status, reason", WRONG, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_refused_in_one_line(server, body, status, reason):
    answered, answer = server.post(body)
    assert answered == status
    error = answer["error"]
    assert reason in error["message"] and "\n" not in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert not any(word in error["message"] for word in ("/", "Traceback", "num_beams"))
    assert server.post({"prompt": PROMPT})[1]["choices"][0]["text"] == ANSWER


def test_a_choice_that_cannot_be_written_leaves_the_others(server):
    choice = {"prompt": PROMPT, "structured_outputs": {"choice": ["eintausend\nzwei", "zwei"]}}
    assert server.post(choice)[1]["choices"][0]["text"] == "zwei"


def test_sounds_are_not_for_a_model_of_text(server):
    body, headers = form({})
    status, answer = server.post(body, "/v1/audio/transcriptions", **headers)
    assert status == 400 and "reads text, not audio" in answer["error"]["message"]


def test_other_pages_of_a_browser_cannot_ask(server):
    status, _ = server.post(b'{"prompt": "x"}', **{"content-type": "text/plain"})
    assert status == 415
    kind = "Application/Json; charset=UTF-8"
    assert server.post({"prompt": PROMPT}, **{"content-type": kind})[0] == 200
    status, answer = server.post({"prompt": "x"}, **{"host": "elsewhere.example"})
    assert status == 400 and "localhost (see --allowed-hosts)" in answer["error"]["message"]
    assert server.post({"prompt": "x"}, **{"host": "host.docker.internal:8080"})[0] == 200


def test_the_served_model_has_several_names(server):
    for name in ("demo-target", "default_model", "", None):
        assert server.post({"prompt": PROMPT, "model": name})[0] == 200


@pytest.mark.parametrize(
    "model, name",
    [
        (".", "target"),
        ("..", "models"),
        ("target/", "target"),
        ("a/b-c", "b-c"),
        ("/", "default_model"),
    ],
)
def test_every_model_has_a_name(model, name, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "target"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert serve.model_id(model) == name


@pytest.mark.parametrize("host", ["127.1", "LOCALHOST", "::1", "[::1]", "2130706433"])
def test_every_spelling_of_loopback_has_the_host_check(host):
    try:
        listener = serve.listen(host, 0)
    except InputError as error:
        assert ":" in host
        pytest.skip(f"no IPv6 here: {error}")
    with listener:
        address = listener.getsockname()[0]
    hosts = serve.allowed_hosts(host, address)
    assert "*" not in hosts and {"localhost", serve.in_url(address)} <= {*hosts}
    assert serve.allowed_hosts("0.0.0.0", "0.0.0.0") == ("*",)
    assert {"a.example", "b"} <= {*serve.allowed_hosts(host, address, ["A.example", "b"])}


def test_a_key_is_asked_for(demo_folders):
    with Server(demo_folders, "--api-key", "sésame") as server:
        assert "<title>" in server.get("/") and "ok" in server.get("/health")
        for headers in ({}, {"authorization": "Bearer sesame"}, {"authorization": "sésame"}):
            status, answer = server.post({"prompt": PROMPT}, **headers)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        with pytest.raises(OSError, match="401"):
            server.get("/metrics")
        key = "Bearer sésame".encode().decode("latin-1")
        assert server.post({"prompt": PROMPT}, authorization=key)[0] == 200


def begin(server, fields) -> socket.socket:
    """A request, of which nothing is read yet."""
    body = json.dumps(fields).encode()
    connection = socket.socket()
    connection.settimeout(60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it is connected
    connection.connect(("127.0.0.1", server.port))
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_a_client_that_goes_away_frees_its_row(server):
    cancelled = 'texts_total{finish_reason="cancelled"}'
    before = server.metric(cancelled)
    requests = [{**long(4000), "stream": bool(number % 2)} for number in range(8)]
    running = [begin(server, fields) for fields in requests]
    server.until("texts_running", 8)
    waiting = [begin(server, fields) for fields in requests]
    server.until("texts_waiting", 8)
    for connection in waiting:  # before a place becomes free
        connection.close()
    server.until("texts_waiting", 0)
    with running[1].makefile("rb") as stream:
        first = next(line for line in stream if line.startswith(b"data: "))
    assert b'"finish_reason": null' in first  # a part, long before the end
    for connection in running:
        connection.close()
    server.until(cancelled, before + 8)  # who waited had not begun
    server.until("texts_running", 0)
    assert server.post({"prompt": PROMPT})[1]["choices"][0]["text"] == ANSWER


def test_slow_readers_hold_nobody_up(server):
    slow = {**long(300), "stream": True, "logprobs": 20}  # half a megabyte
    finished = 'texts_total{finish_reason="length"}'
    before = server.metric(finished)
    connections = [begin(server, slow) for _ in range(2)]
    assert server.post({"prompt": PROMPT})[1]["choices"][0]["text"] == ANSWER
    server.until(finished, before + 2)  # though nothing was read
    with connections[0].makefile("rb") as stream:
        received = list(iter(stream.readline, b"data: [DONE]\n"))
    assert sum(b'"finish_reason": "length"' in line for line in received) == 1
    for connection in connections:
        connection.close()


def test_a_signal_finishes_what_runs_and_refuses_the_rest(demo_folders, decoder):
    with Server(demo_folders, "--batch-size", "4") as server, ThreadPoolExecutor(10) as clients:
        # Some seconds' work: they have to run until the signal has come.
        posted = [clients.submit(server.post, long(300)) for _ in range(9)]
        server.until("texts_running", 4)
        server.until("texts_waiting", 5)
        server.process.send_signal(signal.SIGTERM)
        assert any(refuses(server) for _ in range(100))
        answers = [one.result() for one in posted]
        assert server.process.wait(30) == 0
    assert sorted(status for status, _ in answers) == [200] * 4 + [503] * 5
    finished = [a["choices"][0]["text"] for status, a in answers if status == 200]
    assert finished == [decoder.generate(**long(300))] * 4


def test_a_second_signal_ends_at_once(demo_folders):
    with Server(demo_folders) as server, ThreadPoolExecutor(1) as clients:
        posted = clients.submit(server.post, long(4000))
        server.until("texts_running", 1)
        server.process.send_signal(signal.SIGINT)
        assert any(refuses(server) for _ in range(100))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        assert posted.result()[0] == 503


@pytest.mark.parametrize("host", ["127.0.0.1", "ü" * 70, "[]", "no such host"])
def test_an_address_that_cannot_be_is_one_line(server, host):
    with pytest.raises(InputError, match="cannot listen on port") as refused:
        serve.listen(host, server.port)
    said = str(refused.value)
    assert "\n" not in said and said.count(host) == 1 and said.endswith("(see --port, --host)")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--batch-size", "0"], "--batch-size: invalid positive value: '0'"),
        (["--api-key", ""], "--api-key: invalid name value"),
        (["--host", ""], "--host: invalid name value"),
        (["--num-beams", "4"], "--num-beams: the server does not search with beams"),
        (["--length-penalty", "2"], "--length-penalty: the server does not search with beams"),
        (
            ["--max-tokens", "9", "--max-request-tokens", "5"],
            "--max-tokens is more than --max-request-tokens",
        ),
        (["--delta", "0.2", "--acceptance", "block"], "delta works only with"),
    ],
)
def test_a_wrong_command_is_one_line(arguments, reason, capsys):
    with pytest.raises((SystemExit, InputError)) as stopped:
        serve.parse_args(arguments)
    said = capsys.readouterr().err or str(stopped.value)
    assert reason in said and "\n" not in said.strip()


def test_what_the_model_cannot_do_is_refused_at_the_start(demo_folders, monkeypatch, capsys):
    """And what its checkpoint asks for in vain is told, without advice to search with beams."""
    model, tokenizer = load(demo_folders / "mlx_models" / "demo-target")
    defaults = GenerationDefaults(not_done={"num_beams": 4})
    model.text = replace(model.text, defaults=defaults)
    monkeypatch.setattr(models, "load", lambda *_, **__: (model, tokenizer))
    monkeypatch.setattr(serve.reporter, "note", serve.cli.note)
    args = serve.parse_args(["--model", "target", "--target-lang", "Klingon"])
    with pytest.raises(InputError, match="target_lang: no language 'Klingon'"):
        serve.text_decoder(models.Models.of(args), serve.options_of(args))
    assert capsys.readouterr().err == "ignored from generation_config.json: num_beams=4\n"


def test_what_is_written_is_sent_at_once():
    with serve.listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
