"""The prompts that ask models with a chat template for a translation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculative.common.errors import InputError
from speculative.text.languages import Languages, is_chinese, name_in

_PLACE = re.compile(r"\{(text|source|target)\}")  # in forms of prompts


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


INSTRUCT = TranslationPrompt(
    (
        "Translate the following text from {source} into {target}. Write only the translation.\n\n{text}",
        "Translate the following text into {target}. Write only the translation.\n\n{text}",
    )
)
PROMPTS = {  # by config.json's model_type, as their model cards say
    # Hy-MT2 (github.com/Tencent-Hunyuan/Hy-MT2). HY-MT1.5's card has the Chinese form for texts into or from Chinese.
    "hunyuan_v1_dense": TranslationPrompt(
        (
            "Translate the following text into {target}. Note that you should only output the translated result without "
            "any additional explanation:\n\n{text}",
        ),
        "将以下文本翻译为{target}，注意只需要输出翻译后的结果，不要额外解释：\n\n{text}",  # noqa: RUF001 (Chinese)
    ),
}


def translation_of(
    model_type: str, chat_template: str
) -> tuple[TranslationPrompt, Languages | None]:
    """A model's prompt and languages (None: any); TranslateGemma's template has a table of their codes."""
    if "source_lang_code" not in chat_template:
        return PROMPTS.get(model_type, INSTRUCT), None
    from jinja2 import Environment, nodes  # which mlx-lm brings

    tables = Environment().parse(chat_template).find_all(nodes.Dict)
    codes = max((table.as_const() for table in tables), key=len)
    return TranslationPrompt(), Languages(codes, ("source", "text"))
