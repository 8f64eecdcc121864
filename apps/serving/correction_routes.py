"""The routes of languagetool.org/http-api: the mistakes of a text, with what to write instead."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl

from langcodes import Language
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from apps.documents.prose import STAND_IN
from apps.documents.sentences import sentences
from apps.serving.bodies import Object, parse
from apps.serving.correction import Corrections
from apps.serving.differences import differences
from apps.serving.gate import Gate
from apps.serving.translation import COMMON
from apps.serving.transport import read_body, while_there
from speculative.common.errors import InputError
from speculative.text.language_detector import LanguageDetector
from speculative.text.languages import tag_of

MAX_CHARACTERS = 250_000  # less than transport.MAX_BODY
_LONGEST = 2_000  # characters of a sentence; a longer one is cut at clauses
_CONTEXT = 40  # characters before and after a match
_SOFTWARE = {"name": "speculative-decoding", "version": "1", "apiVersion": 1, "premium": False}
# By category, which is the rule's id, too: what is said of a match, its issue type and its type
_RULES = {
    "TYPOS": ("Possible spelling mistake", "misspelling", "UnknownWord"),
    "GRAMMAR": ("Possible grammatical mistake", "grammar", "Other"),
    "PUNCTUATION": ("Possible mistake in punctuation", "typographical", "Other"),
    "CASING": ("Possible mistake in capital letters", "misspelling", "Other"),
    "STYLE": ("Most of this sentence is rewritten", "style", "Hint"),
}
_DETECTOR = LanguageDetector(COMMON)

Fields = Mapping[str, str]
Sentence = tuple[str, list[int]]  # with single spaces, and its characters' indices in the text


class _Part(Object, extra="ignore"):
    text: str | None = None
    markup: str = ""
    interpretAs: str = ""


class _Data(Object, extra="ignore"):
    annotation: list[_Part]


@dataclass
class LanguageTool:
    corrections: Corrections
    gate: Gate

    def routes(self) -> list[Route]:
        answers = {"check": self.check, "info": self.info, "healthcheck": self.health}
        return [
            Route(f"{base}/{name}", answer, methods=["GET", "POST"])
            for base in ("/v2", "")
            for name, answer in answers.items()
        ]

    async def check(self, request: Request) -> Response:
        fields = await self._fields(request)
        plain, places = await run_in_threadpool(_read, fields)
        if len(plain) > MAX_CHARACTERS:
            raise HTTPException(413, f"the text is too long; {MAX_CHARACTERS} characters at most")
        async with while_there(request):
            code, certainty = await run_in_threadpool(_language, fields, plain)
            found = await run_in_threadpool(lambda: [*_sentences(plain, code)])
            corrections = await self.corrections.correct([text for text, _ in found], code)
            pairs = [each for each in zip(found, corrections, strict=True) if each[0][0] != each[1]]
            matches = await run_in_threadpool(lambda: [*_matches(pairs, plain, places)])
        language: dict[str, Any] = {"name": Language.get(code).display_name(), "code": code}
        language["detectedLanguage"] = {**language, "confidence": certainty}
        asked = _categories(fields)
        wanted = [each for each in matches if each["rule"]["id"] in asked]
        return JSONResponse({"software": _SOFTWARE, "language": language, "matches": wanted})

    async def info(self, request: Request) -> Response:
        await self._fields(request)
        return JSONResponse({"software": _SOFTWARE})

    async def health(self, request: Request) -> Response:
        await self._fields(request)
        self.corrections.engine.check()
        return PlainTextResponse("OK")

    async def _fields(self, request: Request) -> dict[str, str]:
        """A request's fields, in the address and in a form, which LTeX says is JSON. HTTPException if it may not ask."""
        self.gate.check_origin(request)
        if "authorization" in request.headers:
            self.gate.authorize(request, status=403)
        body = await read_body(request)
        try:
            form = parse_qsl(body.decode(), keep_blank_values=True)
        except ValueError as error:
            raise InputError(f"the body is not a form: {error}") from None
        fields = {**request.query_params, **dict(form)}
        self.gate.authorize(request, key=fields.get("apiKey", ""), status=403)
        return fields


def _read(fields: Fields) -> tuple[str, list[int]]:
    """The text to check, and where each of its characters is for the client, in UTF-16 units; -1: it stands for markup.
    InputError if there is none."""
    if ("text" in fields) == ("data" in fields):
        raise InputError("either text or data is needed")
    parts = [_Part(text=fields.get("text"))]
    if "data" in fields:
        parts = parse(fields["data"].encode(), _Data).annotation
    plain = ""
    places = list[int]()
    place = 0
    for part in parts:
        if part.text is None:
            plain += part.interpretAs
            places += [-1] * len(part.interpretAs)
            place += _units(part.markup)
        else:
            plain += part.text
            places += accumulate(map(_units, part.text), initial=place)
            place = places.pop()
    return plain, places


def _language(fields: Fields, text: str) -> tuple[str, float]:
    """The tag of a text's language, and how sure that is. InputError if there is no such language."""
    named = fields.get("language", "")
    if named != "auto":
        tag = tag_of(named)
        if tag is None:
            raise InputError(f"language: there is none of the name {named[:99]!r}")
        return tag, 1.0
    code, certainty = _DETECTOR.detect(text)
    variants = filter(None, map(tag_of, fields.get("preferredVariants", "").split(",")))
    return next((each for each in variants if each.partition("-")[0] == code), code), certainty


def _categories(fields: Fields) -> set[str]:
    """The categories that are asked for; a request may name them as rules."""
    kind = "enabled" if fields.get("enabledOnly") == "true" else "disabled"
    names = ",".join(fields.get(f"{kind}{of}", "") for of in ("Rules", "Categories")).split(",")
    return {each for each in _RULES if (each in names) == (kind == "enabled")}


def _sentences(text: str, language: str) -> Iterator[Sentence]:
    start = 0
    for piece in sentences(text, language, STAND_IN, lambda each: len(each) <= _LONGEST):
        words = [*re.finditer(r"\S+", piece)]
        if words:
            indices = [start + i for word in words for i in range(word.start(), word.end() + 1)]
            yield " ".join(word[0] for word in words), indices[:-1]
        start += len(piece)


def _matches(
    corrections: Iterable[tuple[Sentence, str]], text: str, places: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """What corrections change, besides markup: a change with some inside would lose it."""

    def has_markup(first: int, last: int) -> bool:
        run = places[first : last + 1]
        return -1 in run or run[-1] - run[0] != _units(text[first:last])

    for (sentence, indices), correction in corrections:
        as_one = not has_markup(indices[0], indices[-1])
        for change in differences(sentence, correction, as_one):
            first = indices[change.start]
            last = indices[change.stop - 1]
            if has_markup(first, last):
                continue
            message, issue, kind = _RULES[change.category]
            category = {"id": change.category, "name": change.category.capitalize()}
            rule = {"id": change.category, "description": message, "issueType": issue}
            length = _units(text[first : last + 1])
            before = text[max(0, first - _CONTEXT) : first]
            around = re.sub(r"\s", " ", before + text[first : last + 1 + _CONTEXT])
            yield {
                "message": f"{message}.",
                "shortMessage": message,
                "replacements": [{"value": change.text}],
                "offset": places[first],
                "length": length,
                "context": {"text": around, "offset": _units(before), "length": length},
                "sentence": sentence,
                "type": {"typeName": kind},
                "rule": {**rule, "category": category},
            }


def _units(text: str) -> int:
    """How long a text is in UTF-16 units, in which clients count."""
    return len(text) + sum(character > "\uffff" for character in text)
