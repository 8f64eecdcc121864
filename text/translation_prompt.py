"""How to ask for a translation: of models that are told in words, or whose chat template takes the languages."""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from errors import InputError
from text.languages import is_chinese, name_in, tag_of

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

    def find(self, option: str, name: str) -> str:
        """The BCP 47 tag of the language that `name` means; the name itself if it is unknown, for the model may know it."""
        return tag_of(name) or name

    def content(self, text: str, source_lang: str | None, target_lang: str | None) -> Any:
        """The content of a user's message. InputError if a language is needed and not given."""
        codes = {"source": source_lang, "target": target_lang}
        given = {name: code for name, code in codes.items() if code}
        if not self.forms:
            _check(codes, given)
            named = {"source_lang_code": source_lang, "target_lang_code": target_lang}
            return [{"type": "text", **named, "text": text}]
        forms = self.forms
        language = "en"
        if self.chinese and any(map(is_chinese, given.values())):
            forms = [self.chinese]
            language = "zh"
        values = {"text": text} | {name: name_in(language, code) for name, code in given.items()}
        fitting = (form for form in forms if values.keys() >= {*_PLACE.findall(form)})
        form = next(fitting, forms[-1])
        _check(_PLACE.findall(form), values)
        return _PLACE.sub(lambda place: values[place[1]], form)


def _check(needed: Iterable[str], given: Container[str]) -> None:
    """InputError if one of the needed languages is not given."""
    for name in needed:
        if name not in given:
            raise InputError(f"{name}_lang: the prompt for translating needs this language")
