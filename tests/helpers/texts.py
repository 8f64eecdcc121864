"""Texts to tokenize, real ones where they are at hand, and a comparison of tokenizers."""

import json

import pytest
from tokenizers import Tokenizer

from helpers.programs import ROOT
from speculative.text.rows import TextStream
from speculative.text.text_side import Prompt

SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "t5_tokenizer").exists(), reason="the real T5 tokenizer is not at hand"
)
AWKWARD = [
    " two  spaces \n a line\tand a tab ",
    "ünïcödé — “quotes” … ½ ﬁ Å",
    "日本語 العربية 🙂🙃 👩‍👩‍👧",
    "<extra_id_0> sentinels <extra_id_99> and </s> an end",
    "a" * 300,
    "x",
    "translate English to German: That is good.",
]


def encoded(model, text: str, *languages, **named) -> tuple[list[int], list[int]]:
    """The tokens that a model reads for a text, and those that the row begins with."""
    prompt = model.text.encode(Prompt(text), *languages, **named)
    return prompt.tokens, prompt.prefix or model.prefix(prompt.tokens)


def chat_tokens(model, text: str) -> list[int]:
    """The tokens of a chat that begins with this text."""
    return model.text.encode(Prompt([{"role": "user", "content": text}])).tokens


def prompts() -> list[str]:
    """Real ones, of all lengths."""
    lines = (SHARED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = TextStream(tokenizer, {0, 1})
    text = "".join(stream.push([i]) for i in ids) + stream.finish()
    assert stream.text == text
    return text


def assert_same_tokenizer(ours: Tokenizer, reference, texts: list[str]) -> None:
    for text in texts:
        ids = reference(text).input_ids
        assert ours.encode(text).ids == ids
        shown = [i for i in ids if i not in (0, 1)]
        assert streamed(ours, ids) == reference.decode(shown, clean_up_tokenization_spaces=False)
