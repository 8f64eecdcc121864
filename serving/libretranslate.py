"""LibreTranslate's routes: https://docs.libretranslate.com/api"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from documents import FORMATS, html, plain
from documents.translator import Translation
from errors import InputError
from serving.engine import Progress, Refused
from serving.requests import validated
from serving.translation import Step, Texts, Translations, document_of, fields_of, last_of, name_of
from serving.transport import event_of, stream_of, while_there
from speculative.row import Row

PATHS = ("translate", "translate_file", "download_file", "detect", "languages", "frontend")
_SAMPLED: dict[str, Any] = dict(temp=1.0, top_p=0.9)  # alternatives


class _Detect(BaseModel):
    model_config = ConfigDict(strict=True)
    q: Texts


class _File(BaseModel):
    model_config = ConfigDict(strict=True)
    source: str
    target: str


class _Translate(_Detect, _File):
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(strict=False, ge=0, le=10)] = 0
    stream: Annotated[bool, Field(strict=False)] = False


def error(message: str) -> dict[str, Any]:
    return {"error": message}


class LibreTranslate:
    """Answers LibreTranslate's requests."""

    def __init__(
        self,
        translations: Translations,
        max_body: int,
        upload_seconds: float,
        authorize: Callable[..., None],
        check_origin: Callable[[Request], None],
        needs_key: bool,
    ):
        """authorize: raises HTTPException for a request whose key, in its header or given, is not the server's."""
        self._translations, self._max_body = translations, max_body
        self._upload_seconds, self._needs_key = upload_seconds, needs_key
        self._authorize, self._check_origin = authorize, check_origin

    def routes(self) -> list[Route]:
        post = partial(Route, methods=["POST"])
        return [
            post("/translate", self.translate),
            post("/translate_file", self.translate_file),
            Route("/download_file/{name}", self.download_file),
            post("/detect", self.detect),
            post("/suggest", self.suggest),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.settings),
        ]

    async def _fields(self, request: Request) -> dict[str, Any]:
        self._check_origin(request)
        fields = await fields_of(request, self._max_body)
        self._authorize(request, key=fields.get("api_key"))
        return fields

    async def translate(self, request: Request) -> Response:
        fields = await self._fields(request)
        given = validated(fields, _Translate)
        if not fields["q"]:
            raise InputError("q is empty")
        parse = html.parse if given.format == "html" else plain.parse
        document = await run_in_threadpool(document_of, given.q, parse)
        source, certainty = await self._translations.source_of(given.source, document)
        translator = self._translations.translator(source, given.target)

        def answer(texts: Sequence[str], **more: Sequence[Any]) -> dict[str, Any]:
            body = {"translatedText": texts, **more}
            if given.source == "auto":
                detected = {"confidence": round(100 * certainty, 1), "language": source}
                body["detectedLanguage"] = [detected] * len(texts)
            is_list = isinstance(fields["q"], list)
            return body if is_list else {name: each[0] for name, each in body.items()}

        async with while_there(request):
            steps = self._translations.steps(translator, document)
            if given.stream:
                first = await anext(steps)  # the status must be known before a stream begins
                return stream_of(_events(first, steps, answer), steps)
            texts = json.loads((await last_of(steps)).data)
            if not given.alternatives:
                return JSONResponse(answer(texts))
            others = [dict.fromkeys([text]) for text in texts]
            for seed in range(given.alternatives if given.format == "text" else 0):
                translator = self._translations.translator(
                    source, given.target, seed=seed, **_SAMPLED
                )
                sample = await last_of(self._translations.steps(translator, document))
                for seen, text in zip(others, json.loads(sample.data), strict=True):
                    seen[text] = None
            return JSONResponse(answer(texts, alternatives=[[*seen][1:] for seen in others]))

    async def translate_file(self, request: Request) -> Response:
        self._check_origin(request)
        most = self._translations.max_upload
        fields = await fields_of(request, most, self._upload_seconds)
        self._authorize(request, key=fields.get("api_key"))
        given = validated(fields, _File)
        async with while_there(request):
            kept = await self._translations.start(fields.get("file"), given.source, given.target)
            await kept.task
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{kept.key}"})

    async def download_file(self, request: Request) -> Response:
        return await self._translations.kept(request.path_params["name"]).download()

    async def detect(self, request: Request) -> Response:
        given = validated(await self._fields(request), _Detect)
        detect = self._translations.detect
        code, certainty = await run_in_threadpool(detect, "\n".join(given.q))
        return JSONResponse([{"confidence": round(100 * certainty, 1), "language": code}])

    async def suggest(self, request: Request) -> Response:
        await self._fields(request)
        return JSONResponse({"success": True})

    async def languages(self, request: Request) -> Response:
        sources, targets = self._translations.sources, self._translations.targets
        listed = [
            {"code": code, "name": name_of(code), "targets": targets if code in sources else []}
            for code in dict.fromkeys([*sources, *targets])
        ]
        return JSONResponse(listed)

    async def settings(self, request: Request) -> Response:
        sources, targets = self._translations.sources, self._translations.targets
        first = next((code for code in targets if code != sources[0]), targets[0])
        languages = {"source": sources[0], "target": first}
        settings = {
            "charLimit": self._max_body // 4,
            "frontendTimeout": 500,
            "apiKeys": self._needs_key,
            "keyRequired": self._needs_key,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": [*FORMATS],
            "language": {
                side: {"code": code, "name": name_of(code)} for side, code in languages.items()
            },
        }
        return JSONResponse(settings)


async def _events(
    step: Step, steps: AsyncGenerator[Step], answer: Callable[..., dict[str, Any]]
) -> AsyncIterator[str]:
    """What each sentence has gained, and at last the whole answer."""
    numbers = dict[Row, int]()
    try:
        while not isinstance(step, Translation):
            row, before, now = step
            number = numbers.setdefault(row, len(numbers))
            yield event_of(_sentence(row, before, now) | {"sentence": number})
            step = await anext(steps)
    except HTTPException as failure:
        yield event_of(error(failure.detail))
    except Refused as failure:
        yield event_of(error(str(failure)))
    else:
        yield event_of(answer(json.loads(step.data)))


def _sentence(row: Row, before: Progress, now: Progress) -> dict[str, Any]:
    new = slice(before.tokens, now.tokens)
    return {
        "source": row.prompt_text,
        "text": "".join(row.texts[new]),
        "origins": [list(pair) for pair in zip(row.texts[new], row.origins[new], strict=True)],
        "finish_reason": now.finish_reason,
        "stats": {"tokens": now.stats.tokens, **now.stats.drafting},
    }
