"""The forms that ask for transcripts: OpenAI's, whisper.cpp's, and whisper-asr-webservice's, which Bazarr sends."""

import re
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from apps.serving.bodies import validated
from apps.serving.gate import Limits
from apps.serving.transport import form_of, read_body
from apps.speech.audio import RATE, Check, decoded, pcm
from apps.speech.options import Layout, TranscribeOptions
from apps.speech.reference import parse
from apps.speech.rules import TASKS
from speculative.step.options import declared_in

OPTIONS = declared_in(TranscribeOptions) | declared_in(Layout)  # fields of every form
# Others' names of fields
_NAMES = dict(prompt="initial_prompt", vad_filter="vad", no_timestamps="without_timestamps")
_NAMES |= dict(logprob_thold="logprob_threshold", no_speech_thold="no_speech_threshold")
_NAMES |= dict(prediction="reference", audio_file="file", output="response_format")
_LISTS = {"timestamp_granularities"} | {n for n in OPTIONS if OPTIONS[n].values.kind is list}
_UNUSED = ("chunking_strategy", "include", "user", "temperature_inc")
_Format = Literal["json", "verbose_json", "text", "txt", "srt", "vtt", "tsv"]


class SoundRequest(BaseModel, extra="forbid", arbitrary_types_allowed=True):
    """OpenAI's form. Its fields are OpenAI's and ours, besides OPTIONS."""

    detailed: ClassVar[str] = "verbose_json"  # the format with all that is known of segments

    given: dict[str, Any] = {}  # of OPTIONS, without the layout's
    layout: Layout = Layout()
    file: UploadFile
    encode: bool = True  # false: the file is raw PCM as in `pcm`
    audio_track: str | None = None
    model: str | None = None
    response_format: _Format = "json"
    timestamp_granularities: Annotated[
        list[Literal["word", "segment"]], BeforeValidator(lambda text: text.split(","))
    ] = []
    stream: bool = False
    origins: bool = False
    reference: str = ""
    translate: bool = False

    def options(self, task: str | None, num_draft: int | str) -> TranscribeOptions:
        """task: the route's; num_draft: the server's. InputError for values out of range"""
        given = {"num_draft": num_draft} | self.given
        if task or self.translate:
            given["task"] = task or TASKS[1]
        if "word" in self.timestamp_granularities or self.layout.makes_cues:
            given["word_timestamps"] = True
        probs = self.response_format == self.detailed
        return TranscribeOptions(**given, reference=parse(self.reference), no_speech_probs=probs)

    def samples(self, check: Check) -> np.ndarray:
        """As `audio.decoded`."""
        if self.encode:
            return decoded(self.file.file, lambda line: None, check, self.audio_track)
        data = self.file.file.read()
        check(len(data) / 2 / RATE)
        return pcm(data[: len(data) // 2 * 2])


class Inference(SoundRequest, extra="ignore"):
    """The form of whisper.cpp's clients, whose server passes over fields that it does not know."""

    model: Annotated[str | None, BeforeValidator(lambda name: None)] = None


class Asr(Inference):
    """A request of whisper-asr-webservice's clients, whose fields are in the address."""

    detailed = "json"
    response_format: _Format = "txt"


async def sound_request(request: Request, limits: Limits, kind: type[SoundRequest]) -> SoundRequest:
    """A request's form. Raises HTTPException, or InputError for what is wrong in it."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, "the body must be multipart/form-data")
    form = await form_of(request, await read_body(request, limits.upload, limits.upload_seconds))
    address = [] if kind is SoundRequest else request.query_params.multi_items()
    fields = dict[str, Any]()
    for name, value in [*address, *form.multi_items()]:
        name = name.partition("[")[0]  # some mark lists by name[] or name[0]
        name = _NAMES.get(name, name)
        if name in _LISTS:  # as JSON, with commas, or one by one
            value = re.sub(r"""[][\s"']""", "", f"{fields.get(name, '')},{value}").strip(",")
        if value != "" and name not in _UNUSED:  # clients send fields without a value
            fields[name] = value
    texts = {name: str(fields.pop(name)) for name in [*fields] if name in OPTIONS}
    given = {name: OPTIONS[name].values.parse(text) for name, text in texts.items()}
    layout = Layout(**{name: given.pop(name) for name in [*given] if name in declared_in(Layout)})
    return validated(fields, kind).model_copy(update={"given": given, "layout": layout})
