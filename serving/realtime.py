"""OpenAI's Realtime API in its transcription form (https://developers.openai.com/api/docs/guides/realtime-transcription):
a WebSocket that takes sound and answers with the words that have become final."""

import asyncio
import secrets
from base64 import b64decode
from typing import Annotated, Any, Literal

import anyio
from pydantic import AliasChoices, BaseModel, Field
from starlette.websockets import WebSocket, WebSocketDisconnect

from common.errors import InputError
from serving import answers
from serving.bodies import parse
from serving.engine import Engine, Refused
from serving.gate import Gate, Limits
from serving.transport import ERRORS, failure_of, working
from speech.audio import check_length, resampler
from speech.live import PAUSE, Heard
from speech.options import TranscribeOptions
from speech.transcriber import Transcriber

_BACKLOG = 4 << 20  # characters of events that may wait
_BUFFER = "input_audio_buffer"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class _Format(BaseModel):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[int, Field(ge=8_000, le=96_000)] = 24_000


class _Model(BaseModel):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class _Turns(BaseModel):
    type: Literal["server_vad"] = "server_vad"
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = round(1000 * PAUSE)


class _Input(BaseModel):
    """How sound comes and becomes items. The longer names are those of the API's beta; other fields have no effect."""

    format: _Format | Literal["pcm16"] | None = Field(
        None, validation_alias=AliasChoices("format", "input_audio_format")
    )
    transcription: _Model | None = Field(
        None, validation_alias=AliasChoices("transcription", "input_audio_transcription")
    )
    turn_detection: _Turns | None = None


class _Session(_Input):
    audio: dict[Literal["input"], _Input] | None = None
    type: Literal["transcription"] = "transcription"


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
        gate: Gate,
        limits: Limits,
    ):
        self.transcriber = transcriber
        self.engine = engine
        self.gate = gate
        self.limits = limits
        self._sessions = 0

    async def answer(self, socket: WebSocket) -> None:
        self.gate.authorize(socket)
        self.gate.check_origin(socket)
        if self.transcriber is None:
            raise InputError("this model reads text, not audio")
        self.gate.check_model(socket.query_params.get("model"))
        if self._sessions >= self.engine.queue_size or self.engine.closed:
            raise Refused("too many sessions are open; try again later")
        client = _Client(self, self.transcriber, socket)
        await socket.accept()
        self._sessions += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.answer)
                await client.receive()
                tasks.cancel_scope.cancel()
        except* WebSocketDisconnect:
            pass
        finally:
            self._sessions -= 1


class _Client:
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
        self._last_item: str | None = None
        self._committed = 0.0  # seconds of sound in items that are complete
        self._begin(_Input.model_validate({"format": {}, "turn_detection": {}}))

    def _begin(self, given: _Input) -> None:
        """Begin with these settings. Raises InputError for what the model or the server lacks."""
        wanted = given.transcription or _Model()
        self._server.gate.check_model(wanted.model)
        form = given.format if isinstance(given.format, _Format) else _Format()
        turns = given.turn_detection or _Turns()
        options = TranscribeOptions(
            language=wanted.language or None,
            initial_prompt=wanted.prompt or "",
            num_draft=self._server.engine.options.num_draft,
        )
        pause = turns.silence_duration_ms / 1000
        self._samples = resampler(form.rate)
        self._live = self._transcriber.live(options, self._heard.append, pause)
        self._input = given

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
            for text in [*texts, None]:
                try:
                    await (self._advance() if text is None else self._take(text))
                except ERRORS as error:
                    await self._send("error", **answers.error(*failure_of(error)))

    async def _take(self, text: str) -> None:
        """Answer an event; of sound only take note. Raises InputError for one that is wrong."""
        event = parse(text.encode(), _Event)
        if event.type == f"{_BUFFER}.append":
            check_length(self._live.seconds, self._server.limits.seconds)
            try:
                self._live.append(self._samples(b64decode(event.audio, validate=True)))
            except ValueError as error:
                raise InputError(f"audio is not PCM of 16 bits in base64: {error}") from None
        elif event.type in ("session.update", "transcription_session.update") and event.session:
            if self._live.seconds:
                raise InputError("the session cannot change once sound has come")
            given = event.session.audio["input"] if event.session.audio else event.session
            names = given.model_fields_set & _Input.model_fields.keys()
            changes = {name: getattr(given, name) for name in names}
            self._begin(self._input.model_copy(update=changes))
            await self._send(f"{event.type}d", session=self._about())
        elif event.type == f"{_BUFFER}.commit":
            if self._live.seconds == self._committed:
                raise InputError("the audio buffer is empty: nothing to commit")
            await self._advance(is_end=True)
            if not self._input.turn_detection:
                await self._end_item(self._live.seconds)
        elif event.type == f"{_BUFFER}.clear":
            self._live.clear()
            self._item = self._text = ""
            await self._send(f"{_BUFFER}.cleared")
        else:
            raise InputError(f"there is no event {event.type[:50]!r} in transcription sessions")

    async def _advance(self, is_end: bool = False) -> None:
        async for _ in working(self._server.engine, self._live.advance(is_end), is_begun=True):
            for heard in self._heard:
                await self._tell(heard)
            self._heard.clear()

    async def _tell(self, heard: Heard) -> None:
        """Tell the client what was heard."""
        detects = self._input.turn_detection is not None
        if not self._item:
            self._item = _new("item")
            if detects:
                start = round(1000 * heard.start)
                await self._send(
                    f"{_BUFFER}.speech_started", item_id=self._item, audio_start_ms=start
                )
        if heard.text:
            delta = heard.text if self._text else heard.text.lstrip()
            self._text += delta
            about = {"item_id": self._item, "content_index": 0, "delta": delta}
            await self._send(f"{_TRANSCRIPTION}.delta", **about)
        if detects and heard.end is not None:
            end = round(1000 * heard.end)
            await self._send(f"{_BUFFER}.speech_stopped", item_id=self._item, audio_end_ms=end)
            await self._end_item(heard.end)

    async def _end_item(self, end: float) -> None:
        """Tell the client that an item is complete. end: its end in seconds"""
        item = self._item or _new("item")
        usage = {"type": "duration", "seconds": round(end - self._committed, 2)}
        about = {"item_id": item, "content_index": 0, "transcript": self._text, "usage": usage}
        await self._send(f"{_BUFFER}.committed", item_id=item, previous_item_id=self._last_item)
        await self._send(f"{_TRANSCRIPTION}.completed", **about)
        self._last_item = item
        self._committed = end
        self._item = self._text = ""

    def _about(self) -> dict[str, Any]:
        """The session, as events have it."""
        about = {"object": "realtime.transcription_session", "type": "transcription"}
        return {"id": self._id, **about, "audio": {"input": self._input.model_dump()}}

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send_json({"type": kind, "event_id": _new("event"), **fields})


def _new(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
