"""The server's routes: they authorise requests, read them, and answer while the engine decodes."""

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoder import Content
from serving import answers, deepl, libretranslate
from serving.answers import Writer
from serving.audio import Speech
from serving.bodies import parse
from serving.deepl import DeepL
from serving.engine import Engine, Progress, Refused
from serving.gate import Gate, Limits
from serving.libretranslate import LibreTranslate
from serving.metrics import CONTENT_TYPE
from serving.realtime import Realtime
from serving.requests import Chat, Completion, ResponseRequest
from serving.responses import ResponseWriter
from serving.translation import Translations
from serving.transport import (
    ERRORS,
    RETRY_AFTER,
    event_of,
    failure_of,
    read_body,
    steps_of,
    stream_of,
    while_there,
)
from speculative.row import Row
from speculative.sampling import RowSeeds
from speech.rules import TASKS
from speech.transcriber import Transcriber
from text.thinking import Thinking

_MAX_TAG = 16  # tokens of a think tag and the white space after it
_PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
# Interfaces besides OpenAI's, by the first part of a path -> the form of their errors
_ERRORS = {"v2": deepl.error, **dict.fromkeys(libretranslate.PATHS, libretranslate.error)}
_PAGE_MAY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class Api:
    """The handlers of the routes."""

    engine: Engine
    gate: Gate
    limits: Limits
    draft_model: str | None = None  # its name
    transcriber: Transcriber | None = None  # for a Whisper model
    template: Mapping[str, Any] = field(default_factory=dict)  # arguments for the chat template

    def __post_init__(self):
        decoder = self.engine.decoder
        self._piece = answers.pieces(decoder.tokenizer, decoder.hidden)
        self._chat = decoder.text.chat
        self._listed = {
            "id": self.gate.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "local",
            "draft_model": self.draft_model,
            "lookup": self.engine.options.copies(self.draft_model is not None),
            "chat": self._chat is not None,
            "speech": self.transcriber is not None,
            "interfaces": ["openai"] if self.transcriber else ["openai", "libretranslate", "deepl"],
        }
        self._speech = Speech(self.transcriber, self.engine, self.gate, self.limits)
        self._realtime = Realtime(self.transcriber, self.engine, self.gate, self.limits)
        translations = Translations(self.engine, self.gate, self.limits)
        self._deepl = DeepL(translations)
        self._libretranslate = LibreTranslate(translations)

    def app(self) -> Starlette:
        post = partial(Route, methods=["POST"])
        routes = [
            Route("/models", self.models),
            Route("/models/{name:path}", self.models),
            post("/completions", partial(self.complete, kind=Completion)),
            post("/chat/completions", partial(self.complete, kind=Chat)),
            post("/responses", partial(self.complete, kind=ResponseRequest)),
            post("/audio/transcriptions", partial(self._speech.answer, task=TASKS[0])),
            post("/audio/translations", partial(self._speech.answer, task=TASKS[1])),
            WebSocketRoute("/realtime", self._realtime.answer),
        ]
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Mount("/v1", routes=routes),
                post("/inference", partial(self._speech.answer, task=TASKS[0])),  # whisper.cpp's
                *routes,  # for clients whose address ends before /v1
                Mount("/v2", routes=self._deepl.routes()),
                *self._libretranslate.routes(),
            ],
            middleware=[
                Middleware(_counted, requests=self.engine.metrics.requests),
                Middleware(_addressed, hosts=self.gate.hosts),
                Middleware(
                    CORSMiddleware,
                    allow_origins=self.gate.origins,
                    allow_methods=["*"],
                    allow_headers=["*"],
                ),
            ],
            exception_handlers={
                **dict.fromkeys([*ERRORS, Exception], _failure),
                # Nobody reads this answer; the status is nginx's.
                ClientDisconnect: lambda *_: Response(status_code=499),
            },
        )

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE, headers={"content-security-policy": _PAGE_MAY})

    async def health(self, request: Request) -> Response:
        if self.engine.closed:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        self.gate.authorize(request)
        return Response(self.engine.metrics.text(), media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:
        self.gate.authorize(request)
        name = request.path_params.get("name")
        if name:
            self.gate.check_model(name)
            return JSONResponse(self._listed)
        return JSONResponse({"object": "list", "data": [self._listed]})

    async def complete(self, http: Request, kind: type[Completion] | type[Chat]) -> Response:
        self.gate.authorize(http)
        request = parse(await _body(http), kind)
        self.gate.check_model(request.model)
        async with while_there(http):
            rows = await run_in_threadpool(self._rows, request)
            thinking = [self._thinking(request, row) for row in rows]
            kind_of_writer = ResponseWriter if isinstance(request, ResponseRequest) else Writer
            writer = kind_of_writer(request, rows, self.gate.name, self._piece, thinking)
            steps = steps_of(self.engine, rows)
            last = await anext(steps)  # the status must be known before a stream begins
            if request.stream:
                return stream_of(_events(writer, last, steps), steps)
            async for progress in steps:
                last = progress
            return JSONResponse(writer.whole(last))

    def _rows(self, request: Completion | Chat) -> list[Row]:
        """The rows of a request. Raises InputError now for what the model cannot take, so that it fails this request
        and not the rows beside it."""
        decoder = self.engine.decoder
        options = decoder.seeded(request.options(self.engine.options, self.limits.answer_tokens))
        prompts: Sequence[Content]
        if isinstance(request, Completion):
            prompts = request.prompt
        else:
            prompts = [request.prompt(self._chat, self.template)]
        seeds = RowSeeds(options.seed)
        limit = self.limits.prompt_tokens
        return [row for prompt in prompts for row in decoder.rows(prompt, options, seeds, limit)]

    def _thinking(self, request: Completion | Chat, row: Row) -> Thinking:
        """A splitter of a row's text. A text in a given form has no thoughts."""
        if self._chat is None or row.grammar or not isinstance(request, Chat):
            return Thinking(None)
        tokenizer = self.engine.decoder.tokenizer
        prompt = tokenizer.decode(row.prompt[-_MAX_TAG:], skip_special_tokens=False)
        last = request.messages[-1]
        begun = last.content if last.role == "assistant" else ""
        return Thinking(self._chat.thinking, self._chat.thinks(prompt, begun))


def _counted(app: ASGIApp, requests: Counter) -> ASGIApp:
    """The app. It counts the answers to POST requests by their status."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "POST":
                requests.labels(message["status"]).inc()
            await send(message)

        await app(scope, receive, counting)

    return counted


def _addressed(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    """The app, for requests to one of these hosts: another web page may let its own name resolve to this machine."""
    names = ", ".join(hosts)
    refused = _error(400, f"this server answers only requests to {names} (see --allowed-hosts)")

    async def addressed(scope: Scope, receive: Receive, send: Send) -> None:
        inner = app
        if scope["type"] != "lifespan" and "*" not in hosts:
            host = Headers(scope=scope).get("host", "").lower()
            inner = app if re.sub(r":\d+$", "", host) in hosts else refused
        await inner(scope, receive, send)

    return addressed


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(answers.error(status, message[:500]), status, headers)


async def _failure(request: Request, error: Exception) -> Response:
    """The error that answers a request, in the form of its interface."""
    status, message = failure_of(error)
    headers = RETRY_AFTER if isinstance(error, Refused) else getattr(error, "headers", None)
    form = _ERRORS.get(request.url.path.split("/")[1])
    if form is None:
        return _error(status, message, headers)
    return JSONResponse(form(message[:500]), 403 if status == 401 else status, headers)


async def _body(request: Request) -> bytes:
    # Browsers send other types from any web page without asking first.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the body must be application/json")
    return await read_body(request)


async def _events(
    writer: Writer, progress: list[Progress] | None, steps: AsyncIterator[list[Progress]]
) -> AsyncIterator[str]:
    """A stream's events; its first step has already been decoded."""
    for body in writer.begin():
        yield writer.event(body)
    try:
        while progress:
            for body in writer.chunks(progress):
                yield writer.event(body)
            progress = await anext(steps, None)
    except HTTPException as error:
        yield event_of(answers.error(*failure_of(error)))
        return
    for body in writer.end():
        yield writer.event(body)
    yield "data: [DONE]\n\n"
