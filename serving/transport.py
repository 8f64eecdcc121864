"""What all routes share: reading a request's body, decoding its rows while its client is there, and stream events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import anyio
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from serving.engine import CANCELLED, LOST, REFUSED, START, Engine, Progress
from speculative.row import FAILED, Row
from speech.transcript import Work

BODY_SECONDS = 30.0  # in which a body must arrive
RETRY_AFTER = {"retry-after": "1"}  # seconds
FAILURES = {
    FAILED: (400, "the text's form became too complex, or the model's vocabulary cannot write it"),
    LOST: (500, "decoding failed; the server's log says why"),
    REFUSED: (503, "the server is shutting down"),
    CANCELLED: (503, "the server is shutting down"),
}


async def read_body(request: Request, most: int, seconds: float = BODY_SECONDS) -> bytes:
    """A request's body. Raises HTTPException if it has more than `most` bytes or does not arrive in time."""
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:  # Starlette's own limit answers in plain text
                    raise HTTPException(413, f"the body is too large; {most} bytes at most")
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


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
    engine: Engine, rows: Sequence[Row], more: bool = False
) -> AsyncGenerator[list[Progress]]:
    """Decode a request's rows; yield their progress whenever it changes, until all have ended. However the generator
    ends, its rows end. Raises HTTPException if a row fails, and what `Engine.submit` raises."""
    event = asyncio.Event()
    progress = [START]
    wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
    jobs = engine.submit(rows, wake, more)
    try:
        while not all(each.finish_reason for each in progress):
            await event.wait()
            event.clear()
            progress = [job.progress for job in jobs]
            for each in progress:
                if each.finish_reason in FAILURES:
                    status, message = FAILURES[each.finish_reason]
                    raise HTTPException(status, message, RETRY_AFTER if status >= 500 else None)
            yield progress
    finally:
        engine.cancel(jobs)


async def working(engine: Engine, steps: Generator[Work, Any, Any]) -> AsyncGenerator[Any]:
    """Decode what a sound's steps need. Yields None whenever they have gone on, and at last what they return."""

    def go_on(result: Any) -> Any:
        try:
            return steps.send(result)
        except StopIteration as end:
            return end

    with closing(steps):
        result: Any = None
        while not isinstance(work := await run_in_threadpool(go_on, result), StopIteration):
            yield None
            result = None
            if isinstance(work, list):
                async for _ in steps_of(engine, work, more=True):
                    pass
            else:
                result = await run_in_threadpool(engine.call, work)
        yield work.value


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
