"""The languages of a multilingual model, and how it is told the source and target language."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.folder import read_json
from errors import InputError

FILE = "languages.json"
_NAMED = ("text", "source", "target", "start")  # placeholders in source and prefix


@dataclass(frozen=True)
class Languages:
    """A model's language codes and where their tokens go, as in the converted folder's languages.json.

    codes:  code -> token id
    source: what the encoder reads: token ids, "text", and "source" or "target" for a language's token;
            NLLB's is ["source", "text", 2]
    prefix: what a row begins with: "start", the decoder's start token, and "target"
    """

    codes: Mapping[str, int]
    source: Sequence[int | str]
    prefix: Sequence[str]

    @classmethod
    def load(cls, folder: Path, rows: int) -> "Languages | None":
        """The languages of a converted folder; None if its model is not multilingual. InputError for a token
        beyond the model's `rows`."""
        if not (path := folder / FILE).exists():
            return None
        values = read_json(path)
        with contextlib.suppress(TypeError, AttributeError):  # the JSON holds something else
            found = cls(**values)
            tokens = {*found.codes.values(), *found.source, *found.prefix} - {*_NAMED}
            if all(type(token) is int and 0 <= token < rows for token in tokens):
                return found
        raise InputError(f"{path} does not fit this model: convert the model again")

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def token(self, option: str, code: str | None) -> list[int] | None:
        """The token of a language, None for None. InputError, with a list of codes, for an unknown language."""
        if code is None:
            return None
        part = option.removesuffix("_lang")
        if part not in (*self.source, *self.prefix):
            raise InputError(f"{option}: this model does not take a {part} language")
        if code not in self.codes:
            known = sorted(self.codes, key=lambda k: (k[:2] != code[:2].lower(), k))
            more = f" and {len(known) - 8} more" if len(known) > 8 else ""
            listed = ", ".join(known[:8])
            raise InputError(f"{option}: no language {code!r}; there are {listed}{more}")
        return [self.codes[code]]


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
    languages: Languages | None = getattr(model, "languages", None)
    if languages is None:
        reason = "this model has no languages to choose from"
        if tokenizer.token_to_id(tag := f"<2{target_lang}>") is not None:  # MADLAD-400
            reason = f"this model reads the language from the prompt; begin it with {tag}"
        raise InputError(f"source_lang and target_lang: {reason}")
    given = {
        "text": tokenizer.encode(text, add_special_tokens=False).ids,
        "source": languages.token("source_lang", source_lang),
        "target": languages.token("target_lang", target_lang),
        "start": [model.config.decoder_start_token_id],
    }
    # Without a source language use the tokenizer's, without a target language the model's.
    source = _filled(languages.source, given) or whole
    return source, _filled(languages.prefix, given) or model.prefix(source)


def _filled(template: Sequence[int | str], given: Mapping[str, list[int] | None]) -> list[int]:
    """The tokens of a template; [] if it needs something that is not given."""
    parts = [[part] if isinstance(part, int) else given[part] for part in template]
    return [] if None in parts else [token for part in parts for token in part or ()]
