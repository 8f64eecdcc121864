"""DeepL's routes, version 2 of its API: https://developers.deepl.com/api-reference"""

import asyncio
import json
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from common.errors import InputError
from documents import html, plain
from serving.bodies import validated
from serving.translation import StoredDocument, Texts, Translations, document_of, last_of
from serving.transport import ERRORS, failure_of, while_there

_SCHEME = "DeepL-Auth-Key"
_STATUS_SECONDS = 5  # that a status waits for its document
_UNLIMITED = 10**12  # characters
# Fields that would change a text
_REFUSED = "glossary_id glossary_ids custom_instructions style_id translation_memory_id output_format".split()
Tags = Annotated[
    list[str], BeforeValidator(lambda tags: tags.split(",") if isinstance(tags, str) else tags)
]


class _File(BaseModel):
    model_config = ConfigDict(strict=True)
    target_lang: Annotated[str, Field(min_length=1)]
    source_lang: str | None = None
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"


class _Translate(_File):
    text: Texts
    tag_handling: Literal["html", "xml", ""] = ""
    splitting_tags: Tags = []
    non_splitting_tags: Tags = []
    outline_detection: Annotated[bool, Field(strict=False)] = True
    ignore_tags: Tags = []


class DeepL:
    """Answers DeepL's requests."""

    def __init__(self, translations: Translations):
        self._translations = translations
        self._characters = 0  # that it has translated

    def routes(self) -> list[Route]:
        either = partial(Route, methods=["GET", "POST"])
        return [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/document", self.document, methods=["POST"]),
            either("/document/{key}", self.status),
            either("/document/{key}/result", self.result),
            either("/languages", self.languages),
            either("/glossary-language-pairs", self.glossaries),
            either("/usage", self.usage),
        ]

    async def _fields(self, request: Request, is_file: bool = False) -> dict[str, Any]:
        self._translations.gate.authorize(request, _SCHEME, status=403)
        fields = await self._translations.fields(request, _SCHEME, is_file)
        for name in _REFUSED:
            if fields.get(name):
                raise InputError(f"{name} is not supported")
        return fields

    async def translate(self, request: Request) -> Response:
        given = validated(await self._fields(request), _Translate)
        parse = plain.parse
        if given.tag_handling == "html":
            parse = partial(html.parse, stays=given.ignore_tags)
        elif given.tag_handling == "xml":
            parse = partial(
                html.parse_xml,
                splits=given.splitting_tags,
                inline=given.non_splitting_tags,
                stays=given.ignore_tags,
                is_outlined=given.outline_detection,
            )
        document = await document_of(given.text, parse)
        started = await self._translations.start(document, given.source_lang, given.target_lang)
        async with while_there(request):
            texts = json.loads(await last_of(started.steps))
        source = started.source.partition("-")[0].upper()
        translations = [
            {"detected_source_language": source, "text": new, "billed_characters": len(old)}
            for old, new in zip(given.text, texts, strict=True)
        ]
        self._characters += sum(map(len, given.text))
        return JSONResponse({"translations": translations})

    async def languages(self, request: Request) -> Response:
        is_target = (await self._fields(request)).get("type") == "target"
        codes = self._translations.targets if is_target else self._translations.sources
        listed = [
            {"language": code.upper(), "name": self._translations.names[code]} for code in codes
        ]
        return JSONResponse([{**each, "supports_formality": False} for each in listed])

    async def glossaries(self, request: Request) -> Response:
        await self._fields(request)
        return JSONResponse({"supported_languages": []})

    async def usage(self, request: Request) -> Response:
        await self._fields(request)
        return JSONResponse({"character_count": self._characters, "character_limit": _UNLIMITED})

    async def document(self, request: Request) -> Response:
        fields = await self._fields(request, is_file=True)
        given = validated(fields, _File)
        stored = await self._translations.store(fields, given.source_lang, given.target_lang)
        self._characters += stored.characters
        return JSONResponse({"document_id": stored.key, "document_key": stored.key})

    async def _stored(self, request: Request) -> StoredDocument:
        await self._fields(request)
        return self._translations.stored(request.path_params["key"])

    async def status(self, request: Request) -> Response:
        stored = await self._stored(request)
        await asyncio.wait([stored.task], timeout=_STATUS_SECONDS)
        body: dict[str, Any] = {"document_id": stored.key, "status": "translating"}
        if stored.task.done():
            body |= {"status": "done", "billed_characters": stored.characters}
            try:
                stored.task.result()
            except ERRORS as failure:
                body |= {"status": "error", "error_message": failure_of(failure)[1]}
                stored.is_fetched = True
        return JSONResponse(body)

    async def result(self, request: Request) -> Response:
        stored = await self._stored(request)
        if not stored.task.done():
            raise HTTPException(503, "the document is not translated yet")
        return await stored.download()
