"""OpenAI's /v1/audio routes: sounds are decoded as rows of the same engine as texts."""

import string
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, Semaphore, from_thread, to_thread
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from common.errors import InputError
from serving import answers
from serving.bodies import validated
from serving.engine import Engine, Refused
from serving.gate import Gate, Limits
from serving.transport import event_of, form_of, read_body, stream_of, while_there, working
from speculative.row import Stats
from speculative.tasks import Ended
from speech.audio import check_length, decoded
from speech.formats import FORMATS, Layout
from speech.options import TranscribeOptions
from speech.reference import parse
from speech.rules import TASKS
from speech.segments import Segment, Transcript
from speech.transcriber import Transcriber
from speech.transcript import Sound
from speech.words import AFTER, BEFORE

OPENAI_NAMES = (  # of models, by which clients call a speech model
    *("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-realtime-whisper"),
    *("gpt-4o-mini-transcribe-2025-03-20", "gpt-4o-mini-transcribe-2025-12-15"),
    *("whisper-large-v3", "whisper-large-v3-turbo", "distil-whisper-large-v3-en"),
)
_MARKS = string.whitespace + BEFORE + AFTER  # around words, of which OpenAI's have none
_LISTS = ("timestamp_granularities", "include")
Part = tuple[Segment, Stats] | Transcript


class _Request(BaseModel):
    """The fields of OpenAI's clients, of whisper.cpp's, and ours. Those without a use here have no effect."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    file: UploadFile
    model: str | None = None
    language: Annotated[str | None, AfterValidator(lambda name: name and name.lower())] = None
    prompt: str = ""
    response_format: Literal["json", "verbose_json", "text", "srt", "vtt"] = "json"
    temperature: float = 0.0
    stream: bool = False
    timestamp_granularities: list[Literal["word", "segment"]] = []
    word_timestamps: bool = False
    vad_filter: bool = False
    audio_track: str | None = None
    reference: str = Field("", validation_alias=AliasChoices("reference", "prediction"))
    hotwords: str = ""
    condition_on_previous_text: bool = True
    best_of: int = 5
    translate: bool = False
    origins: bool = False
    chunking_strategy: Any = None
    include: Any = None
    user: Any = None
    temperature_inc: Any = None
    no_timestamps: Any = None

    def options(self, task: str, num_draft: int | str) -> TranscribeOptions:
        return TranscribeOptions(
            language=self.language,
            task=TASKS[1] if self.translate else task,
            temperature=self.temperature,
            best_of=self.best_of,
            initial_prompt=self.prompt,
            hotwords=self.hotwords,
            reference=parse(self.reference) if self.reference else (),
            condition_on_previous_text=self.condition_on_previous_text,
            num_draft=num_draft,
            vad=self.vad_filter,
            word_timestamps=self.word_timestamps or "word" in self.timestamp_granularities,
            no_speech_probs=self.response_format == "verbose_json",
        )


class Speech:
    """Answers audio requests; without a transcriber, with an error."""

    def __init__(
        self,
        transcriber: Transcriber | None,
        engine: Engine,
        gate: Gate,
        limits: Limits,
    ):
        self._transcriber = transcriber
        self._engine = engine
        self._gate = gate
        self._limits = limits
        # One sound is read at a time, because an hour takes 0.8 GB meanwhile, and few are held.
        self._places, self._reading = Semaphore(engine.batch_size), CapacityLimiter(1)

    async def answer(self, request: Request, task: str) -> Response:
        self._gate.authorize(request)
        self._gate.check_origin(request)
        if self._transcriber is None:
            raise InputError("this model reads text, not audio")
        wanted = await _request(request, self._limits)
        self._gate.check_model(wanted.model)
        options = wanted.options(task, self._engine.options.num_draft)
        options = self._transcriber.resolve(options)
        kind = wanted.response_format
        async with while_there(request):
            parts = self._parts(wanted, options)
            if wanted.stream:
                return await stream_of(
                    request, parts, partial(self._events, origins=wanted.origins)
                )
            *_, transcript = [part async for part in parts]
        assert isinstance(transcript, Transcript)
        if kind == "text":
            return PlainTextResponse(f"{transcript.text.strip()}\n")
        if kind in FORMATS and kind != "json":
            return PlainTextResponse(FORMATS[kind](transcript, Layout()))
        # In a thread: the languages' names bring all of transformers.
        body = await run_in_threadpool(_body, transcript, options.task, kind == "verbose_json")
        return JSONResponse(body)

    async def _parts(self, wanted: _Request, options: TranscribeOptions) -> AsyncGenerator[Part]:
        """Each segment of a sound, once there is a place for it, and the whole transcript."""
        segments = list[Part]()
        if self._places.statistics().tasks_waiting >= self._engine.queue_size:
            raise Refused("too many audio files are waiting; try again later")
        async with self._places:
            sound = await to_thread.run_sync(
                self._open, wanted, options, segments, limiter=self._reading
            )
            async for step in working(self._engine, sound.steps(), is_begun=True):
                for part in segments:
                    yield part
                segments.clear()
                if isinstance(step, Ended):
                    yield step.result

    def _open(self, wanted: _Request, options: TranscribeOptions, segments: list[Part]) -> Sound:
        """The sound, which adds its segments to `segments`. InputError for a file without sound."""
        assert self._transcriber

        def check(seconds: float) -> None:
            from_thread.check_cancelled()
            self._engine.check()
            check_length(seconds, self._limits.seconds)

        def on_window(added: Sequence[Segment], seconds: float, stats: Stats) -> None:
            segments.extend((segment, stats) for segment in added)

        file = wanted.file.file
        samples = decoded(file, lambda line: None, check, wanted.audio_track)
        return self._transcriber.sound(samples, options, on_window)

    async def _events(self, parts: AsyncIterator[Part], origins: bool) -> AsyncIterator[str]:
        """A delta for each segment, and the whole text."""
        async for part in parts:
            yield self._event(part, origins)

    def _event(self, part: Part, origins: bool) -> str:
        if isinstance(part, Transcript):
            about = {"text": part.text.strip(), "usage": _usage(part)}
            return event_of({"type": "transcript.text.done", **about})
        segment, stats = part
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": segment.text}
        if origins:
            counts = {"tokens": stats.tokens, **stats.drafting}
            event |= {"origins": self._origins(segment), "stats": counts}
        return event_of(event)

    def _origins(self, segment: Segment) -> list[tuple[str, str]]:
        """The pieces of a segment's text, and where each comes from."""
        assert self._transcriber
        is_text = self._transcriber.special.is_text
        piece = answers.pieces(self._transcriber.tokenizer, ())
        pairs = zip(segment.tokens, segment.origins, strict=True)
        return [(piece(t, False)[0] if is_text(t) else "", origin) for t, origin in pairs]


async def _request(request: Request, limits: Limits) -> _Request:
    """A request's form. Raises InputError for unknown or unsupported fields."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "the body must be multipart/form-data")
    form = await form_of(request, await read_body(request, limits.upload, limits.upload_seconds))
    fields = dict[str, Any]()
    for name, value in form.multi_items():
        if value != "":  # clients send fields without a value
            fields.setdefault(name.removesuffix("[]"), []).append(value)
    fields = {name: x if name in _LISTS else x[-1] for name, x in fields.items()}
    return validated(fields, _Request)


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.duration, 2)}


def _body(transcript: Transcript, task: str, verbose: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"text": transcript.text.strip(), "usage": _usage(transcript)}
    if verbose:
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        language = LANGUAGES.get(transcript.language, transcript.language)  # OpenAI's "english"
        segments = [segment.to_dict() for segment in transcript.segments]
        about = {"task": task, "language": language, "duration": transcript.duration}
        body |= about | {"segments": segments}
        if any(segment.words for segment in transcript.segments):
            body["words"] = [word for segment in segments for word in segment.pop("words")]
            for word in body["words"]:
                word["word"] = word["word"].strip(_MARKS) or word["word"].strip()
    return body
