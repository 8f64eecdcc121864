"""OpenAI's Realtime API in its transcription form (https://developers.openai.com/api/docs/guides/realtime-transcription):
a WebSocket that takes sound and answers with the words that have become final."""

import asyncio
import secrets
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
import numpy as np
from pydantic import BaseModel, BeforeValidator, Field
from starlette.websockets import WebSocket, WebSocketDisconnect

from apps.serving.audio import Speech
from apps.serving.bodies import parse, validated
from apps.serving.engine import Refused
from apps.serving.transport import ERRORS, error_body, failure_of, working
from apps.speech.audio import check_length
from apps.speech.live.live import PAUSE, Heard
from apps.speech.live.samples import from_ulaw, resampler
from apps.speech.options import TranscribeOptions
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError

_KEY = "openai-insecure-api-key."
_BETA = {"pcm16": {"type": "audio/pcm"}, "g711_ulaw": {"type": "audio/pcmu"}}  # formats
_EAGERNESS = {"low": 2.0, "medium": 0.8, "auto": 0.8, "high": 0.4}  # seconds of a pause
_BACKLOG = 4 << 20  # characters of events that may wait
_EVENTS = 1000  # of them
_BUFFER = "input_audio_buffer"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class _SoundFormat(BaseModel):
    type: Literal["audio/pcm", "audio/pcmu"] = "audio/pcm"
    rate: Annotated[int, Field(ge=8_000, le=96_000)] = 24_000  # of PCM; mu-law has 8,000

    def reader(self) -> Callable[[bytes], np.ndarray]:
        """Makes samples of what comes, piece by piece. Raises InputError if that needs PyAV."""
        if self.type == "audio/pcm":
            return resampler(self.rate)
        resampled = resampler(8_000)
        return lambda data: resampled(from_ulaw(data))


class _Model(BaseModel):
    """The last two fields are ours."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    condition_on_previous_text: bool = True
    tentative: bool = False  # tell words that may still change, too


class _Turns(BaseModel):
    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    silence_duration_ms: Annotated[int, Field(ge=0)] = round(1000 * PAUSE)
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"

    @property
    def pause(self) -> float:
        """Seconds of silence that end an item."""
        silence = min(max(100, self.silence_duration_ms), 10_000) / 1000
        return _EAGERNESS[self.eagerness] if self.type == "semantic_vad" else silence


class _Input(BaseModel):
    """The settings of incoming sound, and of its items. Other fields have no effect."""

    format: Annotated[_SoundFormat, BeforeValidator(lambda form: _BETA.get(str(form), form))] = (
        _SoundFormat()
    )
    transcription: _Model = _Model()
    turn_detection: _Turns | None = _Turns()


class _Session(BaseModel, extra="allow"):
    audio: dict[str, dict[str, Any] | None] | None = None
    type: Literal["transcription"] = "transcription"

    def settings(self) -> Iterator[dict[str, Any]]:
        """Each one alone, so that one may be refused. The longer names are those of the API's beta."""
        given = (self.audio or {}).get("input") or self.model_extra or {}
        for long_name, value in given.items():
            name = long_name.removeprefix("input_audio_")
            if name == "transcription" and isinstance(value, dict):
                yield from ({name: {key: each}} for key, each in value.items())
            elif value is not None or name == "turn_detection":
                yield {name: value}


class _Event(BaseModel):
    type: str
    event_id: str | None = None
    audio: str = ""
    session: _Session | None = None


@dataclass
class _Item:
    id: str
    text: str = ""
    is_announced: bool = False


@dataclass
class Realtime:
    """Answers WebSockets; without a transcriber, with an error."""

    speech: Speech
    _sessions: int = 0

    async def answer(self, socket: WebSocket) -> None:
        protocols = socket.scope["subprotocols"]  # where browsers send the key
        keys = [each.removeprefix(_KEY) for each in protocols if each.startswith(_KEY)]
        transcriber = self.speech.admit(socket, "".join(keys))
        self.speech.gate.check_model(socket.query_params.get("model"))
        engine = self.speech.engine
        if self._sessions >= engine.queue_size or engine.closed:
            raise Refused("too many sessions are open; try again later")
        client = _Client(self.speech, transcriber, socket)
        await socket.accept("realtime" if "realtime" in protocols else None)
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
    """A client's sound, and its items: what lies between two pauses or, without turn detection, two commits."""

    def __init__(self, speech: Speech, transcriber: Transcriber, socket: WebSocket):
        self._speech, self._transcriber, self._socket = speech, transcriber, socket
        self._id = _new("sess")
        self._events: list[str] = []  # that wait
        self._arrived = asyncio.Event()
        self._heard: list[Heard] = []
        self._item: _Item | None = None  # that is spoken
        self._last_item: str | None = None  # its id
        self._committed = 0.0  # seconds of sound in items that are complete
        self._input = _Input.model_validate({})
        self._samples = self._input.format.reader()
        self._live = transcriber.live(self._options(self._input), self._heard.append, PAUSE)

    def _options(self, given: _Input) -> TranscribeOptions:
        """Raises HTTPException or InputError for what the model or the server lacks."""
        wanted = given.transcription
        self._speech.gate.check_model(wanted.model)
        options = TranscribeOptions(
            **wanted.model_dump(include={"language", "condition_on_previous_text"}),
            initial_prompt=wanted.prompt or "",
            carry_initial_prompt=True,
            num_draft=self._speech.engine.options.num_draft,
        )
        return self._transcriber.resolve(options)

    def _change(self, setting: dict[str, Any]) -> None:
        """Go on with another setting. Errors: as `_options`"""
        current = self._input.model_dump()
        if isinstance(setting.get("transcription"), dict):
            setting = {"transcription": current["transcription"] | setting["transcription"]}
        new = validated(current | setting, _Input)
        options = self._options(new)
        if new.format != self._input.format:
            self._samples = new.format.reader()
        pause = new.turn_detection.pause if new.turn_detection else PAUSE
        self._live.configure(options, pause)
        self._input = new

    async def receive(self) -> None:
        """Take events until the client goes; while many wait, no more."""
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            self._events.append(message.get("text") or "")
            self._arrived.set()
            await asyncio.sleep(0)  # others' turn: events that are there already come without one
            while len(self._events) > _EVENTS or sum(map(len, self._events)) > _BACKLOG:
                await asyncio.sleep(0.05)

    async def answer(self) -> None:
        """Answer the events; sound that has come meanwhile is transcribed together."""
        await self._send("session.created", session=self._session())
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            texts = self._events
            self._events = []
            for text in texts:
                event = None
                try:
                    event = parse(text.encode(), _Event)
                    await self._take(event)
                except ERRORS as error:
                    await self._refuse(error, event)
                await asyncio.sleep(0)  # others' turn
            try:
                await self._advance()
            except ERRORS as error:
                await self._refuse(error)

    async def _refuse(self, error: Exception, event: Any = None, code: str | None = None) -> None:
        body = error_body(*failure_of(error))
        body["error"] |= {"event_id": event and event.event_id, "code": code}
        await self._send("error", **body)

    async def _take(self, event: _Event) -> None:
        """Answer an event; of sound only take note. Raises InputError for one that is wrong."""
        if event.type == f"{_BUFFER}.append":
            await self._append(event)
        elif event.type in ("session.update", "transcription_session.update") and event.session:
            for setting in event.session.settings():
                await asyncio.sleep(0)  # others' turn
                try:
                    self._change(setting)
                except ERRORS as error:
                    await self._refuse(error, event)
            await self._send(f"{event.type}d", session=self._session())
        elif event.type == f"{_BUFFER}.commit":
            if self._live.seconds == self._committed:
                empty = InputError("the audio buffer is empty: nothing to commit")
                await self._refuse(empty, event, f"{_BUFFER}_commit_empty")
                return
            last = self._last_item
            await self._advance(is_end=True)
            if self._last_item == last:
                await self._end_item(self._live.seconds)
        elif event.type == f"{_BUFFER}.clear":
            self._live.clear()
            self._samples = self._input.format.reader()  # half a sample may be in it
            if self._item and self._item.is_announced:
                await self._end_item(self._live.seconds)
            self._item = None
            self._committed = self._live.seconds
            await self._send(f"{_BUFFER}.cleared")
        else:
            raise InputError(f"there is no event {event.type[:50]!r} in transcription sessions")

    async def _append(self, event: _Event) -> None:
        """Add sound; after the most that the server takes, end the session."""
        try:
            self._live.append(self._samples(b64decode(event.audio, validate=True)))
        except ValueError as error:
            raise InputError(f"audio is not in base64: {error}") from None
        try:
            check_length(self._live.seconds, self._speech.limits.seconds)
        except InputError as error:
            await self._advance(is_end=True)
            await self._refuse(error, event)
            await self._socket.close(1008, str(error))

    async def _advance(self, is_end: bool = False) -> None:
        async for _ in working(self._speech.engine, self._live.advance(is_end), is_begun=True):
            for heard in self._heard:
                await self._tell(heard)
            self._heard.clear()

    async def _tell(self, heard: Heard) -> None:
        has_turns = self._input.turn_detection is not None
        item = self._item
        if item is None:
            self._item = item = _Item(_new("item"))
            if has_turns:
                start = round(1000 * heard.start)
                await self._send(f"{_BUFFER}.speech_started", item_id=item.id, audio_start_ms=start)
                await self._announce(item)
        words = heard.text if item.text else heard.text.lstrip()
        item.text += words
        if item.is_announced:
            await self._send_words(item, words)
        if self._input.transcription.tentative and heard.end is None:
            text = f"{item.text}{heard.rest}".strip()
            await self._send(f"{_TRANSCRIPTION}.tentative", item_id=item.id, transcript=text)
        if has_turns and heard.end is not None:
            end = round(1000 * heard.end)
            await self._send(f"{_BUFFER}.speech_stopped", item_id=item.id, audio_end_ms=end)
            await self._end_item(heard.end)

    async def _announce(self, item: _Item) -> None:
        """Tell the client of an item, and the words that it has."""
        item.is_announced = True
        about = {"previous_item_id": self._last_item}
        await self._send(f"{_BUFFER}.committed", item_id=item.id, **about)
        body: dict[str, Any] = {"id": item.id, "object": "realtime.item", "type": "message"}
        content = [{"type": "input_audio", "transcript": None}]
        body |= {"role": "user", "status": "completed", "content": content}
        await self._send("conversation.item.added", item=body, **about)
        await self._send_words(item, item.text)

    async def _send_words(self, item: _Item, words: str) -> None:
        if words:
            kind = f"{_TRANSCRIPTION}.delta"
            await self._send(kind, item_id=item.id, content_index=0, delta=words)

    async def _end_item(self, end: float) -> None:
        """Tell the client that an item is complete. end: its end in seconds"""
        item = self._item or _Item(_new("item"))
        if not item.is_announced:
            await self._announce(item)
        usage = {"type": "duration", "seconds": round(end - self._committed, 2)}
        about = {"item_id": item.id, "content_index": 0, "transcript": item.text, "usage": usage}
        await self._send(f"{_TRANSCRIPTION}.completed", **about)
        self._last_item = item.id
        self._committed = end
        self._item = None

    def _session(self) -> dict[str, Any]:
        about = {"object": "realtime.transcription_session", "type": "transcription"}
        return {"id": self._id, **about, "audio": {"input": self._input.model_dump()}}

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send_json({"type": kind, "event_id": _new("event"), **fields})


def _new(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
