"""Texts and documents in another language: what LibreTranslate's and DeepL's routes share. Each sentence is a row of the
engine's batches, beside those of all other requests."""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from zipfile import BadZipFile, ZipFile

import langcodes
from anyio import CapacityLimiter, Semaphore, to_thread
from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from decoder import Content
from documents import FORMATS
from documents.document import Document
from documents.encodings import decoded
from documents.translator import Translation, Translator
from errors import InputError
from serving.engine import Engine, Progress, Refused
from serving.requests import read_json
from serving.transport import BODY_SECONDS, next_work, read_body, read_form, row_steps_of
from speculative.row import Row, respond
from speculative.sampling import RowSeeds
from text.detection import Detector
from text.languages import short, tag_of

# For a model that is told languages by name, and may know any: those of LibreTranslate
_COMMON = (
    "ar az bg bn ca cs da de el en eo es et eu fa fi fr ga gl he hi hu id it ja ko ky lt lv ms nb nl pl pt pt-BR ro ru sk sl"
    " sq sr sv th tl tr uk ur vi zh-Hans zh-Hant"
).split()
_ALIASES = {"zh": "zh-Hans", "zt": "zh-Hant", "pb": "pt-BR"}  # LibreTranslate's
KEPT_SECONDS = 600  # of translated documents
_KEPT_UPLOADS = 8  # as many of the largest size
_DETECTED = 100  # passages of a document in which its language is detected
_UNPACKED = 10  # times the largest upload, that a packed document may have

Step = tuple[Row, Progress, Progress] | Translation  # a sentence that has grown, or all of it
Texts = Annotated[
    list[str], Field(min_length=1), BeforeValidator(lambda q: [q] if isinstance(q, str) else q)
]


async def fields_of(request: Request, most: int, seconds: float = BODY_SECONDS) -> dict[str, Any]:
    """A request's parameters in JSON, or in a form and the address: a list of those that come more than once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        fields = read_json(await read_body(request, most, seconds))
        if not isinstance(fields, dict):
            raise InputError("the body is not a JSON object")
        return {name: value for name, value in fields.items() if value is not None}
    form = await read_form(request, most, seconds)
    values = dict[str, list]()
    for name, value in (*request.query_params.multi_items(), *form.multi_items()):
        values.setdefault(name, []).append(value)
    return {name: given if len(given) > 1 else given[0] for name, given in values.items()}


@dataclass
class Kept:
    """A document that is being translated, or its translation."""

    name: str
    size: int  # of the upload, in bytes
    characters: int
    task: asyncio.Task[bytes]
    key: str = field(default_factory=secrets.token_urlsafe)

    async def download(self) -> Response:
        # A page in it must not act as one of this server's.
        name = re.sub(r"[^\w.-]+", "_", self.name, flags=re.ASCII)
        headers = {
            "content-disposition": f'attachment; filename="{name}"',
            "x-content-type-options": "nosniff",
        }
        return Response(await self.task, media_type="application/octet-stream", headers=headers)


class Translations:
    """Translates texts and documents with the engine, and keeps documents for ten minutes."""

    def __init__(self, engine: Engine, max_prompt_tokens: int, max_upload: int, is_speech: bool):
        """max_prompt_tokens: of a sentence; max_upload: bytes of a document; is_speech: whether the model reads audio."""
        self.max_upload = max_upload
        self._engine, self._max_prompt_tokens, self._is_speech = (
            engine,
            max_prompt_tokens,
            is_speech,
        )
        languages = engine.decoder.text.languages
        codes = [*map(_shown, languages.codes)] if languages else _COMMON
        self.targets = [*dict.fromkeys(codes)]
        self._is_told_source = not languages or languages.reads or "source" in languages.source
        self.sources = [_shown(languages.reads)] if languages and languages.reads else self.targets
        self._detector = Detector(self.sources)
        # Documents are read one at a time, and few are translated.
        self._reading, self._places = CapacityLimiter(1), Semaphore(engine.batch_size)
        self._kept = dict[str, Kept]()

    def detect(self, text: str) -> tuple[str, float]:
        """The code of a text's language, and how sure that is. InputError if it cannot be told here."""
        return (self.sources[0], 1.0) if len(self.sources) == 1 else self._detector.detect(text)

    async def source_of(self, name: str | None, document: Document) -> tuple[str, float]:
        """The source language that a request names, or else the one detected, and how sure that is; the model's default,
        with 0, if it cannot be told."""
        if name and name.lower() != "auto":
            return name, 1.0
        texts = (passage.text for passage in document.passages[:_DETECTED])
        try:
            return await run_in_threadpool(self.detect, "\n".join(texts))
        except InputError:
            decoder = self._engine.decoder
            source_lang, _ = decoder.text.default_languages(decoder.model.prefix([]))
            return _shown(source_lang or "en"), 0.0

    def translator(
        self, source: str, target: str, whole: bool = False, **options: Any
    ) -> Translator | None:
        """The translator of a request; None: there is nothing to translate between these languages. InputError for a
        language that the model does not know."""
        if self._is_speech:
            raise InputError("this model transcribes audio; it translates no texts")
        source, target = (_ALIASES.get(name, name) for name in (source, target))
        if tag_of(source) and tag_of(source) == tag_of(target):
            return None
        told = source if self._is_told_source else None
        settings = replace(self._engine.options, source_lang=told, target_lang=target, **options)
        translator = Translator(self._engine.decoder, settings, whole=whole)
        translator.source_lang = translator.source_lang or source
        return translator

    async def steps(
        self, translator: Translator | None, document: Document
    ) -> AsyncGenerator[Step]:
        """Translate a document. Raises Refused if too many texts wait, and HTTPException if one fails."""
        if translator is None:
            yield Translation(document.write([None] * len(document.passages)), [])
            return
        with closing(translator.steps(document)) as steps:
            result: Any = None
            while True:
                work = await run_in_threadpool(next_work, steps, result)
                if isinstance(work, Translation):
                    yield work
                    return
                if not isinstance(work, list):
                    result = await run_in_threadpool(self._engine.call, work)
                    continue
                rows = self._rows(work, translator)
                more = bool(translator.texts)
                async with aclosing(row_steps_of(self._engine, rows, more)) as grown:
                    async for row, before, now in grown:
                        if now.finish_reason:
                            translator.finish(respond(row))
                        yield row, before, now

    def _rows(self, prompts: Sequence[Content], translator: Translator) -> Iterator[Row]:
        seeds = RowSeeds(translator.options.seed)
        for prompt in prompts:
            row = self._engine.decoder.row(prompt, translator.options, seeds)
            if len(row.prompt) > self._max_prompt_tokens:
                most = f"{self._max_prompt_tokens} at most (see --max-prompt-tokens)"
                raise InputError(f"a sentence has {len(row.prompt)} tokens; {most}")
            yield row

    async def start(self, file: Any, source: str | None, target: str) -> Kept:
        """Begin to translate an uploaded document. InputError if it is none; Refused if there are too many."""
        if not isinstance(file, UploadFile):
            raise InputError("the field file, with the document, is missing")
        name = Path(file.filename or "").name
        data = await file.read()
        document = await to_thread.run_sync(self._open, name, data, limiter=self._reading)
        source, _ = await self.source_of(source, document)
        translator = self.translator(source, target)
        self._make_room(len(data))
        if self._places.statistics().tasks_waiting >= self._engine.queue_size:
            raise Refused("too many documents are waiting; try again later")
        task = asyncio.create_task(self._document(translator, document))
        characters = sum(len(passage.text) for passage in document.passages)
        kept = Kept(name, len(data), characters, task)
        self._kept[kept.key] = kept
        task.add_done_callback(lambda _: self._expire(kept))
        return kept

    def _open(self, name: str, data: bytes) -> Document:
        """The document in a file. InputError for one that cannot be read."""
        parse = FORMATS.get(Path(name).suffix.lower())
        if parse is None:
            raise InputError(f"{name[:99]!r} is not one of {', '.join(FORMATS)}")
        if data.startswith(b"PK"):
            with suppress(BadZipFile), ZipFile(BytesIO(data)) as archive:
                if sum(each.file_size for each in archive.infolist()) > _UNPACKED * self.max_upload:
                    raise HTTPException(413, "the document is too large when unpacked")
        try:
            return decoded(parse, data)
        except ImportError:
            needed = "this format needs: pip install -r requirements-documents.txt"
            raise InputError(needed) from None

    def _make_room(self, size: int) -> None:
        """Drop the oldest translations if all documents would be too large. Refused if that is not enough."""
        most = _KEPT_UPLOADS * self.max_upload - size
        for each in [*self._kept.values()]:
            if sum(kept.size for kept in self._kept.values()) <= most:
                return
            if each.task.done():
                del self._kept[each.key]
        if sum(kept.size for kept in self._kept.values()) > most:
            raise Refused("too many documents are waiting; try again later")

    async def _document(self, translator: Translator | None, document: Document) -> bytes:
        async with self._places:
            return (await last_of(self.steps(translator, document))).data

    def _expire(self, kept: Kept) -> None:
        kept.task.cancelled() or kept.task.exception()  # nobody may ask for it
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._kept.pop, kept.key, None)

    def kept(self, key: str) -> Kept:
        """The document of this key. HTTPException if there is none any more."""
        if key not in self._kept:
            raise HTTPException(
                404, f"there is no such document; it is kept {KEPT_SECONDS} seconds"
            )
        return self._kept[key]


async def last_of(steps: AsyncGenerator[Step]) -> Translation:
    """The last of the steps."""
    async for step in steps:
        last = step
    assert isinstance(last, Translation)
    return last


def document_of(texts: Sequence[str], parse: Callable[[bytes], Document]) -> Document:
    """One document of several texts. It is written as a JSON list of them."""
    documents = [parse(text.encode()) for text in texts]

    def write(texts: Sequence[str | None]) -> bytes:
        remaining = iter(texts)
        new = list[str]()
        for each in documents:
            each.places.update((p, whole.places[p]) for p in each.passages if p in whole.places)
            new.append(each.write([next(remaining) for _ in each.passages]).decode())
        return json.dumps(new).encode()

    passages = [passage for each in documents for passage in each.passages]
    whole = Document(passages, write, lambda passage: repr(passage.text[:40]))
    return whole


def _shown(code: str) -> str:
    """A model's code as the interfaces have it."""
    return _ALIASES.get(short(code), short(code))


def name_of(code: str) -> str:
    return langcodes.Language.get(code).display_name()
