"""Models that are asked for translations by a prompt: of TranslateGemma's template, Hy-MT's card, the user's own."""

import json
from dataclasses import replace

import pytest
from helpers import causal_folders
from helpers.programs import DEMO

from apps.documents import FORMATS
from apps.documents.translator import Memories, Translator
from decoder import Options, SpeculativeDecoder, load
from speculative.common.errors import InputError
from speculative.text.text_side import Prompt
from speculative.text.translation_prompt import translation_of

CODES = "de fr es it pt pt-BR nl pl cs ru uk tr ar he hi ja ko zh-Hans zh-Hant el".split()
GEMMA = f"{{% set known = {json.dumps({code: code.upper() for code in ['en', 'zh', *CODES]})} %}}" + (
    "{% for m in messages %}{% if m.role != 'user' or m.content is string %}{{ raise_exception('no') }}{% endif %}"
    "{% set c = m.content[0] %}<user>{{ known[c.source_lang_code] }} to {{ known[c.target_lang_code] }}: "
    "{{ c.text | trim }}<end>{% endfor %}<assistant>"
)  # fmt: skip
THINKS = causal_folders.TEMPLATE + "{% if enable_thinking %}<think>{% endif %}"
TEXT = " A {text}, {target}\n"
ANY, HY_MT = (translation_of(kind, "")[0] for kind in ("llama", "hunyuan_v1_dense"))


@pytest.mark.parametrize(
    ("prompt", "languages", "expected"),
    [
        (ANY, (None, "de"), "Translate the following text into German. Write only"),
        (ANY, ("en", "Elvish"), "Translate the following text from English into Elvish. Write"),
        (HY_MT, ("fr", "pt-BR"), "Translate the following text into Portuguese (Brazil). Note"),
        (HY_MT, (None, "zh-TW"), "将以下文本翻译为繁体中文"),
        (HY_MT, ("zh", "de"), "将以下文本翻译为德语"),
    ],
)
def test_a_prompt_names_the_languages_and_leaves_the_text_alone(prompt, languages, expected):
    content = prompt.content(TEXT, *languages)
    assert content.startswith(expected) and content.endswith(f"\n\n{TEXT}")


def test_a_language_is_the_templates_nearest_or_what_it_has_is_said():
    _, languages = translation_of("gemma3_text", GEMMA)
    for name, code in {
        "zh-CN": "zh-Hans",
        "chinois": "zh",
        "Brazilian Portuguese": "pt-BR",
    }.items():
        assert languages.find("target_lang", name) == code
    with pytest.raises(InputError, match=r"no language 'Swahili'; there are .* and 17 more"):
        languages.find("source_lang", "Swahili")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "template"), [("gemma3_text", GEMMA), ("hunyuan_v1_dense", THINKS)]
)
def test_tokens_are_those_of_transformers_template_and_documents_pass(tmp_path, kind, template):
    causal_folders.write(tmp_path, kind, max_position_embeddings=512)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    model, tokenizer = load(tmp_path)
    for code in CODES:
        content = HY_MT.content(TEXT, "en", code)
        if template == GEMMA:
            codes = {"source_lang_code": "en", "target_lang_code": code}
            content = [{"type": "text", **codes, "text": TEXT}]
        message = {"role": "user", "content": content}
        own = model.text.chat.apply.__self__._tokenizer  # transformers'
        expected = own.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
        for given in (TEXT, [{"role": "user", "content": TEXT}]):
            encoded = model.text.encode(Prompt(given), "English", code)
            assert encoded.tokens == expected and encoded.text == TEXT
    texts = []
    for drafts, sampled in (
        (0, {}),
        (3, {}),
        (0, dict(temp=1.0, seed=4)),
        (3, dict(temp=1.0, seed=4)),
    ):
        decoder = SpeculativeDecoder(model, tokenizer, model if drafts else None)
        options = Options(
            num_draft=drafts, max_tokens=9, source_lang="en", target_lang="de", seed=4
        )
        cached = []
        translator = Translator(
            decoder,
            replace(options, **sampled),
            batch_size=1,
            on_response=lambda response, to=cached: to.append(response.stats.cached_tokens),
        )
        texts.append(translator.translate(FORMATS[".txt"](b"The cat sat.\n\nA dog ran.\n")).data)
        assert translator.whole and cached[0] == 0 < cached[1]  # the instruction is read once
    assert texts[0] == texts[1] and texts[2] == texts[3]
    with pytest.raises(InputError, match="into which language"):
        Translator(decoder, Options(source_lang="en"))
    if template == GEMMA:
        for language, missing in ((None, "target_lang: the chat"), ("de", "source_lang: the pr")):
            with pytest.raises(InputError, match=missing):
                decoder.maker.check(
                    [{"role": "user", "content": "a"}], Options(target_lang=language)
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("„Ja.“", "in quotes"),
        ("<think>Hm", "not translated: check <think>"),
        ("a" + " a" * 98, "much longer"),
    ],
)
def test_the_demos_decoder_only_pair_translates_by_the_users_prompt(text, problem):
    document = FORMATS[".md"](b"# The old king sees two red doors.\n\nYes.\n")
    options = Options(target_lang="de", prompt_template="translate English to {target}: {text}")
    target, draft = (load(DEMO / f"causal-{role}") for role in ("target", "draft"))
    for model in (None, draft[0]):
        memories = Memories(texts={"Yes.": text})
        translator = Translator(SpeculativeDecoder(*target, model), options, memories=memories)
        new = translator.translate(document)
        written = "Yes." if "not translated" in problem else text
        assert new.data.decode() == f"# Der alte König sieht zwei rote Türen.\n\n{written}\n"
        assert new.problems[0].startswith(f"line 3: {problem}")
