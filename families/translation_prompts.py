"""Prompts for translations by decoder-only models: by config.json's model_type, as their model cards say."""

from text.languages import Languages
from text.translation_prompt import TranslationPrompt

INSTRUCT = TranslationPrompt(
    (
        "Translate the following text from {source} into {target}. Write only the translation.\n\n{text}",
        "Translate the following text into {target}. Write only the translation.\n\n{text}",
    )
)
PROMPTS = {
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
