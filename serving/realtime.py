"""OpenAI's Realtime API in its transcription form (https://developers.openai.com/api/docs/guides/realtime-transcription):
a WebSocket that takes sound and answers with the words that have become final."""

import asyncio
import binascii
import secrets
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Any, Literal, TypeGuard

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from errors import InputError
from serving import answers
from serving.engine import Engine, Refused
from serving.requests import parse
from serving.transport import working
from speech.audio import check_length, resampler
from speech.live import PAUSE, Heard, Working
from speech.options import TranscribeOptions
from speech.transcriber import Transcriber

_BACKLOG = 4 << 20  # characters of events that may wait
_BUFFER = "input_audio_buffer"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class _Object(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Format(_Object):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[int, Field(ge=8_000, le=96_000)] = 24_000


class _Model(_Object):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class _Turns(_Object):
    """When an item ends; the fields that are not declared apart have no effect."""

    type: Literal["server_vad"] = "server_vad"
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = round(1000 * PAUSE)
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None


class _Input(_Object):
    """How sound comes and is transcribed. The longer names are those of the API's beta."""

    format: _Format | Literal["pcm16"] | None = Field(
        None, validation_alias=AliasChoices("format", "input_audio_format")
    )
    transcription: _Model | None = Field(
        None, validation_alias=AliasChoices("transcription", "input_audio_transcription")
    )
    turn_detection: _Turns | None = None
    noise_reduction: Any = Field(
        None, validation_alias=AliasChoices("noise_reduction", "input_audio_noise_reduction")
    )


class _Audio(_Object):
    input: _Input


class _Session(_Input):
    type: Literal["transcription"] = "transcription"
    audio: _Audio | None = None
    include: list[str] | None = None


class _Event(BaseModel):
    type: str
    event_id: str | None = None
    audio: str = ""
    session: _Session | None = None


class Realtime:
    """Answers WebSockets; without a transcriber, with an error."""

    def __init__(
        self,
        transcriber: Transcriber | None,
        engine: Engine,
        max_seconds: int,
        authorize: Callable[[HTTPConnection], None],
        check_model: Callable[[str | None], None],
        check_origin: Callable[[HTTPConnection], None],
    ):
        self._transcriber, self.engine, self.max_seconds = transcriber, engine, max_seconds
        self._authorize, self.check_model = authorize, check_model
        self._check_origin = check_origin
        self._open = 0  # sessions

    async def answer(self, socket: WebSocket) -> None:
        self._authorize(socket)
        self._check_origin(socket)
        if self._transcriber is None:
            raise InputError("this model reads text, not audio")
        self.check_model(socket.query_params.get("model"))
        if self._open >= self.engine.queue_size or self.engine.closed:
            raise Refused("too many sessions are open; try again later")
        await socket.accept()
        session = _Transcription(self, self._transcriber, socket)
        tasks = [asyncio.create_task(each) for each in (session.receive(), session.answer())]
        self._open += 1
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(WebSocketDisconnect):
            done.pop().result()


class _Transcription:
    """A client's sound, and the items that it becomes: what lies between two pauses or, without turn detection, between
    two commits."""

    def __init__(self, server: Realtime, transcriber: Transcriber, socket: WebSocket):
        self._server, self._transcriber, self._socket = server, transcriber, socket
        self._id = _new("sess")
        self._events: list[str] = []  # that wait
        self._arrived = asyncio.Event()
        self._heard: list[Heard] = []
        self._item = ""  # the id of the item that is spoken
        self._text = ""  # of it
        self._last: str | None = None  # the id of the item before
        self._before = 0.0  # seconds of sound before the present settings
        self._committed = 0.0  # seconds of sound in items that are complete
        self._begin(_Input.model_validate({"format": {}, "turn_detection": {}}))

    def _begin(self, given: _Input) -> None:
        """Transcribe what comes from now on with these settings."""
        wanted = given.transcription or _Model()
        self._server.check_model(wanted.model)
        options = TranscribeOptions(
            language=wanted.language or None,
            initial_prompt=wanted.prompt or "",
            num_draft=self._server.engine.options.num_draft,
        )
        self._samples: Callable[[bytes], np.ndarray] | None = None
        self._live = self._transcriber.live(self._transcriber.resolve(options), self._heard.append)
        if given.turn_detection:
            self._live.pause = given.turn_detection.silence_duration_ms / 1000
        self._input = given

    @property
    def _seconds(self) -> float:
        """Of all the sound that has come."""
        return self._before + self._live.seconds

    async def receive(self) -> None:
        """Take events until the client goes; while many wait, no more."""
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            self._events.append(message.get("text") or "")
            self._arrived.set()
            while sum(map(len, self._events)) > _BACKLOG:
                await asyncio.sleep(0.05)

    async def answer(self) -> None:
        """Answer the events; sound that has come meanwhile is transcribed together."""
        await self._send("session.created", session=self._about())
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            texts = self._events
            self._events = []
            for is_sound, group in groupby(map(_read, texts), _is_sound):
                for each in [b"".join(filter(_is_sound, group))] if is_sound else group:
                    await self._take(each)

    async def _take(self, given: "bytes | _Event | InputError") -> None:
        try:
            if isinstance(given, InputError):
                raise given
            if isinstance(given, bytes):
                check_length(self._seconds, self._server.max_seconds)
                if self._samples is None:
                    form = self._input.format
                    self._samples = resampler(
                        (form if isinstance(form, _Format) else _Format()).rate
                    )
                await self._work(self._live.feed(self._samples(given)))
            elif given.type in ("session.update", "transcription_session.update"):
                await self._update(given)
            elif given.type == f"{_BUFFER}.commit":
                await self._commit()
            elif given.type == f"{_BUFFER}.clear":
                self._live.clear()
                self._item = ""
                self._text = ""
                await self._send(f"{_BUFFER}.cleared")
            else:
                raise InputError(f"there is no event {given.type[:50]!r} in transcription sessions")
        except (InputError, HTTPException, Refused) as error:
            status = getattr(error, "status_code", 400 if isinstance(error, InputError) else 503)
            body = answers.error(status, getattr(error, "detail", str(error)))["error"]
            body["event_id"] = getattr(given, "event_id", None)
            await self._send("error", error=body)

    async def _update(self, event: _Event) -> None:
        if event.session is None:
            raise InputError("the session is missing")
        given = event.session.audio.input if event.session.audio else event.session
        names = given.model_fields_set & _Input.model_fields.keys()
        await self._work(self._live.finish())
        seconds = self._seconds
        self._begin(self._input.model_copy(update={name: getattr(given, name) for name in names}))
        self._before = seconds
        await self._send(f"{event.type}d", session=self._about())

    async def _commit(self) -> None:
        """End an item here."""
        if self._seconds == self._committed:
            raise InputError("the audio buffer is empty: nothing to commit")
        await self._work(self._live.finish())
        if not self._input.turn_detection:
            self._item = self._item or _new("item")
            await self._end_item(self._seconds)

    async def _work(self, steps: Working) -> None:
        async for _ in working(self._server.engine, steps):
            for heard in self._heard:
                await self._tell(heard)
            self._heard.clear()

    async def _tell(self, heard: Heard) -> None:
        """Tell the client what was heard."""
        detects = self._input.turn_detection is not None
        if not self._item:
            self._item = _new("item")
            if detects:
                start = round(1000 * (self._before + heard.start))
                await self._send(
                    f"{_BUFFER}.speech_started", audio_start_ms=start, item_id=self._item
                )
        if heard.text:
            delta = heard.text if self._text else heard.text.lstrip()
            self._text += delta
            about = {"item_id": self._item, "content_index": 0, "delta": delta}
            await self._send(f"{_TRANSCRIPTION}.delta", **about)
        if detects and heard.end is not None:
            end = self._before + heard.end
            about = {"item_id": self._item, "audio_end_ms": round(1000 * end)}
            await self._send(f"{_BUFFER}.speech_stopped", **about)
            await self._end_item(end)

    async def _end_item(self, end: float) -> None:
        """Tell the client that an item, which ends at a time, is complete."""
        await self._send(f"{_BUFFER}.committed", item_id=self._item, previous_item_id=self._last)
        usage = {"type": "duration", "seconds": round(end - self._committed, 2)}
        about = {"item_id": self._item, "content_index": 0, "transcript": self._text}
        await self._send(f"{_TRANSCRIPTION}.completed", **about, usage=usage)
        self._last = self._item
        self._item = ""
        self._text = ""
        self._committed = end

    def _about(self) -> dict[str, Any]:
        """The session, as events have it."""
        about = {"object": "realtime.transcription_session", "type": "transcription"}
        return {"id": self._id, **about, "audio": {"input": self._input.model_dump()}}

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send_json({"type": kind, "event_id": _new("event"), **fields})


def _is_sound(event: bytes | _Event | InputError) -> TypeGuard[bytes]:
    return isinstance(event, bytes)


def _new(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _read(text: str) -> bytes | _Event | InputError:
    """An event: of sound the bytes, and of what is none the error."""
    try:
        event = parse(text.encode(), _Event)
        if event.type != f"{_BUFFER}.append":
            return event
        data = b64decode(event.audio, validate=True)
    except InputError as error:
        return error
    except binascii.Error as error:
        return InputError(f"audio is not base64: {error}")
    if len(data) % 2:
        return InputError("audio has half a sample: 16 bits each are expected")
    return data
