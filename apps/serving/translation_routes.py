"""The routes of docs.libretranslate.com/api and developers.deepl.com/api-reference (version 2)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from apps.documents import FORMATS, html, plain
from apps.serving.translation import Asked, Step, Texts, Translations, texts_of, translation_of
from apps.serving.transport import ERRORS, RowStep, event_of, failure_of, stream_of, while_there
from speculative.common.errors import InputError
from speculative.step.row import Row

Code = Annotated[str, Field(min_length=1)]
Tags = Annotated[
    list[str], BeforeValidator(lambda tags: tags.split(",") if isinstance(tags, str) else tags)
]
_REFUSED = "glossary_id glossary_ids custom_instructions style_id translation_memory_id output_format".split()


class _Pair(Asked):
    source: Code
    target: Code


class _Detect(Asked):
    q: str


class _Translate(_Pair):
    q: Texts
    as_sent: Any = Field(validation_alias="q")
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(strict=False, ge=0, le=10)] = 0
    stream: Annotated[bool, Field(strict=False)] = False


@dataclass
class LibreTranslate:
    translations: Translations

    def routes(self) -> list[Route]:
        post = partial(self.translations.route, methods=["POST"])
        return [
            post("/translate", self.translate, _Translate),
            post("/translate_file", self.translate_file, _Pair, is_file=True),
            post("/detect", self.detect, _Detect),
            post("/suggest", self.suggest, Asked),
            Route("/download_file/{key}", self.download_file),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.settings),
        ]

    async def translate(self, request: Request, asked: _Translate) -> Any:
        if not asked.as_sent:
            raise InputError("q is empty")
        parse = html.parse if asked.format == "html" else plain.parse
        start = partial(self.translations.start_texts, asked.q, parse, asked.source, asked.target)
        steps, sources = await run_in_threadpool(start)

        def answer(texts: Sequence[str], **more: Sequence[Any]) -> dict[str, Any]:
            body = {"translatedText": texts, **more}
            if asked.source.lower() == "auto":
                body["detectedLanguage"] = [_detected(*each) for each in sources]
            is_list = isinstance(asked.as_sent, list)
            return body if is_list else {name: each[0] for name, each in body.items()}

        async with while_there(request):
            if asked.stream:
                return await stream_of(request, steps, partial(_events, answer=answer))
            texts = texts_of(await translation_of(steps))
            if not asked.alternatives:
                return answer(texts)
            others = [dict.fromkeys([text]) for text in texts]
            for seed in range(asked.alternatives if asked.format == "text" else 0):
                sample, _ = await run_in_threadpool(start, seed=seed, temp=1.0, top_p=0.9)
                for seen, text in zip(others, texts_of(await translation_of(sample)), strict=True):
                    seen[text] = None
            return answer(texts, alternatives=[[*seen][1:] for seen in others])

    async def translate_file(self, request: Request, asked: _Pair) -> Any:
        async with while_there(request):
            stored = await self.translations.store(request, asked, asked.source, asked.target)
            await stored.task
        return {"translatedFileUrl": f"{request.base_url}download_file/{stored.key}"}

    async def download_file(self, request: Request) -> Response:
        return await self.translations.stored(request.path_params["key"]).download()

    async def detect(self, request: Request, asked: _Detect) -> Any:
        return [_detected(*await run_in_threadpool(self.translations.detect, asked.q))]

    async def suggest(self, request: Request, asked: Asked) -> Any:
        return {"success": True}

    async def languages(self, request: Request) -> Response:
        targets = dict.fromkeys(self.translations.sources, self.translations.targets)
        named = self.translations.named
        codes = self.translations.names
        return JSONResponse([{**named(code), "targets": targets.get(code, [])} for code in codes])

    async def settings(self, request: Request) -> Response:
        source = self.translations.sources[0]
        target = next((code for code in self.translations.targets if code != source), source)
        needs_key = self.translations.gate.api_key is not None
        named = self.translations.named
        settings = {
            "charLimit": 250_000,  # less than MAX_BODY
            "frontendTimeout": 500,  # milliseconds
            "apiKeys": needs_key,
            "keyRequired": needs_key,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": [*FORMATS],
            "language": {"source": named(source), "target": named(target)},
        }
        return JSONResponse(settings)


def _detected(code: str, certainty: float) -> dict[str, Any]:
    return {"confidence": round(100 * certainty, 1), "language": code}


async def _events(
    steps: AsyncIterator[Step], answer: Callable[..., dict[str, Any]]
) -> AsyncIterator[str]:
    """The tokens that each sentence gains, and at last the whole answer."""
    numbers = dict[Row, int]()
    async for step in steps:
        if not isinstance(step, RowStep):
            yield event_of(answer(texts_of(step)))
            continue
        event = {
            "sentence": numbers.setdefault(step.row, len(numbers)),
            "source": step.row.prompt_text,
            "text": "".join(step.row.texts[step.new]),
            "finish_reason": step.now.finish_reason,
        }
        yield event_of(event | step.drafts())


class _DeepLRequest(Asked):
    type: str = "source"  # of languages

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in _REFUSED:
            if fields.get(name):
                raise InputError(f"{name} is not supported")
        return fields


class _Target(_DeepLRequest):
    target_lang: Annotated[str, Field(min_length=1)]
    source_lang: str | None = None
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"


class _Texts(_Target):
    text: Texts
    tag_handling: Literal["html", "xml", ""] = ""
    splitting_tags: Tags = Field(default=[])
    non_splitting_tags: Tags = Field(default=[])
    outline_detection: Annotated[bool, Field(strict=False)] = True
    ignore_tags: Tags = Field(default=[])


@dataclass
class DeepL:
    translations: Translations
    characters: int = 0  # that it has translated

    def routes(self) -> list[Mount]:
        route = partial(self.translations.route, scheme="DeepL-Auth-Key")
        either = partial(route, kind=_DeepLRequest, methods=["GET", "POST"])
        version_3 = [route("/languages", self.all_languages, _DeepLRequest, methods=["GET"])]
        version_2 = [
            route("/translate", self.translate, _Texts, methods=["POST"]),
            route("/document", self.document, _Target, methods=["POST"], is_file=True),
            either("/document/{key}", self.status),
            either("/document/{key}/result", self.result),
            either("/languages", self.languages),
            either("/glossary-language-pairs", self.glossaries),
            either("/usage", self.usage),
        ]
        return [Mount("/v2", routes=version_2), Mount("/v3", routes=version_3)]

    async def translate(self, request: Request, asked: _Texts) -> Any:
        parse = plain.parse
        if asked.tag_handling == "html":
            parse = partial(html.parse, stays=asked.ignore_tags)
        elif asked.tag_handling == "xml":
            parse = partial(
                html.parse_xml,
                splits=asked.splitting_tags,
                inline=asked.non_splitting_tags if asked.outline_detection else None,
                stays=asked.ignore_tags,
            )
        start = partial(self.translations.start_texts, asked.text, parse)
        steps, sources = await run_in_threadpool(start, asked.source_lang, asked.target_lang)
        async with while_there(request):
            texts = texts_of(await translation_of(steps))
        self.characters += sum(map(len, asked.text))
        detected = [language.partition("-")[0].upper() for language, _ in sources]
        translations = [
            {"detected_source_language": source, "text": new, "billed_characters": len(old)}
            for old, new, source in zip(asked.text, texts, detected, strict=True)
        ]
        return {"translations": translations}

    async def languages(self, request: Request, asked: _DeepLRequest) -> Any:
        translations = self.translations
        codes = translations.targets if asked.type == "target" else translations.sources
        return [
            {"language": code.upper(), "supports_formality": False, **translations.named(code)}
            for code in codes
        ]

    async def all_languages(self, request: Request, asked: _DeepLRequest) -> Any:
        known = self.translations
        stable = {"status": "stable"}
        features = {"tag_handling": stable, "auto_detection": stable}
        return [
            {"lang": code, "name": name, "features": features, **stable}
            | {"usable_as_source": code in known.sources, "usable_as_target": code in known.targets}
            for code, name in known.names.items()
        ]

    async def glossaries(self, request: Request, asked: _DeepLRequest) -> Any:
        return {"supported_languages": []}

    async def usage(self, request: Request, asked: _DeepLRequest) -> Any:
        return {"character_count": self.characters, "character_limit": 10**12}

    async def document(self, request: Request, asked: _Target) -> Any:
        languages = asked.source_lang, asked.target_lang
        stored = await self.translations.store(request, asked, *languages)
        self.characters += stored.characters
        return {"document_id": stored.key, "document_key": stored.key}

    async def status(self, request: Request, asked: _DeepLRequest) -> Any:
        stored = self.translations.stored(request.path_params["key"])
        await asyncio.wait([stored.task], timeout=5)  # seconds
        body: dict[str, Any] = {"document_id": stored.key, "status": "translating"}
        if stored.task.done():
            body |= {"status": "done", "billed_characters": stored.characters}
            try:
                stored.task.result()
            except ERRORS as failure:
                body |= {"status": "error", "error_message": failure_of(failure)[1]}
                stored.is_fetched = True
        return body

    async def result(self, request: Request, asked: _DeepLRequest) -> Response:
        stored = self.translations.stored(request.path_params["key"])
        if not stored.task.done():
            raise HTTPException(503, "the document is not translated yet")
        return await stored.download()
