"""All routes: the key before anything else, and nothing heavy on the event loop, which all requests share."""

import asyncio
import json

import pytest
from helpers.programs import PROMPT
from helpers.serving import WATCHED, Server, heavy
from starlette.routing import Mount, Route
from test_translation_server import MULTIPART, PAIR, request, upload

from apps.serving.app import Api
from apps.serving.engine import Engine
from apps.serving.gate import Gate, Limits
from apps.serving.transport import MAX_BODY
from decoder import Options

OPEN = ["/", "/health", "/languages", "/frontend/settings", "/download_file/{key}"]
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
REGEX = {"structured_outputs": {"regex": "a+"}}
TEXT = {"prompt": PROMPT}
BODIES = {  # routes for texts -> bodies of first requests
    "/completions": [TEXT, TEXT | {"stream": True, "logprobs": 2}, TEXT | REGEX, {"prmpt": "x"}],
    "/chat/completions": [CHAT, CHAT | {"response_format": {"type": "json_object"}}],
    "/responses": [{"input": PROMPT}],
    "/translate": [
        PAIR | {"q": "King."},
        {"q": "<b>a</b>", "format": "html", "source": "auto", "target": "de"},
    ],
    "/detect": [{"q": "The king."}],
    "/suggest": [{}],
    "/v2/check?language=auto&text=The+kng.": [{}],
    "/v2/translate": [{"text": ["<x>King</x>"], "target_lang": "DE", "tag_handling": "xml"}],
}
DOCUMENTS = ["a.txt", "a.po", "a.docx"]  # each is read in a process of its own


def routes_of(routes, before: str = ""):
    for route in routes:
        if isinstance(route, Mount):
            yield from routes_of(route.routes, before + route.path)
        else:
            yield before + route.path, route


@pytest.fixture(scope="module")
def routes(decoder):
    return {**dict(routes_of(app_of(decoder, "key").routes))}


def app_of(decoder, key):
    engine = Engine(decoder, Options(), 1, 1)
    gate = Gate("m", api_key=key, hosts=("*",))
    return Api(engine, gate, Limits(99, 99, 9, 25 << 20, 9)).app()


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/json", "x"])
def test_without_a_key_nothing_is_read(decoder, routes, kind):
    """But for what may hold the key: a JSON object of LibreTranslate's, and 64 KB of a form."""
    app = app_of(decoder, "key")

    async def ask(path: str, method: str) -> tuple[int, int]:
        read, answers = 0, []

        async def receive() -> dict:
            nonlocal read
            part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' * (
                not read
            )
            part += b" " * (1 << 14)
            read += len(part)
            return {"type": "http.request", "body": part, "more_body": True}

        async def send(message: dict) -> None:
            answers.append(message)

        headers = [(b"content-type", kind.encode()), (b"authorization", b"Bearer wrong")]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "query_string": b"",
        }
        await app(scope | {"root_path": ""}, receive, send)
        return answers[0]["status"], read

    for path, route in routes.items():
        for method in getattr(route, "methods", ()) if path not in OPEN else ():
            status, read = asyncio.run(ask(path.replace("{key}", "x"), method))
            is_json = kind.endswith("json") and status == 413
            assert (status in (401, 403) and read <= 1 << 17) or (
                is_json and read < 2 * MAX_BODY
            ), path


@pytest.mark.slow
def test_no_first_request_imports_or_opens_anything_on_the_event_loop(demo_folders, routes):
    with Server(demo_folders, program=WATCHED) as server:
        asked = set()
        for path, bodies in BODIES.items():
            asked |= {path, f"/v1{path}"} & {*routes}
            for body in bodies:
                server.post(body, path)
        for name in DOCUMENTS:
            request(server, "POST", "/translate_file", upload(PAIR, name, b"King"), **MULTIPART)
        _, answer = request(
            server,
            "POST",
            "/v2/document",
            upload({"target_lang": "DE"}, "a.txt", b"x"),
            **MULTIPART,
        )
        key = json.loads(answer)["document_id"]
        asked |= {"/translate_file", "/v2/document"}
        for path, route in routes.items():
            if "GET" in getattr(route, "methods", ()):
                request(server, "GET", path.replace("{key}", key).replace("{name:path}", "x"))
                asked.add(path)
    not_audio = {
        path for path, route in routes.items() if isinstance(route, Route) and "audio" not in path
    } - {"/inference", "/asr", "/detect-language"}
    assert asked == not_audio
    assert heavy(server) == []
