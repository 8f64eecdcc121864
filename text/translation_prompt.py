"""Asking for a translation: of models that are told in words, or whose chat template takes the languages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InputError
from text.languages import is_chinese, name_in

_PLACE = re.compile(r"\{(text|source|target)\}")


@dataclass(frozen=True)
class TranslationPrompt:
    """The prompt for a text's translation.

    forms:   with {text} and, for the languages' names in English, {source} and {target}; the first form is used for which
             the languages are given. Empty: the chat template takes the languages' codes and writes the prompt
    chinese: a form with names in Chinese, for texts into or from Chinese; "": none
    """

    forms: Sequence[str] = ()
    chinese: str = ""

    def content(self, text: str, source_lang: str | None, target_lang: str | None) -> Any:
        """The content of a user's message. InputError if a language is needed and not given."""
        given = {"source": source_lang or "", "target": target_lang or ""}
        is_in_chinese = bool(self.chinese) and any(map(is_chinese, given.values()))
        forms = [self.chinese] if is_in_chinese else self.forms or ["{source}{target}"]
        language = "zh" if is_in_chinese else "en"
        values = {"text": text} | {name: name_in(language, code) for name, code in given.items()}
        form = next((f for f in forms if all(values[x] for x in _PLACE.findall(f))), forms[-1])
        missing = next((name for name in _PLACE.findall(form) if not values[name]), None)
        if missing:
            raise InputError(f"{missing}_lang: the prompt for translating needs this language")
        if not self.forms:
            codes = {f"{name}_lang_code": code for name, code in given.items()}
            return [{"type": "text", **codes, "text": text}]
        return _PLACE.sub(lambda place: values[place[1]], form)
