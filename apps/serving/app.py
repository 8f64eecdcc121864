"""The server's routes: they authorise requests, read them, and answer while the engine decodes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, Counter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.serving.answers import Answer
from apps.serving.audio import Speech
from apps.serving.bodies import parse
from apps.serving.completions import CompletionWriter
from apps.serving.correction import Corrections
from apps.serving.correction_routes import LanguageTool
from apps.serving.engine import Engine
from apps.serving.gate import Gate, Limits
from apps.serving.realtime import Realtime
from apps.serving.requests import Chat, Completion, ResponseRequest
from apps.serving.responses import ResponseWriter
from apps.serving.sound_requests import Asr, Inference
from apps.serving.translation import Translations
from apps.serving.translation_routes import DeepL, LibreTranslate
from apps.serving.transport import ERRORS, failure, read_body, steps_of, stream_of, while_there
from apps.speech.rules import TASKS
from apps.speech.transcriber import Transcriber
from decoder import Content
from speculative.step.row import Row
from speculative.step.sampling import RowSeeds
from speculative.text.correction_prompt import correction_prompt
from speculative.text.thinking import Thinking
from speculative.text.tokenizer import token_names

_MAX_TAG = 16  # tokens of a think tag and the white space after it
_PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
_PAGE_MAY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class Api:
    engine: Engine
    gate: Gate
    limits: Limits
    draft_model: str | None = None  # its name
    transcriber: Transcriber | None = None  # for a Whisper model
    template: Mapping[str, Any] = field(default_factory=dict)  # arguments for the chat template

    def __post_init__(self):
        decoder = self.engine.decoder
        self._named = token_names(decoder.tokenizer, decoder.maker.hidden)
        self._chat = decoder.text.chat
        template = self.engine.options.prompt_template
        if template is None or "{target}" in template:  # that is for translations
            template = correction_prompt(self.gate.names)
        self._corrections = Corrections(self.engine, template)
        self._listed = {
            "id": self.gate.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "local",
            "draft_model": self.draft_model,
            "lookup": self.engine.options.copies(self.draft_model is not None),
            "chat": self._chat is not None,
            "speech": self.transcriber is not None,
            "corrects": template is not None,
            "interfaces": ["openai"] if self.transcriber else ["openai", "libretranslate", "deepl"],
        }

    def app(self) -> Starlette:
        post = partial(Route, methods=["POST"])
        speech = Speech(self.transcriber, self.engine, self.gate, self.limits)
        realtime = Realtime(speech)
        translations = Translations(self.engine, self.gate, self.limits)
        routes = [
            Route("/models", self.models),
            Route("/models/{name:path}", self.models),
            post("/completions", partial(self.complete, kind=Completion)),
            post("/chat/completions", partial(self.complete, kind=Chat)),
            post("/responses", partial(self.complete, kind=ResponseRequest)),
            post("/audio/transcriptions", speech.answer),
            post("/audio/translations", partial(speech.answer, task=TASKS[1])),
            WebSocketRoute("/realtime", realtime.answer),
        ]
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Mount("/v1", routes=routes),
                post("/inference", partial(speech.answer, form=Inference)),
                post("/asr", partial(speech.answer, form=Asr)),
                post("/detect-language", speech.detect_language),
                *routes,  # for clients whose address ends before /v1
                *LanguageTool(self._corrections, self.gate).routes(),
                *DeepL(translations).routes(),
                *LibreTranslate(translations).routes(),
            ],
            middleware=[
                Middleware(_guarded, gate=self.gate, requests=self.engine.metrics.requests),
                Middleware(CORSMiddleware, **self.gate.cors),
            ],
            exception_handlers={
                **dict.fromkeys([*ERRORS, Exception], failure),
                # Nobody reads this answer; the status is nginx's.
                ClientDisconnect: lambda *_: Response(status_code=499),
            },
        )

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE, headers={"content-security-policy": _PAGE_MAY})

    async def health(self, request: Request) -> Response:
        self.engine.check()
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        self.gate.authorize(request)
        return Response(self.engine.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        self.gate.authorize(request)
        name = request.path_params.get("name")
        if name:
            self.gate.check_model(name)
            return JSONResponse(self._listed)
        return JSONResponse({"object": "list", "data": [self._listed]})

    async def complete(self, http: Request, kind: type[Completion] | type[Chat]) -> Response:
        self.gate.authorize(http)
        # Browsers send other types from any web page without asking first.
        if not http.headers.get("content-type", "").lower().startswith("application/json"):
            raise HTTPException(415, "the body must be application/json")
        request = parse(await read_body(http), kind)
        self.gate.check_model(request.model)
        async with while_there(http):
            writer = await run_in_threadpool(self._writer, request)
            steps = steps_of(self.engine, iter(writer.rows))
            if request.stream:
                return await stream_of(http, steps, writer.events)
            ends = {step.row: step.now async for step in steps}
            return JSONResponse(writer.whole(ends))

    def _writer(self, request: Completion | Chat) -> CompletionWriter | ResponseWriter:
        """The writer of a request's answer. Raises InputError for what the model cannot take."""
        decoder = self.engine.decoder
        limit = self.limits.answer_tokens
        options = decoder.seeded(request.options(self.engine.options, limit, self._chat))
        prompts: Sequence[Content]
        if isinstance(request, Completion):
            prompts = request.prompt
        else:
            prompts = [request.prompt(self._chat, self.template, options.tools)]
        seeds = RowSeeds(options.seed)
        rows = []
        for prompt in prompts:
            rows += decoder.maker.rows(prompt, options, seeds, self.limits.prompt_tokens)
        answers = [Answer(row, self._thinking(request, row)) for row in rows]
        if isinstance(request, ResponseRequest):
            return ResponseWriter(request, answers[0], self.gate.name)
        return CompletionWriter(request, answers, self.gate.name, self._named)

    def _thinking(self, request: Completion | Chat, row: Row) -> Thinking:
        """A splitter of a row's text. A text in a given form has no thoughts."""
        is_free = row.grammar is None or (row.options.tools or {}).get("or_text")
        if self._chat is None or not is_free or not isinstance(request, Chat):
            return Thinking(None)
        tokenizer = self.engine.decoder.tokenizer
        prompt = tokenizer.decode(row.prompt[-_MAX_TAG:], skip_special_tokens=False)
        last = request.messages[-1]
        begun = last.content if last.role == "assistant" else ""
        return Thinking(self._chat.thinking, self._chat.thinks(prompt, begun))


def _guarded(app: ASGIApp, gate: Gate, requests: Counter) -> ASGIApp:
    """The app, for requests to the server's own hosts. It counts the answers to POST requests by their status."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "POST":
                requests.labels(message["status"]).inc()
            await send(message)

        inner = app
        if scope["type"] != "lifespan":
            connection = HTTPConnection(scope)
            try:
                gate.check_host(connection)
            except HTTPException as error:
                inner = await failure(connection, error)
        await inner(scope, receive, counting)

    return guarded
