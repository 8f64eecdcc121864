"""The languages of a model: by which names a user may call them, and how the model is told: by tokens, or in words."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import langcodes
from langcodes.data_dicts import MACROLANGUAGES
from language_data.names import name_to_code
from rapidfuzz import fuzz

from speculative.checkpoints.folder import read_json
from speculative.common.errors import InputError
from speculative.text.scripts import RIGHT_TO_LEFT, UNSPACED

FILE = "languages.json"
_NEAR, _FAR = 5, 60  # the CLDR's distances: de-AT is 4 from de, Swiss German 8, Luxembourgish 20
_TERRITORY = re.compile(r"-(?:[A-Z]{2}|\d{3})\b.*")  # of a tag, and what stands behind it
_NAMED = ("text", "source", "target", "start")  # placeholders in source and prefix
LONGEST = 100  # characters of a language's name
NAME = re.compile(rf"[^\0\ud800-\udfff]{{1,{LONGEST}}}")  # others make langcodes fail


@dataclass(frozen=True)
class Languages:
    """A model's languages and how it is told them, as in the converted folder's languages.json.

    codes:  code -> the language's token; or the words before a text that ask for it: MADLAD's "<2de> ", T5's
            "translate English to German: ", and "" for a model that writes no other language
    source: what the encoder reads: token ids, "text", and "source" or "target" for a language's token;
            NLLB's is ["source", "text", 2]; empty for a model that is told in words
    prefix: what a row begins with: "start", the decoder's start token, and "target"
    reads:  the one source language of a model that knows no other
    """

    codes: Mapping[str, int | str]
    source: Sequence[int | str] = ()
    prefix: Sequence[str] = ()
    reads: str | None = None

    @classmethod
    def load(cls, folder: Path, rows: int) -> "Languages | None":
        """The languages of a converted folder; None if its model is not multilingual. InputError for a token
        beyond the model's `rows`."""
        path = folder / FILE
        if not path.exists():
            return None
        values = read_json(path)
        with contextlib.suppress(TypeError, AttributeError):  # the JSON holds something else
            languages = cls(**values)
            codes = {code for code in languages.codes.values() if not isinstance(code, str)}
            tokens = codes | {*languages.source, *languages.prefix} - {*_NAMED}
            if all(type(token) is int and 0 <= token < rows for token in tokens):
                return languages
        raise InputError(f"{path} does not fit this model: convert the model again")

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def find(self, option: str, name: str) -> str:
        """The code of the language that `name` means: the code itself, another one such as de, deu or de-AT, or a
        name in any language. InputError, with the nearest, if the model has none."""
        codes = self.codes
        if option == "source_lang" and "source" not in self.source:
            if self.reads is None:
                raise InputError(f"{option}: this model does not take a source language")
            codes = {self.reads: ""}
        if name in codes:
            return name
        return _find(option, name, tuple(codes))


@lru_cache(1024)  # every row asks
def _find(option: str, name: str, codes: Sequence[str]) -> str:
    """The one of these codes that a name means. Errors: as `Languages.find`"""
    wanted = tag_of(name)
    called = _name(wanted) if wanted else name
    script = script_of(wanted)

    def rank(code: str) -> tuple:
        """First those of the same name, such as one in another script; then the nearest."""
        alike = fuzz.ratio(called.lower(), _name(code).lower())
        distance = _distance(wanted, code) if wanted else _FAR
        is_other = alike < 100 and distance > 0
        return is_other, distance, -alike, code != wanted, script not in code

    nearest, *others = sorted(codes, key=rank)
    is_other, distance, *_ = rank(nearest)
    if distance <= _NEAR or not (is_other or "-" in (wanted or "")):
        return nearest
    listed = ", ".join(map(title, [nearest, *others[:4]]))
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    raise InputError(f"{option}: no language {name[:LONGEST]!r}; there are {listed}{more}")


def tag_of(name: str) -> str | None:
    """The BCP 47 tag of a language's code or name, in any language; None if there is no such language."""
    return _tag_of(name[: LONGEST + 1])


@lru_cache(1024)  # each name is asked for about every language of the model
def _tag_of(name: str) -> str | None:
    if not NAME.fullmatch(name):
        return None
    with contextlib.suppress(ValueError):
        language = langcodes.Language.get(name)
        if language.is_valid() and (len(name) <= 3 or "-" in name or "_" in name):
            return language.to_tag().replace("-Hang", "-Kore")  # the CLDR knows Korean as Kore
    with contextlib.suppress(LookupError):
        name, _, variety = name.rstrip(" )").partition("(")
        language = langcodes.find(name.strip())
        return _variety(language, variety.strip()) if variety else language.to_tag()
    return None


def _variety(language: langcodes.Language, name: str) -> str:
    """The tag of "Chinese (Traditional)", "French (Canada)" or "Kurdish (Sorani)", given the name in brackets.
    LookupError if there is no such variety."""
    own = language.language or ""
    called = language.language_name()
    for words in (f"{name} {called}", f"{called} {name}"):
        tag = name_to_code("language", words, "und") or own
        code = langcodes.Language.get(tag).language or ""
        if tag != own and own in (code, MACROLANGUAGES.get(code)):
            return tag
    for part in ("territory", "script"):
        code = name_to_code(part, name, "und")
        if code:
            return language.update_dict({part: code}).to_tag()
    raise LookupError(name)


@lru_cache(1024)
def _name(code: str) -> str:
    tag = tag_of(code)
    return langcodes.Language.get(tag).language_name() if tag else code


def title(code: str) -> str:
    """A code with the language's name: German (deu_Latn)."""
    return f"{_name(code)} ({code})"


def bcp47(code: str) -> str:
    """The tag by which documents name a language: de for deu_Latn, zh-Hant for zho_Hant; the code itself if it is unknown."""
    tag = tag_of(code)
    if not tag:
        return code
    language = langcodes.Language.get(tag)
    if len(language.language or "") > 2:  # ar, not arb
        language = language.prefer_macrolanguage()
    return language.simplify_script().to_tag()


def short(code: str) -> str:
    """The tag without a territory, for a file's name: pt for pt-BR."""
    return _TERRITORY.sub("", bcp47(code))


def script_of(code: str | None) -> str:
    """The script that a language's code names or implies; Latn if it is unknown."""
    return langcodes.Language.get(tag_of(code or "") or "und").maximize().script or "Latn"


def direction(code: str | None) -> str:
    """The value of HTML's `dir` for a language; an unknown one is written from left to right."""
    return "rtl" if script_of(code) in RIGHT_TO_LEFT else "ltr"


def has_spaces(code: str) -> bool:
    return script_of(code) not in UNSPACED


def is_chinese(code: str) -> bool:
    return (tag_of(code) or "").partition("-")[0] == "zh"


@lru_cache(1024)
def name_in(language: str, code: str) -> str:
    """A language's name in another: Traditional Chinese, Portuguese (Brazil); the code itself if it is unknown."""
    tag = tag_of(code)
    if tag is None:
        return code
    if is_chinese(code) and script_of(tag) == "Hant":
        return {"zh": "繁体中文"}.get(language, "Traditional Chinese")
    return langcodes.Language.get(tag).display_name(language)


def _distance(wanted: str, code: str) -> int:
    """The distance of a model's language from the wanted tag, by the Unicode CLDR."""
    tag = tag_of(code)
    if not tag:
        return _FAR
    distance = min(langcodes.tag_distance(wanted, tag), _FAR)
    if MACROLANGUAGES.get(tag.partition("-")[0]) == wanted:  # Pashto, and a model's Southern Pashto
        distance = min(distance, _NEAR)
    script = langcodes.Language.get(wanted).script
    if script and script != script_of(tag):
        return max(distance, _NEAR + 1)
    return distance


def filled(layout: Sequence[int | str], parts: Mapping[str, list[int]]) -> list[int]:
    """The tokens of a layout, `source` or `prefix` of `Languages`; [] if it needs a part that is missing."""
    tokens = [[part] if isinstance(part, int) else parts.get(part) for part in layout]
    return [] if None in tokens else [token for some in tokens for token in some or ()]
