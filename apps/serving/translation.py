"""Texts and documents in another language, for LibreTranslate's and DeepL's routes. Each sentence is a row of the engine."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, Semaphore, from_thread, to_thread
from langcodes import Language
from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from apps.documents.apart import read_apart
from apps.documents.document import Document, Parse, joined
from apps.documents.translator import Service, Translation, Translator
from apps.serving.bodies import Object, read_json, validated
from apps.serving.engine import Engine, Refused
from apps.serving.gate import Gate, Limits
from apps.serving.transport import BODY_SECONDS, MAX_BODY, RowStep, form_of, read_body, working
from speculative.common.errors import InputError
from speculative.text.language_detector import LanguageDetector
from speculative.text.languages import short, tag_of

# LibreTranslate's languages, where a text or a model may have any
COMMON = (
    "ar az bg bn ca cs da de el en eo es et eu fa fi fr ga gl he hi hu id it ja ko ky lt lv ms nb nl pl pt pt-BR ro ru sk sl"
    " sq sr sv th tl tr uk ur vi zh-Hans zh-Hant"
).split()
_ALIASES = {"zh": "zh-Hans", "zt": "zh-Hant", "pb": "pt-BR"}  # LibreTranslate's
_CERTAIN = 0.8  # of a text's language: of 189 phrases in 30 languages 93 were as sure, and all of these right
_BETWEEN = b"\xff"  # two texts, for UTF-8 has none
_STORED = 32  # documents
STORED_SECONDS = 600  # for which a translation waits for its client
_STORED_SIZE = 10  # times the largest upload: of all of them

Step = RowStep | Translation  # a sentence that has grown, or all of it
Steps = AsyncGenerator[Step]
Sources = list[tuple[str, float]]  # languages, and how sure each is; 0: only the model's default
Texts = Annotated[
    list[str], Field(min_length=1), BeforeValidator(lambda q: [q] if isinstance(q, str) else q)
]


class Asked(Object, extra="ignore", arbitrary_types_allowed=True):
    """The fields of a request. Those that are not declared have no effect."""

    file: UploadFile | None = None
    filename: str | None = None


@dataclass
class StoredDocument:
    """A document that is being translated, or its translation."""

    key: str
    characters: int
    size: int  # in bytes, of the source
    task: asyncio.Task[bytes]
    is_fetched: bool = False  # the translation, or why there is none

    async def download(self) -> Response:
        # Not to be shown: a page in it could act as one of this server's.
        headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
        self.is_fetched = self.task.done()
        return Response(await self.task, media_type="application/octet-stream", headers=headers)


@dataclass
class Translations:
    """Translates with the engine, and keeps the translations of documents for ten minutes."""

    engine: Engine
    gate: Gate
    limits: Limits

    def __post_init__(self):
        text = self.engine.decoder.text
        languages = text.languages
        codes = map(_shown, languages.codes) if languages else COMMON
        self.targets = [*dict.fromkeys(codes)]
        self.sources = [_shown(languages.reads)] if languages and languages.reads else self.targets
        is_told = not languages or languages.reads or "source" in languages.source
        self._is_told_source = is_told or text.translation is not None
        self._detector = LanguageDetector(self.sources)
        codes = (*self.sources, *self.targets)
        self.names = {code: Language.get(code).display_name() for code in codes}
        # Few documents are read and translated at a time, and one of a client's is read.
        self._reading = CapacityLimiter(self.engine.batch_size)
        self._places = Semaphore(self.engine.batch_size)
        self._clients = WeakValueDictionary[str | None, CapacityLimiter]()  # those that wait
        self._stored = dict[str, StoredDocument]()
        # Whose aligners are shared: a few texts do not tell how attention is to be read
        self._service = Service(max_prompt_tokens=self.limits.prompt_tokens)

    def route(
        self, path: str, answer: Callable, kind: type[Asked], methods: list[str], **reading: Any
    ) -> Route:
        """The route of a function that makes a body, or a response, of a request and its fields. reading: see `_fields`"""

        async def endpoint(request: Request) -> Response:
            body = await answer(request, validated(await self._fields(request, **reading), kind))
            return body if isinstance(body, Response) else JSONResponse(body)

        return Route(path, endpoint, methods=methods)

    async def _fields(self, request: Request, scheme: str = "Bearer", is_file: bool = False) -> Any:
        """A request's fields, in the address and in JSON or a form. A key, maybe one of them, is checked once it is known."""
        self.gate.check_origin(request)
        in_address = _values(request.query_params)

        def check(fields: Mapping[str, Any]) -> None:
            self.gate.authorize(request, scheme, fields.get("api_key", ""), 403)

        async def check_beginning(body: bytes) -> None:
            check(in_address | _values(await form_of(request, body)))

        if scheme != "Bearer":
            check({})
        if request.headers.get("content-type", "").lower().startswith("application/json"):
            fields = read_json(await read_body(request))
            if not isinstance(fields, dict):
                raise InputError("the body is not a JSON object")
        else:
            limits: tuple[int, float] = (MAX_BODY, BODY_SECONDS)
            if is_file:
                limits = (self.limits.upload, self.limits.upload_seconds)
            body = await read_body(request, *limits, check_beginning)
            fields = _values(await form_of(request, body))
        fields = in_address | fields
        check(fields)
        return fields

    def named(self, code: str) -> dict[str, str]:
        """A language as LibreTranslate and LanguageTool name it, the latter with a country."""
        likely = Language.get(code).maximize()
        long_code = f"{likely.language}-{likely.territory}"
        return {"code": code, "name": self.names[code], "longCode": long_code}

    def detect(self, text: str) -> tuple[str, float]:
        """The code of a text's language, and how sure that is. InputError if it cannot be told here."""
        return (self.sources[0], 1.0) if len(self.sources) == 1 else self._detector.detect(text)

    def start_texts(
        self, texts: Sequence[str], parse: Parse, source: str | None, target: str, **options: Any
    ) -> tuple[Steps, Sources]:
        """As `start`, texts instead of a document, each from its own language, and these. See `texts_of`."""
        documents = [parse(text.encode()) for text in texts]
        sources = self._sources_of(documents, source)
        parts = list[tuple[list[int], Steps]]()
        for language in dict.fromkeys(language for language, _ in sources):
            numbers = [i for i, each in enumerate(sources) if each[0] == language]
            some = _with_own_labels(joined([documents[i] for i in numbers], _BETWEEN.join))
            parts.append((numbers, self.start(some, language, target, **options)))
        return _in_order(parts), sources

    def start(self, document: Document, source: str | None, target: str, **options: Any) -> Steps:
        """Begin to translate a document; placeholders stay. source: None or "auto": as detected. InputError for one that it lacks."""
        ((found, _),) = self._sources_of([document], source)
        source_lang, target_lang = (_ALIASES.get(code.lower(), code) for code in (found, target))
        if tag_of(source_lang) and short(source_lang) == short(target_lang):
            return _unchanged(document)
        options |= {"source_lang": None, "target_lang": target_lang}
        if self._is_told_source:
            options["source_lang"] = source_lang
        translator = Translator(
            self.engine.decoder,
            replace(self.engine.options, **options),
            service=replace(self._service, assumed_source=source_lang),
        )
        return steps_of_document(self.engine, translator, document)

    def _sources_of(self, documents: Sequence[Document], source: str | None) -> Sources:
        """The language of each document, if "auto": its own where that is sure, and otherwise that of all of them."""
        if source and source.lower() != "auto":
            return [(source, 1.0)] * len(documents)
        texts = ["\n".join(each.text for each in of.passages[:100]) for of in documents]
        of_all = self._source_of("\n".join(texts))
        found = map(self._source_of, texts)
        return [each if each[1] >= _CERTAIN else of_all for each in found]

    def _source_of(self, text: str) -> tuple[str, float]:
        with suppress(InputError):
            return self.detect(text)
        decoder = self.engine.decoder
        source_lang, _ = decoder.text.default_languages(decoder.model.prefix([]))
        return _shown(source_lang or "en"), 0.0

    async def store(
        self, request: Request, upload: Asked, source: str | None, target: str
    ) -> StoredDocument:
        """Begin to translate an uploaded document. A client's wait for each other, and for nobody else's. InputError if it is
        none; Refused if there are too many."""
        if upload.file is None:
            raise InputError("file: field required")
        path = Path(upload.filename or upload.file.filename or "")
        data = await upload.file.read()
        read = partial(read_apart, path, data, self._check)
        client = request.client and request.client.host
        async with self._clients.setdefault(client, CapacityLimiter(1)):
            document = await to_thread.run_sync(read, limiter=self._reading)
        steps = await run_in_threadpool(self.start, document, source, target)
        self._make_room(len(data))

        async def translated() -> bytes:
            async with self._places:
                return (await translation_of(steps)).data

        def expire(task: asyncio.Task) -> None:
            if not task.cancelled():
                task.exception()  # asyncio logs those that nobody asks for
            asyncio.get_running_loop().call_later(STORED_SECONDS, self._stored.pop, key, None)

        key = secrets.token_urlsafe() + path.suffix.lower()
        characters = sum(len(passage.text) for passage in document.passages)
        task = asyncio.create_task(translated())
        task.add_done_callback(expire)
        self._stored[key] = StoredDocument(key, characters, len(data), task)
        return self._stored[key]

    def _make_room(self, size: int) -> None:
        """Drop translations that were fetched, the first ones first, for one more document. Refused if that is not enough."""
        stored = self._stored
        fetched = [key for key, each in stored.items() if each.is_fetched]
        most = _STORED_SIZE * self.limits.upload - size
        while len(stored) >= _STORED or sum(each.size for each in stored.values()) > most:
            if not fetched:
                raise Refused("too many documents wait to be fetched; try again later")
            del stored[fetched.pop(0)]

    def _check(self) -> None:
        """Give a document up once its client has gone or the engine is closed."""
        from_thread.check_cancelled()
        self.engine.check()

    def stored(self, key: str) -> StoredDocument:
        """The document of this key. HTTPException if there is none any more."""
        if key not in self._stored:
            raise HTTPException(404, "there is no such document; each is kept for ten minutes")
        return self._stored[key]


def _with_own_labels(texts: Document) -> Document:
    """Texts of requests: what they say of their language stays."""
    return replace(texts, write=lambda new, targets=None, _=None: texts.write(new, targets))


async def _unchanged(document: Document) -> Steps:
    """A translation into the same language."""
    written = await run_in_threadpool(document.write, [None] * len(document.passages))
    yield Translation(written.data, [], written.notes)


async def steps_of_document(engine: Engine, translator: Translator, document: Document) -> Steps:
    """The steps in which the engine decodes a document's sentences, and at last its translation."""
    task = translator.steps(document)
    async with aclosing(working(engine, task, is_begun=False)) as steps:
        async for step in steps:
            if isinstance(step, RowStep) and step.now.finish_reason:
                translator.finish(step.row)
            yield step


async def translation_of(steps: Steps) -> Translation:
    async for step in steps:
        last = step
    assert isinstance(last, Translation)
    return last


def texts_of(translation: Translation) -> list[str]:
    """The texts of a translation that began with `start_texts`."""
    return [text.decode() for text in translation.data.split(_BETWEEN)]


async def _in_order(parts: Sequence[tuple[Sequence[int], Steps]]) -> Steps:
    """The steps of translations of some texts each, and at last the translation of all. parts: with the texts' numbers"""
    texts = dict[int, bytes]()
    for numbers, some in parts:
        async with aclosing(some) as steps:
            async for step in steps:
                if isinstance(step, RowStep):
                    yield step
                else:
                    texts |= zip(numbers, step.data.split(_BETWEEN), strict=True)
    yield Translation(_BETWEEN.join(texts[i] for i in sorted(texts)), [], [])


def _values(form: ImmutableMultiDict) -> dict[str, Any]:
    """The values of a form's fields: a list of those that come more than once."""
    values = {name: form.getlist(name) for name in form}
    return {name: each if len(each) > 1 else each[0] for name, each in values.items()}


def _shown(code: str) -> str:
    """A model's code as the interfaces have it."""
    return _ALIASES.get(short(code), short(code))
