"""What a model thinks is told from its answer, wherever the text is cut, and a template's own thinking is
transformers' own."""

import json
import random
from dataclasses import replace

import pytest
from helpers import causal_folders

from decoder import load
from speculative.common.errors import InputError
from speculative.text.text_side import ChatTemplate, Prompt
from speculative.text.thinking import Thinking

MARKS = ("<think>", "</think>")
# As Qwen3's ends; a template such as DeepSeek-R1's begins to think itself.
QWEN3 = causal_folders.TEMPLATE.replace(
    "<assistant>",
    "<assistant>{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}",
)
R1 = causal_folders.TEMPLATE.replace("<assistant>", "<assistant><think>\n")


def split(pieces: list[str], begun: bool = False) -> tuple[str, str]:
    thinking = Thinking(MARKS, begun)
    parts = [thinking.push(text, i + 1 == len(pieces)) for i, text in enumerate(pieces)]
    thoughts, answers = zip(*parts, strict=True)
    return "".join(thoughts), "".join(answers)


@pytest.mark.parametrize(
    "text, thought, answer",
    [
        ("<think>\nOkay, </thi no\n </think>\n\nYes. ", "Okay, </thi no", "Yes. "),
        ("\n<think>a</think> b </think> c", "a", "b </think> c"),
        ("<think>it ends in here </thi", "it ends in here </thi", ""),
        ("<think> \n", "", ""),
        ("<think></think>", "", ""),
        ("<thin", "", "<thin"),
        (" so <think>a</think>", "", " so <think>a</think>"),
    ],
)
def test_thoughts_are_split_off_wherever_the_text_is_cut(text, thought, answer):
    rng = random.Random(0)
    rest = text.lstrip().removeprefix("<think>")
    begins = rest != text.lstrip()
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(5)))
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert split(pieces) == (thought, answer)
        if begins:
            assert split(["", *rest], begun=True) == (thought, answer)


MISTRAL = "{% if tools %}[TOOLS]{% endif %}" + causal_folders.TEMPLATE.replace(
    "{{ m.content }}",
    """{{ m.content }}{% for c in m.tool_calls or [] %}{{ '[CALLS] [' if loop.first else ', ' }}
    {{- c.function|tojson }}{{ ']' if loop.last }}{% endfor %}""",
)
OWN = causal_folders.TOOL_TEMPLATE.replace("|tojson", "|items")  # a call in a syntax of its own
UNMARKED = causal_folders.TOOL_TEMPLATE.replace("<call>\\n", "")
UNTOLD = causal_folders.TOOL_TEMPLATE.replace("{% if tools %}", "{% if false %}")


@pytest.mark.parametrize(
    "template, marks",
    [
        (causal_folders.TOOL_TEMPLATE, ("<call>\n", "\n</call>\n<call>\n", "\n</call>")),
        (MISTRAL, ("[CALLS] [", ", ", "]")),
        (OWN, ("<own>", "", "</own>")),
        (UNMARKED, None),
        (UNTOLD, None),
        (causal_folders.TEMPLATE, None),
    ],
)
def test_the_marks_of_calls_are_the_templates_or_mlx_lms(template, marks):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=causal_folders.tokenizer(), chat_template=template
    )
    own = ("<own>", "</own>")
    assert ChatTemplate(tokenizer.apply_chat_template, calling=own).call_marks == marks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("mlx_lm")
    folder = tmp_path_factory.mktemp("thinks")
    causal_folders.write(folder, vocab_size=330)
    tokenizer = causal_folders.tokenizer()
    tokenizer.add_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("template", [QWEN3, R1])
def test_prompts_are_transformers_own(folder, template):
    from transformers import AutoTokenizer

    names = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(names | {"chat_template": template}))
    model, tokenizer = load(folder)
    own = AutoTokenizer.from_pretrained(folder)
    user = {"role": "user", "content": "is <think> it"}
    begun = {"role": "assistant", "content": "so the cat"}
    for messages in ([user], [user, begun]):
        goes_on = messages[-1] is begun
        framing = dict(add_generation_prompt=not goes_on, continue_final_message=goes_on)
        for settings in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            prompt = model.text.encode(Prompt(messages, template_kwargs=settings))
            rendered = own.apply_chat_template(messages, tokenize=False, **framing, **settings)
            assert prompt.tokens == own.encode(rendered, add_special_tokens=False)
            last = begun["content"] if goes_on else ""
            assert prompt.begun == last
            assert model.text.chat.thinks(rendered, last) == (template == R1 and not goes_on)
    anew = Prompt([user, begun], template_kwargs={"add_generation_prompt": True})
    text = tokenizer.decode(model.text.encode(anew).tokens, skip_special_tokens=False)
    assert "so the cat<end><assistant>" in text
    base = replace(model.text, chat=None)
    with pytest.raises(InputError, match="no chat template"):
        base.encode(Prompt([user]))
