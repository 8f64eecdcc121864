"""Models that are asked for translations by a prompt: TranslateGemma's kind of chat template, Hy-MT, any instruct model,
and the user's own."""

import json

import pytest
from helpers import causal_folders
from helpers.programs import DEMO

from decoder import SpeculativeDecoder, load
from documents import FORMATS
from documents.translator import Translator
from errors import InputError
from families.translation_prompts import translation_of
from speculative.options import Options
from text.text_side import Prompt
from text.translation_prompt import TranslationPrompt

CODES = "de fr es it pt pt-BR nl pl cs ru uk tr ar he hi ja ko zh-Hans zh-Hant el".split()
GEMMA = (
    "{%- set known = " + json.dumps({code: code.upper() for code in ["en", "zh", *CODES]}) + " -%}"
    "{%- for m in messages -%}{%- if m.role != 'user' or m.content is string -%}{{ raise_exception('no') }}"
    "{%- endif -%}{%- set c = m.content[0] -%}<user>{{ known[c.source_lang_code] + ' to ' }}"
    "{{ known[c.target_lang_code] + ': ' + c.text | trim }}<end>{%- endfor -%}<assistant>"
)
THINKS = causal_folders.TEMPLATE + "{% if enable_thinking %}<think>{% endif %}"
TEXT = " A {text}, {target}\n"


@pytest.mark.parametrize(
    ("prompt", "languages", "expected"),
    [
        (translation_of("x", "")[0], (None, "de"), "into German. Write only the translation.\n\n"),
        (translation_of("x", "")[0], ("en", "Elvish"), "from English into Elvish. Write only"),
        (translation_of("hunyuan_v1_dense", "")[0], ("fr", "pt-BR"), "into Portuguese (Brazil). Note"),
        (translation_of("hunyuan_v1_dense", "")[0], (None, "zh-TW"), "将以下文本翻译为繁体中文"),
        (translation_of("hunyuan_v1_dense", "")[0], ("zh", "de"), "将以下文本翻译为德语"),
        (TranslationPrompt(("{target}: {text}",)), (None, "zh-Hant"), "Traditional Chinese: "),
    ],
)  # fmt: skip
def test_a_prompt_names_the_languages_and_leaves_the_text_alone(prompt, languages, expected):
    content = prompt.content(TEXT, *languages)
    assert expected in content and content.endswith(TEXT) and content.count("{target}") == 1


def test_a_language_is_the_templates_nearest_or_what_it_lacks_is_said():
    _, languages = translation_of("gemma3_text", GEMMA)
    for name, code in {"zh-CN": "zh-Hans", "chinois": "zh-Hans", "zh-HK": "zh-Hant"}.items():
        assert languages.find("target_lang", name) == code
    with pytest.raises(InputError, match="source_lang: no language 'Swahili'; there are"):
        languages.find("source_lang", "Swahili")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "template"), [("gemma3_text", GEMMA), ("hunyuan_v1_dense", THINKS)])  # fmt: skip
def test_tokens_are_those_of_transformers_template_and_documents_pass(tmp_path, kind, template):
    causal_folders.write(tmp_path, kind, max_position_embeddings=512)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    model, tokenizer = load(tmp_path)
    own = model.text.chat.apply.__self__
    for code in CODES:
        content = model.text.translation.content(TEXT, "en", code)
        listed = {"type": "text", "source_lang_code": "en", "target_lang_code": code, "text": TEXT}
        assert template != GEMMA or content == [listed]
        messages = [{"role": "user", "content": content}]
        expected = own.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False
        )
        for given in (TEXT, [{"role": "user", "content": TEXT}]):
            encoded = model.text.encode(Prompt(given), "English", code)
            assert encoded.tokens == expected and encoded.text == TEXT
    texts = []
    for options in (dict(num_draft=0), dict(num_draft=3), dict(num_draft=3, temp=1.0, seed=4)):
        decoder = SpeculativeDecoder(model, tokenizer, model if options["num_draft"] else None)
        cached = []
        translator = Translator(
            decoder, Options(source_lang="en", target_lang="German", max_tokens=16, **options), 1
        )
        translator.on_response = lambda response, to=cached: to.append(response.stats.cached_tokens)
        texts.append(translator.translate(FORMATS[".txt"](b"The cat sat.\n\nA dog ran.\n")).data)
        assert translator.whole and cached[0] == 0 < cached[1]  # the instruction is read once
    assert texts[0] == texts[1] != texts[2]
    if template == GEMMA:
        with pytest.raises(InputError, match="source_lang: the prompt for translating needs this"):
            Translator(decoder, Options(target_lang="de"))
        with pytest.raises(InputError, match="target_lang: the chat template needs a language"):
            decoder.generate(Prompt([{"role": "user", "content": "a"}]))
    with pytest.raises(InputError, match="into which language"):
        Translator(decoder, Options(source_lang="en"))


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".txt", ".srt", ".md", ".html", ".po"])
def test_the_demos_decoder_only_pair_translates_documents_with_the_users_prompt(ending, demo_pair):
    source = (
        {
            ".srt": "1\n00:00:01,000 --> 00:00:02,000\n{}\n",
            ".html": "<p>{}</p>",
            ".po": 'msgid "{}"\nmsgstr ""\n',
        }.get(ending, "{}\n")
        .format("The old king sees two red doors.")
        .encode()
    )
    document = FORMATS[ending]
    options = Options(target_lang="de", prompt_template="translate English to {target}: {text}")
    expected = Translator(SpeculativeDecoder(*demo_pair[:2]), Options(target_lang="de"))
    target, draft = (load(DEMO / f"causal-{role}") for role in ("target", "draft"))
    for pair in ((*target, None), (*target, draft[0])):
        translator = Translator(SpeculativeDecoder(*pair), options)
        assert translator.translate(document(source)) == expected.translate(document(source))
    data = expected.translate(document(source)).data.decode()
    assert "Der alte König sieht zwei rote Türen." in data


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("„Das Haus.“", "in quotes"),
        ("<think>Hm.</think> Das Haus.", "the model's thoughts"),
        ("Das Haus. " * 30, "much longer than its source"),
    ],
)
def test_more_than_a_translation_is_named(demo_pair, text, problem):
    translator = Translator(SpeculativeDecoder(*demo_pair[:2]), Options(target_lang="de"))
    translator.texts["The house."] = text
    (found,) = translator.translate(FORMATS[".txt"](b"The house.")).problems
    assert found.startswith(f"line 1: {problem}")
