"""The answers to audio requests: sounds are decoded as rows of the same engine as texts."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio import CapacityLimiter, Semaphore, from_thread, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from apps.serving.engine import Engine, Refused
from apps.serving.gate import Gate, Limits
from apps.serving.sound_requests import Asr, SoundRequest, sound_request
from apps.serving.transport import RowStep, event_of, stream_of, while_there, working
from apps.speech.audio import check_length
from apps.speech.formats import FORMATS
from apps.speech.segments import Segment, Transcript
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError
from speculative.step.driver import Task
from speculative.step.row import Stats
from speculative.text.languages import name_in
from speculative.text.scripts import SPOKEN
from speculative.text.tokenizer import token_names

OPENAI_NAMES = ("whisper-*", "gpt-*transcribe*", "gpt-*-whisper", "distil-whisper-*")  # patterns
# OpenAI's names of languages, where the CLDR has others
_NAMES = dict(bn="bengali", mi="maori", my="myanmar", nn="nynorsk", tl="tagalog")


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

    async def answer(
        self, request: Request, task: str | None = None, form: type[SoundRequest] = SoundRequest
    ) -> Response:
        transcriber = self.admit(request)
        wanted = await sound_request(request, self.limits, form)
        self.gate.check_model(wanted.model)
        options = await run_in_threadpool(wanted.options, task, self.engine.options.num_draft)
        task = transcriber.resolve(options).task
        async with while_there(request):
            parts = self._parts(wanted, partial(transcriber.task, options=options))
            if wanted.stream:
                shown = transcriber if wanted.origins else None
                return await stream_of(request, parts, partial(_events, transcriber=shown))
            *_, transcript = [part async for part in parts]
        kind = wanted.response_format
        if kind == "text":
            return PlainTextResponse(f"{transcript.text.strip()}\n")
        if kind in FORMATS and (kind != "json" or wanted.detailed == kind):
            return PlainTextResponse(FORMATS[kind](transcript, wanted.layout))
        # In a thread: the languages' names are read from files.
        body = await run_in_threadpool(_body, transcript, task, kind == "verbose_json")
        return JSONResponse(body)

    async def detect_language(self, request: Request) -> Response:
        transcriber = self.admit(request)
        wanted = await sound_request(request, self.limits, Asr)
        async with while_there(request):
            parts = self._parts(wanted, lambda samples, **_: transcriber.detection(samples))
            *_, (code, chance) = [part async for part in parts]
        name = await run_in_threadpool(_language, code)
        return JSONResponse(dict(detected_language=name, language_code=code, confidence=chance))

    async def _parts(self, wanted: SoundRequest, task_of: Callable[..., Task]) -> AsyncGenerator:
        """Each segment of a sound, once there is a place for it, and at last what the task of its samples finds."""
        if self._places.statistics().tasks_waiting >= self.engine.queue_size:
            raise Refused("too many audio files are waiting; try again later")
        parts = list[tuple[Segment, Stats]]()

        def on_window(added: Sequence[Segment], seconds: float, stats: Stats) -> None:
            parts.extend((segment, stats) for segment in added)

        def open_sound() -> Task:
            return task_of(wanted.samples(self._check), on_window=on_window)

        async with self._places:
            task = await to_thread.run_sync(open_sound, limiter=self._reading)
            async for step in working(self.engine, task, is_begun=True):
                for part in parts:
                    yield part
                parts.clear()
                if not isinstance(step, RowStep):
                    yield step

    def _check(self, seconds: float) -> None:
        """Raise an error if nobody waits for a sound that is being read, or it is too long."""
        from_thread.check_cancelled()
        self.engine.check()
        check_length(seconds, self.limits.seconds)


async def _events(
    parts: AsyncIterator[tuple[Segment, Stats] | Transcript], transcriber: Transcriber | None
) -> AsyncIterator[str]:
    """A delta for each segment, and the whole text. transcriber: whose tokens' origins are told; None: they are not"""
    async for part in parts:
        if isinstance(part, Transcript):
            yield event_of({"type": "transcript.text.done", **_body(part)})
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


def _language(code: str) -> str:
    """A language's name, as OpenAI has it."""
    return _NAMES.get(code) or name_in("en", code).lower()


def _body(transcript: Transcript, task: str | None = None, verbose: bool = False) -> dict[str, Any]:
    usage = {"type": "duration", "seconds": round(transcript.duration, 2)}
    body: dict[str, Any] = {"text": transcript.text.strip(), "usage": usage}
    if verbose:
        segments = [segment.to_dict() for segment in transcript.segments]
        body |= {"task": task, "language": _language(transcript.language)}
        body |= {"duration": transcript.duration, "segments": segments}
        if any(segment.words for segment in transcript.segments):
            body["words"] = [word for segment in segments for word in segment.pop("words")]
            for word in body["words"]:
                spoken = SPOKEN.search(word["word"])  # OpenAI's have no marks around them
                word["word"] = (spoken or [word["word"].strip()])[0]
    return body
