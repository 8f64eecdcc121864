"""Shared by all routes: reading a request's body, decoding its rows while its client is there, and stream events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from itertools import islice
from typing import Any

import anyio
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from common.errors import InputError
from serving.engine import CANCELLED, LOST, REFUSED, START, Engine, Job, Progress, Refused
from speculative.row import FAILED, Row
from speculative.tasks import Ended, Task, resume

MAX_BODY = 1 << 20  # bytes of a body, unless it is a file
BODY_SECONDS = 30.0  # in which a body must arrive
BEGINNING = 1 << 16  # bytes of a body that are read before the key in it is checked
RETRY_AFTER = {"retry-after": "1"}  # seconds
FAILURES = {
    FAILED: (400, "the text's form became too complex, or the model's vocabulary cannot write it"),
    LOST: (500, "decoding failed; the server's log says why"),
    REFUSED: (503, "the server is shutting down"),
    CANCELLED: (503, "the server is shutting down"),
}
ERRORS = (HTTPException, InputError, Refused)  # that a client is told of


def failure_of(error: Exception) -> tuple[int, str]:
    """The status and the message that tell a client of an error."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, Refused):
        return 503, str(error)
    if isinstance(error, InputError):
        return 400, str(error)
    return 500, "an error of the server's"


async def read_body(
    request: Request,
    max_bytes: int = MAX_BODY,
    seconds: float = BODY_SECONDS,
    check: Callable | None = None,
) -> bytes:
    """A request's body. Raises HTTPException if it has more bytes or does not arrive in this time. check: awaited with the beginning of a body that is longer than that; what it raises ends the reading."""
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


async def read_form(
    request: Request, max_bytes: int, seconds: float, check: Callable | None = None
) -> FormData:
    """The fields of a form, with one file at most; none if the body is not a form. Errors: as `read_body`, and InputError
    for a form that is broken."""
    return await form_of(request, await read_body(request, max_bytes, seconds, check))


async def form_of(request: Request, body: bytes) -> FormData:
    """The fields of a form that are complete in a body or in its beginning."""
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


async def steps_of(engine: Engine, rows: Sequence[Row]) -> AsyncGenerator[list[Progress]]:
    """Decode a request's rows; yield their progress whenever it changes, until all have ended. Everything else: as
    `row_steps_of`."""
    progress = dict.fromkeys(rows, START)
    async with aclosing(row_steps_of(engine, iter(rows), at_once=len(rows))) as steps:
        async for row, _, now in steps:
            progress[row] = now
            yield [*progress.values()]


async def row_steps_of(
    engine: Engine, rows: Iterator[Row], more: bool = False, at_once: int | None = None
) -> AsyncGenerator[tuple[Row, Progress, Progress]]:
    """Decode rows; yield each with its last progress and its new one whenever that changes, until all have ended. However
    the generator ends, its rows end. The rows may be many: as those before end, others are made, in another thread.
    Raises HTTPException if a row fails, and what `Engine.submit` raises.

    at_once: how many may be in the engine; None: as many as a batch has
    """
    event = asyncio.Event()
    wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
    at_once = at_once or min(engine.batch_size, engine.queue_size)
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
                    status, message = FAILURES[now.finish_reason]
                    raise HTTPException(status, message, RETRY_AFTER if status >= 500 else None)
                jobs[job] = now
                if now.finish_reason:
                    del jobs[job]
                if now is not before:
                    yield job.row, before, now
    finally:
        engine.cancel([*jobs])


async def working(engine: Engine, task: Task, is_begun: bool) -> AsyncGenerator[Any]:
    """Decode what a task needs. Yields as `row_steps_of`, and at last an `Ended`. is_begun: it has its place already, so
    that its rows are taken in any case; those of a task that has none yet are refused if too many wait."""
    with closing(task):
        work = await run_in_threadpool(resume, task)
        while not isinstance(work, Ended):
            result: Any = None
            if callable(work):
                result = await run_in_threadpool(engine.call, work)
            else:
                async with aclosing(row_steps_of(engine, iter(work), is_begun)) as grown:
                    async for step in grown:
                        is_begun = True
                        yield step
            work = await run_in_threadpool(resume, task, result)
        yield work


def stream_of(events: AsyncIterator[str], source: AsyncGenerator) -> StreamingResponse:
    """An answer of server-sent events. Their source is closed however the stream ends."""
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
        background=BackgroundTask(source.aclose),
    )


def event_of(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
