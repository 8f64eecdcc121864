"""Sound over HTTP: OpenAI's transcriptions and translations, as rows of the engine that texts are decoded by."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from errors import InputError
from serving import answers
from serving.engine import Engine, Job
from serving.transport import event_of, read_body, steps_of, when_gone
from speculative.row import Row, Stats
from speech.audio import decoded
from speech.formats import FORMATS, Segment, Transcript
from speech.transcriber import Transcriber
from speech.transcript import Asked, Rows

MAX_SOUND = 25 << 20  # bytes, as OpenAI has it
_FORMATS = ("json", "verbose_json", "text", "srt", "vtt")
Told = tuple[Segment, Stats]
_KNOWN = {
    *("file", "model", "language", "prompt", "response_format", "temperature", "stream"),
    *("timestamp_granularities[]", "origins", "user"),
}


class Speech:
    """The routes of sound. Without a transcriber they say so."""

    def __init__(
        self,
        transcriber: Transcriber | None,
        engine: Engine,
        authorize: Callable[[Request], None],
        check_model: Callable[[str | None], None],
    ):
        self._transcriber, self._engine = transcriber, engine
        self._authorize, self._check_model = authorize, check_model

    async def answer(self, request: Request, task: str) -> Response:
        self._authorize(request)
        _check_origin(request)
        if self._transcriber is None:
            raise InputError("this model reads text, not sound")
        form = await _form(request)
        self._check_model(str(form["model"]) if form.get("model") else None)
        asked, kind = _asked(form, task, self._engine.options.num_draft), _format(form)
        self._transcriber.check(asked)
        told: asyncio.Queue[Told] = asyncio.Queue()
        soon = asyncio.get_running_loop().call_soon_threadsafe

        def heard(segments: Sequence[Segment], seconds: float, stats: Stats) -> None:
            for segment in segments:
                soon(told.put_nowait, (segment, stats))

        rows = await run_in_threadpool(self._begin, form, asked, heard)
        if form.get("stream") in ("true", "True", "1"):
            events = self._events(request, rows, told, form.get("origins") == "true")
            headers = {"cache-control": "no-store"}
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        found = await self._decoded(request, rows)
        if kind == "text":
            return PlainTextResponse(f"{found.text.strip()}\n")
        if kind in FORMATS and kind != "json":
            return PlainTextResponse(FORMATS[kind](found))
        return JSONResponse(_body(found, task, kind == "verbose_json"))

    def _begin(self, form: FormData, asked: Asked, heard: Callable) -> Rows:
        """The transcript to be. InputError for a file that holds no sound."""
        assert self._transcriber
        file = form["file"]
        assert isinstance(file, UploadFile)
        samples = decoded(io.BytesIO(file.file.read()), lambda line: None)
        return self._transcriber.sound(samples, asked, heard).transcribed()

    async def _decoded(self, request: Request, transcript: Rows) -> Transcript:
        """The whole transcript; its rows are cancelled when the client goes."""
        event, jobs = asyncio.Event(), list[Job]()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
        gone = asyncio.create_task(when_gone(request, lambda: self._engine.cancel(jobs)))
        try:
            while not isinstance(found := await run_in_threadpool(_next, transcript), Transcript):
                jobs[:] = self._engine.submit(found, wake, more=bool(jobs))
                async for _ in steps_of(jobs, event):
                    pass
            return found
        except HTTPException:
            if gone.done():
                raise ClientDisconnect from None
            raise
        finally:
            self._engine.cancel(jobs)
            gone.cancel()
            transcript.close()

    async def _events(
        self, request: Request, transcript: Rows, told: asyncio.Queue[Told], origins: bool
    ) -> AsyncIterator[str]:
        """A delta for each segment, and the whole text."""
        decoding = asyncio.create_task(self._decoded(request, transcript))
        try:
            while not decoding.done() or not told.empty():
                waiting = asyncio.create_task(told.get())
                await asyncio.wait({decoding, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    continue
                segment, stats = waiting.result()
                event: dict[str, Any] = {"type": "transcript.text.delta", "delta": segment.text}
                if origins:
                    event |= {"origins": self._origins(segment), "stats": answers.counts(stats)}
                yield event_of(event)
            found = await decoding
        except HTTPException as error:
            yield event_of(answers.error(error.status_code, error.detail))
            return
        finally:
            decoding.cancel()
        text = found.text.strip()
        yield event_of({"type": "transcript.text.done", "text": text, "usage": _usage(found)})

    def _origins(self, segment: Segment) -> list[tuple[str, str]]:
        """The pieces of a segment's text, and where each comes from."""
        assert self._transcriber
        end, piece = self._transcriber.special.end, answers.pieces(self._transcriber.tokenizer)
        pairs = zip(segment.tokens, segment.origins, strict=True)
        return [(piece(token) if token < end else "", origin) for token, origin in pairs]


def _next(transcript: Rows) -> list[Row] | Transcript:
    """The rows to decode next, or the transcript."""
    try:
        return next(transcript)
    except StopIteration as end:
        return end.value


def _check_origin(request: Request) -> None:
    """HTTPException for what another page of the browser's sends: for forms it asks nobody first."""
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "a page elsewhere may not ask")


async def _form(request: Request) -> FormData:
    """The fields of a request. InputError for those that are not known or not done here."""

    async def stream(body: bytes):
        yield body

    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "the body has to be of the type multipart/form-data")
    body = await read_body(request, MAX_SOUND)
    try:
        form = await MultiPartParser(request.headers, stream(body), max_files=1).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InputError(f"the body is no form: {getattr(error, 'message', error)}") from None
    if not isinstance(form.get("file"), UploadFile):
        raise InputError("file is missing: the sound")
    for field in form:
        if field not in _KNOWN:
            raise InputError(f"{field[:50]} is not supported here")
    if "word" in form.getlist("timestamp_granularities[]"):
        raise InputError("timestamps of words are not supported here")
    return form


def _format(form: FormData) -> str:
    kind = str(form.get("response_format") or "json")
    if kind not in _FORMATS:
        raise InputError(f"response_format is {kind[:50]!r}, not one of {', '.join(_FORMATS)}")
    return kind


def _asked(form: FormData, task: str, num_draft: int | str) -> Asked:
    try:
        temperature = float(str(form.get("temperature") or 0))
    except ValueError:
        raise InputError("temperature is no number") from None
    return Asked(
        language=str(form["language"]).lower() if form.get("language") else None,
        task=task,
        temperature=temperature,
        initial_prompt=str(form.get("prompt") or ""),
        num_draft=num_draft,
        no_speech_probs=form.get("response_format") == "verbose_json",
    )


def _usage(found: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(found.duration, 2)}


def _body(found: Transcript, task: str, verbose: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"text": found.text.strip(), "usage": _usage(found)}
    if verbose:
        segments = [segment.to_dict() for segment in found.segments]
        about = {"task": task, "language": found.language, "duration": found.duration}
        body |= about | {"segments": segments}
    return body
