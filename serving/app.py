"""The routes: who may ask, what is asked, and how it is answered while it is decoded."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoder import Options, SpeculativeDecoder
from errors import InputError
from serving import answers
from serving.answers import Writer
from serving.engine import CANCELLED, FAILED, REFUSED, START, Engine, Job, Progress, Refused
from serving.metrics import CONTENT_TYPE, Metrics
from serving.requests import Asked, Chat, Completion, parse
from speculative.row import Row
from speculative.sampling import RowSeeds

T = TypeVar("T")

MAX_BODY = 1 << 20  # bytes
BODY_SECONDS = 30.0  # for a body to arrive
RETRY_AFTER = {"retry-after": "1"}  # seconds
_FAILURES = {
    FAILED: (500, "decoding failed; the server's log says why"),
    REFUSED: (503, "the server is shutting down"),
    CANCELLED: (503, "the server is shutting down"),
}
_PAGE_MAY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Served:
    """What is served, and to whom."""

    name: str  # of the model
    decoder: SpeculativeDecoder
    options: Options  # of what a request does not say
    template: Callable[[list[dict[str, str]]], str] | None = None  # of chats; None: there is none
    about: Mapping[str, Any] = field(default_factory=dict)  # what else to say of the model
    max_prompt_tokens: int = 4096
    max_tokens: int = 4096  # that a request may ask for
    api_key: str | None = None
    hosts: Sequence[str] = ("*",)  # names under which the server is asked


Steps = list[
    tuple[int, Progress, Progress]
]  # rows: which, what was seen of each, and what there is


async def _steps(jobs: Sequence[Job], event: asyncio.Event) -> AsyncIterator[Steps]:
    """What the rows of a request gain, as it comes, until all have ended; what came while nobody looked is one.
    HTTPException for a row that will not be finished. event: set whenever there is progress."""
    seen = [START] * len(jobs)
    while not all(progress.finish_reason for progress in seen):
        await event.wait()
        event.clear()
        now = [job.progress for job in jobs]
        for progress in now:
            if progress.finish_reason in _FAILURES:
                raise HTTPException(*_FAILURES[progress.finish_reason], headers=RETRY_AFTER)
        steps = zip(range(len(jobs)), seen, now, strict=True)
        yield [(i, before, after) for i, before, after in steps if after is not before]
        seen = now


class Events(StreamingResponse):
    """Server-sent events, with what is to be done when they are over, however that comes."""

    def __init__(self, events: AsyncIterator[str], over: Callable[[], object]):
        headers = {"cache-control": "no-store"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


class Counted:
    """Counts the answers of what is posted, by their status."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app, self._requests = app, metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "POST":
                self._requests.labels(message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counting)


class Api:
    """The handlers of the routes."""

    def __init__(self, served: Served, engine: Engine):
        self._served, self._engine = served, engine
        decoder = served.decoder
        self._piece = answers.pieces(decoder.tokenizer)
        # A template has the special tokens.
        self._of_chats = SpeculativeDecoder(
            decoder.model,
            decoder.tokenizer,
            encode=lambda text: decoder.tokenizer.encode(text, add_special_tokens=False).ids,
        )
        self._page = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        self._began = int(time.time())

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers={"content-security-policy": _PAGE_MAY})

    async def health(self, request: Request) -> Response:
        if self._engine.closed:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        self._authorize(request)
        return Response(self._engine.metrics.text(), media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._authorize(request)
        self._check_model(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        model = {"id": self._served.name, "object": "model", "created": self._began}
        return {**model, "owned_by": "local", **self._served.about}

    async def answer(self, request: Request, kind: type[Asked]) -> Response:
        self._authorize(request)
        try:
            asked = parse(await _body(request), kind)
            self._check_model(asked.model)
            rows = await run_in_threadpool(self._rows, asked)
            return await self._decode(request, asked, rows)
        except ClientDisconnect:
            return Response(status_code=499)  # for nobody; nginx's number

    async def _decode(self, request: Request, asked: Asked, rows: list[Row]) -> Response:
        """The answer to a request, whose rows end with it."""
        jobs, event = self._submit(rows)

        def over() -> None:
            if not all(job.progress.finish_reason for job in jobs):
                self._engine.cancel(jobs)

        writer = Writer(asked, rows, self._served.name, self._piece)
        steps = _steps(jobs, event)
        try:
            # A status can only be told before a stream begins.
            first = await _unless_gone(request, anext(steps))
            if asked.stream:
                return Events(_events(writer, jobs, first, steps), over)
            while await _unless_gone(request, anext(steps, None)) is not None:
                pass
        except BaseException:
            over()
            raise
        return JSONResponse(writer.whole([job.progress for job in jobs]))

    def _rows(self, asked: Asked) -> list[Row]:
        """The rows of a request, InputError for what the model cannot take: it is the one to be told, and not
        those that the row would be decoded with."""
        served = self._served
        options = asked.options(served.options)
        if options.max_tokens is not None and options.max_tokens > served.max_tokens:
            raise InputError(f"max_tokens is {options.max_tokens}; {served.max_tokens} at most")
        if isinstance(asked, Completion):
            decoder, prompts = served.decoder, asked.prompt
        elif served.template is None:
            raise InputError("this model has no chat template: ask /v1/completions")
        else:
            messages = [message.model_dump() for message in asked.messages]
            decoder, prompts = self._of_chats, [served.template(messages)]
        seed, rows = RowSeeds(options.seed), []
        for prompt in prompts:
            for _ in range(options.num_samples):
                row = decoder.row(prompt, options, seed)
                if len(row.prompt) > served.max_prompt_tokens:
                    raise InputError(
                        f"the prompt has {len(row.prompt)} tokens; {served.max_prompt_tokens} at most"
                    )
                rows.append(row)
        return rows

    def _submit(self, rows: list[Row]) -> tuple[list[Job], asyncio.Event]:
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

        return self._engine.submit(rows, wake), event

    def _authorize(self, request: Request) -> None:
        key = self._served.api_key
        given = request.headers.get("authorization", "").encode("latin-1")  # the bytes as sent
        if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            raise HTTPException(401, "no API key, or a wrong one: Authorization: Bearer ...")

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._served.name):
            raise HTTPException(404, f"the model here is {self._served.name}")


def make_app(served: Served, engine: Engine) -> Starlette:
    api = Api(served, engine)
    return Starlette(
        routes=[
            Route("/", api.page),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
            Route("/v1/models", api.models),
            Route("/v1/models/{name:path}", api.model),
            Route("/v1/completions", partial(api.answer, kind=Completion), methods=["POST"]),
            Route("/v1/chat/completions", partial(api.answer, kind=Chat), methods=["POST"]),
        ],
        middleware=[
            Middleware(Counted, metrics=engine.metrics),
            # A page elsewhere may have its name lead here.
            Middleware(TrustedHostMiddleware, allowed_hosts=served.hosts, www_redirect=False),
        ],
        exception_handlers={
            HTTPException: lambda request, error: _error(
                error.status_code, error.detail, error.headers
            ),
            Refused: lambda request, error: _error(503, str(error), RETRY_AFTER),
            InputError: lambda request, error: _error(400, str(error)),
            Exception: lambda request, error: _error(500, "an error of the server's"),
        },
    )


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(answers.error(status, message[:500]), status, headers)


async def _body(request: Request) -> bytes:
    # Another kind could come from any page of the browser's, which asks nobody first.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the body has to be of the type application/json")
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:  # Starlette's own limit answers in plain text
                    raise HTTPException(413, f"the body is too large; {MAX_BODY} bytes at most")
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What work gives; ClientDisconnect, and no more work, as soon as the client is gone."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _events(
    writer: Writer, jobs: Sequence[Job], gained: Steps | None, steps: AsyncIterator[Steps]
) -> AsyncIterator[str]:
    """A stream, of which the first step is there already."""
    for body in writer.begin():
        yield _event(body)
    try:
        while gained is not None:
            for step in gained:
                yield _event(writer.part(*step))
            gained = await anext(steps, None)
    except HTTPException as error:
        yield _event(answers.error(error.status_code, error.detail))
        return
    for body in writer.end([job.progress for job in jobs]):
        yield _event(body)
    yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
