"""LibreTranslate's routes: https://docs.libretranslate.com/api"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from common.errors import InputError
from documents import FORMATS, html, plain
from serving.bodies import validated
from serving.translation import Step, Texts, Translations, document_of, last_of
from serving.transport import MAX_BODY, RowStep, event_of, stream_of, while_there
from speculative.row import Row

Code = Annotated[str, Field(min_length=1)]
_SAMPLED: dict[str, Any] = dict(temp=1.0, top_p=0.9)  # alternatives


class _File(BaseModel):
    model_config = ConfigDict(strict=True)
    source: Code
    target: Code


class _Translate(_File):
    q: Texts
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(strict=False, ge=0, le=10)] = 0
    stream: Annotated[bool, Field(strict=False)] = False


@dataclass
class LibreTranslate:
    """Answers LibreTranslate's requests."""

    translations: Translations

    def routes(self) -> list[Route]:
        return [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/download_file/{key}", self.download_file),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/suggest", self.suggest, methods=["POST"]),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.settings),
        ]

    async def translate(self, request: Request) -> Response:
        fields = await self.translations.fields(request)
        given = validated(fields, _Translate)
        if not fields["q"]:
            raise InputError("q is empty")
        document = await document_of(given.q, html.parse if given.format == "html" else plain.parse)
        started = await self.translations.start(document, given.source, given.target)

        def answer(texts: Sequence[str], **more: Sequence[Any]) -> dict[str, Any]:
            body = {"translatedText": texts, **more}
            if given.source.lower() == "auto":
                detected = _detected(started.source, started.certainty)
                body["detectedLanguage"] = [detected] * len(texts)
            is_list = isinstance(fields["q"], list)
            return body if is_list else {name: each[0] for name, each in body.items()}

        async with while_there(request):
            if given.stream:
                return await stream_of(request, started.steps, partial(_events, answer=answer))
            texts = json.loads(await last_of(started.steps))
            if not given.alternatives:
                return JSONResponse(answer(texts))
            others = [dict.fromkeys([text]) for text in texts]
            for seed in range(given.alternatives if given.format == "text" else 0):
                sample = await self.translations.start(
                    document, started.source, given.target, seed=seed, **_SAMPLED
                )
                for seen, text in zip(others, json.loads(await last_of(sample.steps)), strict=True):
                    seen[text] = None
            return JSONResponse(answer(texts, alternatives=[[*seen][1:] for seen in others]))

    async def translate_file(self, request: Request) -> Response:
        fields = await self.translations.fields(request, is_file=True)
        given = validated(fields, _File)
        async with while_there(request):
            stored = await self.translations.store(fields, given.source, given.target)
            await stored.task
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{stored.key}"})

    async def download_file(self, request: Request) -> Response:
        return await self.translations.stored(request.path_params["key"]).download()

    async def detect(self, request: Request) -> Response:
        text = (await self.translations.fields(request)).get("q")
        if not isinstance(text, str):
            raise InputError("q is not a text")
        return JSONResponse([_detected(*await run_in_threadpool(self.translations.detect, text))])

    async def suggest(self, request: Request) -> Response:
        await self.translations.fields(request)
        return JSONResponse({"success": True})

    async def languages(self, request: Request) -> Response:
        translations = self.translations
        listed = [
            self._named(code, targets=translations.targets if code in translations.sources else [])
            for code in translations.names
        ]
        return JSONResponse(listed)

    async def settings(self, request: Request) -> Response:
        source = self.translations.sources[0]
        target = next((code for code in self.translations.targets if code != source), source)
        needs_key = self.translations.gate.api_key is not None
        settings = {
            "charLimit": MAX_BODY // 4,
            "frontendTimeout": 500,  # milliseconds
            "apiKeys": needs_key,
            "keyRequired": needs_key,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": [*FORMATS],
            "language": {"source": self._named(source), "target": self._named(target)},
        }
        return JSONResponse(settings)

    def _named(self, code: str, **more: Any) -> dict[str, Any]:
        return {"code": code, "name": self.translations.names[code], **more}


def _detected(code: str, certainty: float) -> dict[str, Any]:
    return {"confidence": round(100 * certainty, 1), "language": code}


async def _events(
    steps: AsyncIterator[Step], answer: Callable[..., dict[str, Any]]
) -> AsyncIterator[str]:
    """What each sentence has gained, and at last the whole answer."""
    numbers = dict[Row, int]()
    async for step in steps:
        if not isinstance(step, RowStep):
            yield event_of(answer(json.loads(step.data)))
            continue
        event = {
            "sentence": numbers.setdefault(step.row, len(numbers)),
            "source": step.row.prompt_text,
            "text": "".join(step.row.texts[step.new]),
            "finish_reason": step.now.finish_reason,
        }
        yield event_of(event | step.drafts())
