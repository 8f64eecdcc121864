"""OpenAI's /v1/audio routes: sounds are decoded as rows of the same engine as texts."""

import string
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, Semaphore, from_thread, to_thread
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from apps.serving.bodies import validated
from apps.serving.engine import Engine, Refused
from apps.serving.gate import Gate, Limits
from apps.serving.transport import event_of, form_of, read_body, stream_of, while_there, working
from apps.speech.audio import check_length, decoded
from apps.speech.formats import FORMATS
from apps.speech.options import Layout, TranscribeOptions
from apps.speech.reference import parse
from apps.speech.rules import TASKS
from apps.speech.segments import Segment, Transcript
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError
from speculative.step.driver import Task
from speculative.step.row import Stats
from speculative.text.languages import name_in
from speculative.text.scripts import AFTER, BEFORE
from speculative.text.tokenizer import token_names

OPENAI_NAMES = ("whisper-*", "gpt-*transcribe*", "gpt-*-whisper", "distil-whisper-*")  # patterns
_MARKS = string.whitespace + BEFORE + AFTER  # around words, of which OpenAI's have none
_SAME = {  # fields that are options of the same name
    *("language", "temperature", "best_of", "hotwords", "condition_on_previous_text"),
}
# OpenAI's names of languages, where the CLDR has others
_NAMES = dict(bn="bengali", mi="maori", my="myanmar", nn="nynorsk", tl="tagalog")
_UNUSED = ("chunking_strategy", "include", "user", "temperature_inc", "no_timestamps")
Part = tuple[Segment, Stats] | Transcript


class _SoundRequest(BaseModel):
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

    def options(self, task: str | None, num_draft: int | str) -> TranscribeOptions:
        return TranscribeOptions(
            **self.model_dump(include=_SAME),
            task=TASKS[1] if self.translate else task,
            initial_prompt=self.prompt,
            reference=parse(self.reference),
            num_draft=num_draft,
            vad=self.vad_filter,
            word_timestamps=self.word_timestamps or "word" in self.timestamp_granularities,
            no_speech_probs=self.response_format == "verbose_json",
        )


@dataclass
class Speech:
    """Answers audio requests; without a transcriber, with an error."""

    transcriber: Transcriber | None
    engine: Engine
    gate: Gate
    limits: Limits

    def __post_init__(self):
        # One sound is read at a time, because an hour takes 0.8 GB meanwhile, and few are held.
        self._places, self._reading = Semaphore(self.engine.batch_size), CapacityLimiter(1)

    def admit(self, request: HTTPConnection, key: str = "") -> Transcriber:
        """The transcriber of a request. Errors: as the gate's, and InputError without a transcriber."""
        self.gate.authorize(request, key=key)
        self.gate.check_origin(request)
        if self.transcriber is None:
            raise InputError("this model reads text, not audio")
        return self.transcriber

    async def answer(self, request: Request, task: str | None = None) -> Response:
        transcriber = self.admit(request)
        wanted = await _request(request, self.limits)
        self.gate.check_model(wanted.model)
        options = await run_in_threadpool(wanted.options, task, self.engine.options.num_draft)
        task = transcriber.resolve(options).task
        kind = wanted.response_format
        async with while_there(request):
            parts = self._parts(transcriber, wanted, options)
            if wanted.stream:
                shown = transcriber if wanted.origins else None
                return await stream_of(request, parts, partial(_events, transcriber=shown))
            *_, transcript = [part async for part in parts]
        assert isinstance(transcript, Transcript)
        if kind == "text":
            return PlainTextResponse(f"{transcript.text.strip()}\n")
        if kind in ("srt", "vtt"):
            return PlainTextResponse(FORMATS[kind](transcript, Layout()))
        # In a thread: the languages' names are read from files.
        body = await run_in_threadpool(_body, transcript, task, kind == "verbose_json")
        return JSONResponse(body)

    async def _parts(
        self, transcriber: Transcriber, wanted: _SoundRequest, options: TranscribeOptions
    ) -> AsyncGenerator[Part]:
        """Each segment of a sound, once there is a place for it, and the whole transcript."""
        if self._places.statistics().tasks_waiting >= self.engine.queue_size:
            raise Refused("too many audio files are waiting; try again later")
        parts = list[Part]()

        def on_window(added: Sequence[Segment], seconds: float, stats: Stats) -> None:
            parts.extend((segment, stats) for segment in added)

        def open_sound() -> Task:
            samples = decoded(wanted.file.file, lambda line: None, self._check, wanted.audio_track)
            return transcriber.task(samples, options, on_window)

        async with self._places:
            task = await to_thread.run_sync(open_sound, limiter=self._reading)
            async for step in working(self.engine, task, is_begun=True):
                for part in parts:
                    yield part
                parts.clear()
                if isinstance(step, Transcript):
                    yield step

    def _check(self, seconds: float) -> None:
        """Raise an error if nobody waits for a sound that is being read, or it is too long."""
        from_thread.check_cancelled()
        self.engine.check()
        check_length(seconds, self.limits.seconds)


async def _events(
    parts: AsyncIterator[Part], transcriber: Transcriber | None
) -> AsyncIterator[str]:
    """A delta for each segment, and the whole text. transcriber: whose tokens' origins are told; None: they are not"""
    async for part in parts:
        if isinstance(part, Transcript):
            about = {"text": part.text.strip(), "usage": _usage(part)}
            yield event_of({"type": "transcript.text.done", **about})
            continue
        segment, stats = part
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": segment.text}
        if transcriber:
            is_text = transcriber.special.is_text
            piece = token_names(transcriber.tokenizer, ())
            texts = (piece(t, False)[0] if is_text(t) else "" for t in segment.tokens)
            event["origins"] = [*zip(texts, segment.origins, strict=True)]
            event["stats"] = {"tokens": stats.tokens, **stats.drafting}
        yield event_of(event)


async def _request(request: Request, limits: Limits) -> _SoundRequest:
    """A request's form. Raises InputError for unknown or unsupported fields."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "the body must be multipart/form-data")
    form = await form_of(request, await read_body(request, limits.upload, limits.upload_seconds))
    fields = dict[str, Any]()
    for name, value in form.multi_items():
        name = name.removesuffix("[]")
        if value == "" or name in _UNUSED:  # clients send fields without a value
            continue
        if name == "timestamp_granularities":
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return validated(fields, _SoundRequest)


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.duration, 2)}


def _body(transcript: Transcript, task: str | None, verbose: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"text": transcript.text.strip(), "usage": _usage(transcript)}
    if verbose:
        code = transcript.language
        language = _NAMES.get(code) or name_in("en", code).lower()
        segments = [segment.to_dict() for segment in transcript.segments]
        about = {"task": task, "language": language, "duration": transcript.duration}
        body |= about | {"segments": segments}
        if any(segment.words for segment in transcript.segments):
            body["words"] = [word for segment in segments for word in segment.pop("words")]
            for word in body["words"]:
                word["word"] = word["word"].strip(_MARKS) or word["word"].strip()
    return body
