"""Languages of a multilingual model: how a source says which it is in, and a text which it is to be in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.folder import read_json
from errors import InputError

FILE = "languages.json"
SHOWN = 8  # codes in a message
_NAMED = ("text", "source", "target", "start")  # what stands for tokens in source and prefix


@dataclass(frozen=True)
class Languages:
    """A model's language codes and where their tokens go, as the converted folder's languages.json has it.

    codes:  code -> token id
    source: what the encoder reads, a list of token ids, "text" and "source" or "target", the language's
            token: NLLB's is ["source", "text", 2]
    prefix: what a row begins with, a list of "start", the decoder's start token, and "target"
    """

    codes: Mapping[str, int]
    source: Sequence[int | str]
    prefix: Sequence[str]

    @classmethod
    def load(cls, folder: Path, rows: int) -> "Languages | None":
        """A converted folder's; None where its model has none, or one. InputError for what is no row of
        the model's `rows`."""
        path = folder / FILE
        if not path.exists():
            return None
        values = read_json(path)
        kinds = {"codes": dict, "source": list, "prefix": list}
        if {key: type(value) for key, value in values.items()} != kinds:
            raise InputError(f"{path}: not a table of languages: convert the model again")
        for token in (*values["codes"].values(), *values["source"], *values["prefix"]):
            if token not in _NAMED and not (type(token) is int and 0 <= token < rows):
                raise InputError(f"{path}: {token!r:.50} is none of the model's {rows} tokens")
        return cls(**values)

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def token(self, option: str, code: str | None) -> list[int] | None:
        """The token of a language, None for none; InputError, with codes that there are, for one that is not."""
        if code is None:
            return None
        part = option.removesuffix("_lang")
        if part not in (*self.source, *self.prefix):
            raise InputError(f"{option}: this model is not told its {part} language")
        if code not in self.codes:
            raise InputError(f"{option}: no language {code!r}; {self.like(code)}")
        return [self.codes[code]]

    def like(self, code: str) -> str:
        """Which codes there are, those like this one first."""
        known = sorted(self.codes)
        alike = [k for k in known if k[:2] == code[:2].lower()] or get_close_matches(code, known)
        shown = [*alike, *(k for k in known if k not in alike)][:SHOWN]
        more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
        return f"there are {', '.join(shown)}{more}"


def frame(
    model: Any,
    tokenizer: Tokenizer,
    text: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> tuple[list[int], list[int]]:
    """What the encoder reads for `text`, and what the row's tokens begin with.

    Without languages: as transformers does, with the tokenizer's own source language and the model's own
    first tokens. `model.languages` is a `Languages` or None. InputError for a language that is unknown
    or cannot be chosen.
    """
    tokenizer = getattr(model, "source_tokenizer", None) or tokenizer
    begun = getattr(model, "begins", "")  # what a text in a chat template begins with already
    special = not (begun and text.startswith(begun))
    whole = tokenizer.encode(text, add_special_tokens=special).ids
    if source_lang is None and target_lang is None:
        return whole, model.prefix(whole)
    languages: Languages | None = getattr(model, "languages", None)
    if languages is None:
        raise InputError(f"source_lang and target_lang: {_without_choice(tokenizer, target_lang)}")
    given = {
        "text": tokenizer.encode(text, add_special_tokens=False).ids,
        "source": languages.token("source_lang", source_lang),
        "target": languages.token("target_lang", target_lang),
        "start": [model.config.decoder_start_token_id],
    }
    # A language that is not given is the tokenizer's own, or the model's.
    source = _filled(languages.source, given) or whole
    return source, _filled(languages.prefix, given) or model.prefix(source)


def _without_choice(tokenizer: Tokenizer, target_lang: str | None) -> str:
    """Why there is no language to choose, and what to do: MADLAD-400 has its target's in the text."""
    if tokenizer.token_to_id(tag := f"<2{target_lang}>") is not None:
        return f"this model reads its language in the text; begin that with {tag}"
    return "this model has no languages to choose from"


def _filled(template: Sequence[int | str], given: Mapping[str, list[int] | None]) -> list[int]:
    """The tokens of a template; none where it wants something that is not given."""
    tokens: list[int] = []
    for part in template:
        found = [part] if isinstance(part, int) else given[part]
        if found is None:
            return []
        tokens += found
    return tokens
