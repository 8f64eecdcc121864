"""Shared by all routes: reading a request's body, decoding its rows while its client is there, streams and errors."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import anyio
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from apps.serving.engine import FAILURES, START, Engine, Job, Progress
from speculative.common.errors import InputError
from speculative.step.driver import RunningTask, Task
from speculative.step.row import Row

MAX_BODY = 1 << 20  # bytes of a body, unless it is a file
BODY_SECONDS = 30.0  # in which a body must arrive
BEGINNING = 1 << 16  # bytes of a form that are read before the key in it is checked
ERRORS = (HTTPException, InputError)  # that a client is told of
Events = Callable[[AsyncIterator], AsyncIterator[str]]
_LANGUAGETOOL = "check info healthcheck".split()
_LIBRETRANSLATE = "translate translate_file download_file detect languages frontend suggest".split()


class RowStep(NamedTuple):
    row: Row
    before: Progress
    now: Progress

    @property
    def new(self) -> slice:
        return slice(self.before.tokens, self.now.tokens)

    def drafts(self) -> dict[str, Any]:
        """The origins of the new tokens, and the counts so far."""
        pairs = zip(self.row.texts[self.new], self.row.origins[self.new], strict=True)
        counts = {"tokens": self.now.stats.tokens, **self.now.stats.drafting}
        return {"origins": [list(pair) for pair in pairs], "stats": counts}


def failure_of(error: Exception) -> tuple[int, str]:
    """The status and the message that tell a client of an error."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, InputError):
        return 400, str(error)[:500]
    return 500, "an error of the server's"


async def failure(request: HTTPConnection, error: Exception) -> Response:
    """The error that answers a request, in the form of its interface."""
    status, message = failure_of(error)
    headers = getattr(error, "headers", None)
    path = request.scope["path"]
    if path.removeprefix("/v2").removeprefix("/") in _LANGUAGETOOL:
        return PlainTextResponse(f"Error: {message}", status, headers)
    return JSONResponse(error_body(status, message, path), status, headers)


def error_body(status: int, message: str, path: str = "") -> dict[str, Any]:
    """The body of an error in the form of the path's interface."""
    first = path.split("/")[:2][-1]
    if first in ("v2", "v3"):  # DeepL's
        return {"message": message}
    if first in _LIBRETRANSLATE:
        return {"error": message}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def read_body(
    request: Request, max_bytes: int = MAX_BODY, seconds: float = BODY_SECONDS, check: Any = None
) -> bytes:
    """A request's body. HTTPException if it is larger or slower. check: awaited with the beginning of a longer one."""
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:  # Starlette's own limit answers in plain text
                    raise HTTPException(413, f"the body is too large; {max_bytes} bytes at most")
                if check and len(body) > BEGINNING:
                    await check(bytes(body))
                    check = None
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


async def form_of(request: Request, body: bytes) -> FormData:
    """The complete fields of a form or of its beginning, with one file at most; none if it is no form. InputError if broken."""
    parts = (body[start : start + BEGINNING] for start in range(0, len(body), BEGINNING))

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)  # others' turn
        part = next(parts, b"")
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    try:
        form = await Request(request.scope, receive).form(max_files=1)
        "".join(f"{field}{value}" for field, value in form.multi_items()).encode()
    except (HTTPException, KeyError, ValueError) as error:
        raise InputError(f"the body is not a form: {getattr(error, 'detail', error)}") from None
    return form


@asynccontextmanager
async def while_there(request: Request) -> AsyncIterator[None]:
    """Cancel what runs inside when the client disconnects, and raise ClientDisconnect."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    with anyio.CancelScope() as scope:
        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
    if scope.cancelled_caught:
        raise ClientDisconnect


async def steps_of(
    engine: Engine, rows: Iterator[Row], more: bool = False
) -> AsyncGenerator[RowStep]:
    """Decode rows, no more at once than a batch has; yield each whenever it has grown. They end with the generator. ERRORS if
    a row fails or is not taken. more: take them in any case"""
    event = asyncio.Event()
    wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
    at_once = min(engine.batch_size, engine.queue_size)
    jobs = dict[Job, Progress]()
    try:
        while True:
            new = await run_in_threadpool(list, islice(rows, at_once - len(jobs)))
            if new:
                jobs.update(dict.fromkeys(engine.submit(new, wake, more), START))
                more = True
            if not jobs:
                return
            await event.wait()
            event.clear()
            for job, before in [*jobs.items()]:
                now = job.progress
                if now.finish_reason in FAILURES:
                    raise FAILURES[now.finish_reason]()
                jobs[job] = now
                if now.finish_reason:
                    del jobs[job]
                if now is not before:
                    yield RowStep(job.row, before, now)
    finally:
        engine.cancel([*jobs])


async def working(engine: Engine, task: Task, is_begun: bool) -> AsyncGenerator[Any]:
    """Decode what a task needs. Yields as `steps_of`, and at last the result. is_begun: take its rows in any case."""
    with closing(task):
        running = RunningTask(task, engine.call)
        while await run_in_threadpool(running.goes_on):
            async with aclosing(steps_of(engine, running.rows, is_begun)) as steps:
                async for step in steps:
                    is_begun = True
                    yield step
        yield running.result


async def stream_of(request: Request, steps: AsyncGenerator, events: Events) -> Response:
    """An answer in server-sent events. It begins with the first step: only then is its status known."""
    first = await anext(steps)

    async def all_steps() -> AsyncIterator:
        yield first
        async for step in steps:
            yield step

    async def to_its_end() -> AsyncIterator[str]:
        try:
            async for event in events(all_steps()):
                yield event
        except ERRORS as error:
            yield event_of(error_body(*failure_of(error), request.scope["path"]))

    headers = {"cache-control": "no-store", "content-type": "text/event-stream; charset=utf-8"}
    return StreamingResponse(to_its_end(), 200, headers, background=BackgroundTask(steps.aclose))


def event_of(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
