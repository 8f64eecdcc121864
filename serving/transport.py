"""What all routes share: reading a request's body, following its rows, and writing stream events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from serving.engine import CANCELLED, FAILED, REFUSED, START, Job, Progress

BODY_SECONDS = 30.0  # in which a body must arrive
RETRY_AFTER = {"retry-after": "1"}  # seconds
FAILURES = {
    FAILED: (500, "decoding failed; the server's log says why"),
    REFUSED: (503, "the server is shutting down"),
    CANCELLED: (503, "the server is shutting down"),
}


async def read_body(request: Request, most: int) -> bytes:
    """A request's body. Raises HTTPException if it has more than `most` bytes or does not arrive in time."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:  # Starlette's own limit answers in plain text
                    raise HTTPException(413, f"the body is too large; {most} bytes at most")
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


async def when_gone(request: Request, then: Callable[[], object]) -> None:
    """Call `then` when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    then()


async def steps_of(jobs: Sequence[Job], event: asyncio.Event) -> AsyncIterator[list[Progress]]:
    """Yield the progress of a request's rows whenever it changes, until all have ended. Raises HTTPException if a row
    fails. event: set when there is progress."""
    progress = [START]
    while not all(each.finish_reason for each in progress):
        await event.wait()
        event.clear()
        progress = [job.progress for job in jobs]
        for each in progress:
            if each.finish_reason in FAILURES:
                raise HTTPException(*FAILURES[each.finish_reason], headers=RETRY_AFTER)
        yield progress


def event_of(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
