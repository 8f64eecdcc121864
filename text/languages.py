"""The languages of a model: by which names a user may call them, and how the model is told."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import langcodes
from rapidfuzz import fuzz
from tokenizers import Tokenizer

from checkpoints.folder import read_json
from errors import InputError

FILE = "languages.json"
_NEAR, _FAR = 5, 60  # the CLDR's distances: de-AT is 4 from de, Swiss German 8, Luxembourgish 20
_NAMED = ("text", "source", "target", "start")  # placeholders in source and prefix


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
        if not (path := folder / FILE).exists():
            return None
        values = read_json(path)
        with contextlib.suppress(TypeError, AttributeError):  # the JSON holds something else
            found = cls(**values)
            codes = {code for code in found.codes.values() if not isinstance(code, str)}
            tokens = codes | {*found.source, *found.prefix} - {*_NAMED}
            if all(type(token) is int and 0 <= token < rows for token in tokens):
                return found
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
        wanted = tag_of(name)
        called = _name(wanted) if wanted else name
        ranks = {}  # of the same name first, such as one in another script; then the nearest
        for code in codes:
            alike = fuzz.ratio(called.lower(), _name(code).lower())
            ranks[code] = alike < 100, _distance(wanted, code) if wanted else _FAR, -alike
        near = sorted(codes, key=ranks.__getitem__)
        other, distance, _ = ranks[near[0]]
        if distance <= _NEAR or not (other or "-" in (wanted or "")):
            return near[0]
        more = f" and {len(near) - 5} more" if len(near) > 5 else ""
        listed = ", ".join(title(code) for code in near[:5])
        raise InputError(f"{option}: no language {name!r}; there are {listed}{more}")


@lru_cache(1024)  # every row asks, about every language of the model
def tag_of(name: str) -> str | None:
    """The BCP 47 tag of a language's code or name, in any language; None if there is no such language."""
    with contextlib.suppress(ValueError):
        found = langcodes.Language.get(name)
        if found.is_valid() and (len(name) <= 3 or "-" in name or "_" in name):
            return found.to_tag().replace("-Hang", "-Kore")  # the CLDR knows Korean as Kore
    with contextlib.suppress(LookupError):
        if "(" not in name:  # langcodes passes over the script in "Serbian (Latin)"
            return langcodes.find(name).to_tag()
    return None


@lru_cache(1024)
def _name(code: str) -> str:
    tag = tag_of(code)
    return langcodes.Language.get(tag).language_name() if tag else code


def title(code: str) -> str:
    """A code with the language's name: German (deu_Latn)."""
    return f"{_name(code)} ({code})"


def short(code: str) -> str:
    """The tag for a file's name: de for deu_Latn, zh-Hant for zho_Hant."""
    if not (tag := tag_of(code)):
        return code
    found = langcodes.Language.get(tag).simplify_script()
    return "-".join(filter(None, (found.language, found.script)))


def _distance(wanted: str, code: str) -> int:
    """How far a model's language is from the wanted tag, by the Unicode CLDR."""
    if not (tag := tag_of(code)):
        return _FAR
    distance = min(langcodes.tag_distance(wanted, tag), _FAR)
    script = langcodes.Language.get(wanted).script
    if script and script != langcodes.Language.get(tag).maximize().script:
        return max(distance, _NEAR + 1)
    return distance


def chosen(
    model: Any, source_lang: str | None, target_lang: str | None
) -> tuple[str | None, str | None]:
    """The model's own codes for languages given by code or name; None stays None. InputError for a language that is
    unknown or cannot be chosen."""
    given = {"source_lang": source_lang, "target_lang": target_lang}
    if not any(given.values()):
        return None, None
    if (languages := getattr(model, "languages", None)) is None:
        raise InputError(
            f"{' and '.join(filter(given.get, given))}: this model has no languages to choose from"
        )
    source, target = (name and languages.find(option, name) for option, name in given.items())
    return source, target


def defaults(model: Any, tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    """The codes of the languages that the model translates from and to when not told; None: unknown, or none."""
    languages = getattr(model, "languages", None)
    if languages is None:
        return None, None
    named = {token: code for code, token in languages.codes.items()}
    read = (getattr(model, "source_tokenizer", None) or tokenizer).encode("").ids
    source = next((named[token] for token in read if token in named), languages.reads)
    only = next(iter(named.values())) if len(named) == 1 else None
    return source, next((named[token] for token in model.prefix([]) if token in named), only)


def frame(
    model: Any,
    tokenizer: Tokenizer,
    text: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> tuple[list[int], list[int]]:
    """The tokens that the encoder reads for `text`, and the first tokens of the row.

    Without a language these follow the tokenizer's source language and the model's own first tokens, as in
    transformers. InputError for a language that is unknown or cannot be chosen.
    """
    tokenizer = getattr(model, "source_tokenizer", None) or tokenizer
    begun = getattr(model, "begins", "")  # what a text in a chat template already begins with
    special = not (begun and text.startswith(begun))
    whole = tokenizer.encode(text, add_special_tokens=special).ids
    if source_lang is None and target_lang is None:
        return whole, model.prefix(whole)
    source_lang, target_lang = chosen(model, source_lang, target_lang)
    codes, languages = model.languages.codes, model.languages
    target = codes.get(target_lang)
    if not languages.source:  # told in words
        whole = tokenizer.encode((target or "") + text).ids
    given = {
        "text": tokenizer.encode(text, add_special_tokens=False).ids,
        "source": [codes[source_lang]] if source_lang in codes else None,
        "target": [target] if target_lang else None,
        "start": [model.config.decoder_start_token_id],
    }
    # Without a source language use the tokenizer's, without a target language the model's.
    source = _filled(languages.source, given) or whole
    return source, _filled(languages.prefix, given) or model.prefix(source)


def _filled(template: Sequence[int | str], given: Mapping[str, list[int] | None]) -> list[int]:
    """The tokens of a template; [] if it needs something that is not given."""
    parts = [[part] if isinstance(part, int) else given[part] for part in template]
    return [] if None in parts else [token for part in parts for token in part or ()]
