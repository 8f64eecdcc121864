"""DeepL's routes, version 2 of its API: https://developers.deepl.com/api-reference"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from documents import html, plain
from errors import InputError
from serving.requests import validated
from serving.translation import Kept, Texts, Translations, document_of, fields_of, last_of, name_of
from serving.transport import while_there

_SECONDS = 5  # that a status waits for its document
_LIMIT = 10**12  # characters that nobody will reach
_REFUSED = (  # fields that would change a text
    *("glossary_id", "glossary_ids", "custom_instructions", "style_id", "translation_memory_id"),
    "output_format",
)
Tags = Annotated[
    list[str], BeforeValidator(lambda tags: tags.split(",") if isinstance(tags, str) else tags)
]


class _File(BaseModel):
    model_config = ConfigDict(strict=True)
    target_lang: str
    source_lang: str | None = None
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"


class _Translate(_File):
    text: Texts
    tag_handling: Literal["html", "xml", ""] = ""
    splitting_tags: Tags = []
    ignore_tags: Tags = []


def error(message: str) -> dict[str, Any]:
    return {"message": message}


class DeepL:
    """Answers DeepL's requests."""

    def __init__(
        self,
        translations: Translations,
        max_body: int,
        upload_seconds: float,
        authorize: Callable[..., None],
        check_origin: Callable[[Request], None],
    ):
        """authorize: raises HTTPException for a request without the server's key."""
        self._translations, self._max_body = translations, max_body
        self._upload_seconds = upload_seconds
        self._authorize, self._check_origin = authorize, check_origin
        self._characters = 0  # that it has translated

    def routes(self) -> list[Route]:
        post = partial(Route, methods=["POST"])
        either = partial(Route, methods=["GET", "POST"])
        return [
            post("/translate", self.translate),
            either("/languages", self.languages),
            either("/usage", self.usage),
            post("/document", self.document),
            either("/document/{id}", self.status),
            either("/document/{id}/result", self.result),
        ]

    async def _fields(self, request: Request, is_file: bool = False) -> dict[str, Any]:
        self._authorize(request, "DeepL-Auth-Key")
        self._check_origin(request)
        most = self._translations.max_upload if is_file else self._max_body
        fields = await fields_of(request, most, self._upload_seconds)
        for name in _REFUSED:
            if fields.get(name):
                raise InputError(f"{name} is not supported")
        return fields

    async def translate(self, request: Request) -> Response:
        given = validated(await self._fields(request), _Translate)
        parse = html.parse if given.tag_handling == "html" else plain.parse
        if given.tag_handling == "xml":
            parse = partial(html.parse_xml, splits=given.splitting_tags, stays=given.ignore_tags)
        document = await run_in_threadpool(document_of, given.text, parse)
        source, _ = await self._translations.source_of(given.source_lang, document)
        translator = self._translations.translator(source, given.target_lang)
        async with while_there(request):
            translation = await last_of(self._translations.steps(translator, document))
        self._characters += sum(map(len, given.text))
        translations = [
            {
                "detected_source_language": source.partition("-")[0].upper(),
                "text": new,
                "billed_characters": len(old),
            }
            for old, new in zip(given.text, json.loads(translation.data), strict=True)
        ]
        return JSONResponse({"translations": translations})

    async def languages(self, request: Request) -> Response:
        kind = (await self._fields(request)).get("type", "source")
        if kind not in ("source", "target"):
            raise InputError(f"type is {str(kind)[:50]!r}, not source or target")
        codes = self._translations.targets if kind == "target" else self._translations.sources
        listed = [
            {"language": code.upper(), "name": name_of(code), "supports_formality": False}
            for code in codes
        ]
        return JSONResponse(listed)

    async def usage(self, request: Request) -> Response:
        await self._fields(request)
        return JSONResponse({"character_count": self._characters, "character_limit": _LIMIT})

    async def document(self, request: Request) -> Response:
        fields = await self._fields(request, is_file=True)
        given = validated(fields, _File)
        file = fields.get("file")
        kept = await self._translations.start(file, given.source_lang, given.target_lang)
        self._characters += kept.characters
        return JSONResponse({"document_id": kept.key, "document_key": kept.key})

    async def _kept(self, request: Request) -> Kept:
        fields = await self._fields(request)
        kept = self._translations.kept(request.path_params["id"])
        if fields.get("document_key") != kept.key:
            raise HTTPException(404, "document_key is not this document's")
        return kept

    async def status(self, request: Request) -> Response:
        kept = await self._kept(request)
        await asyncio.wait([kept.task], timeout=_SECONDS)
        status: dict[str, Any] = {"status": "translating"}
        if kept.task.done():
            status = {"status": "done", "billed_characters": kept.characters}
            failure = kept.task.exception()
            if failure:
                message = getattr(failure, "detail", str(failure))
                status = {"status": "error", "error_message": message}
        return JSONResponse({"document_id": kept.key, **status})

    async def result(self, request: Request) -> Response:
        kept = await self._kept(request)
        if not kept.task.done():
            raise HTTPException(503, "the document is not translated yet")
        return await kept.download()
