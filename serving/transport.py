"""What all routes share: reading a request's body, decoding its rows while its client is there, and writing stream
events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from serving.engine import CANCELLED, FAILED, REFUSED, START, Engine, Progress
from speculative.row import Row

BODY_SECONDS = 30.0  # in which a body must arrive
RETRY_AFTER = {"retry-after": "1"}  # seconds
FAILURES = {
    FAILED: (500, "decoding failed; the server's log says why"),
    REFUSED: (503, "the server is shutting down"),
    CANCELLED: (503, "the server is shutting down"),
}
Read = TypeVar("Read")


async def read_body(
    request: Request, most: int, read: Callable[[AsyncGenerator[bytes]], Awaitable[Read]]
) -> Read:
    """What `read` makes of a request's body as it arrives. Raises HTTPException if the body has more than `most` bytes
    or does not arrive in time."""

    async def parts() -> AsyncGenerator[bytes]:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:  # Starlette's own limit answers in plain text
                raise HTTPException(413, f"the body is too large; {most} bytes at most")
            yield part

    try:
        with anyio.fail_after(BODY_SECONDS):
            return await read(parts())
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None


@asynccontextmanager
async def while_there(request: Request) -> AsyncIterator[None]:
    """Cancel what runs inside as soon as the client disconnects, and raise ClientDisconnect."""

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
    ends, no row goes on. Raises HTTPException if a row fails. Otherwise as `Engine.submit`."""
    event, progress = asyncio.Event(), [START]
    wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
    jobs = engine.submit(rows, wake, more)
    try:
        while not all(each.finish_reason for each in progress):
            await event.wait()
            event.clear()
            progress = [job.progress for job in jobs]
            for each in progress:
                if each.finish_reason in FAILURES:
                    raise HTTPException(*FAILURES[each.finish_reason], headers=RETRY_AFTER)
            yield progress
    finally:
        engine.cancel(jobs)


def stream_of(events: AsyncIterator[str], source: AsyncGenerator) -> Response:
    """An answer of server-sent events; their source is closed however the stream ends."""
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
        background=BackgroundTask(source.aclose),
    )


def event_of(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
