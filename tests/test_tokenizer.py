"""Tokenizers: tokenizer.json against transformers, vocabularies compared, text as it streams."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, ByT5Tokenizer, T5Tokenizer

from checkpoint import InputError
from convert import write_tokenizer
from demo.tasks import held_out_example
from tokenizer import TextStream, byte_tokenizer, load_tokenizer, shared_vocabulary

ROOT = Path(__file__).parent.parent
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


def prompts() -> list[str]:
    lines = (SHARED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def converted(folder: Path, tmp_path: Path) -> Tokenizer:
    write_tokenizer(folder, tmp_path)
    return load_tokenizer(tmp_path)


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


@needs_shared
def test_real_t5_tokenizer_from_tokenizer_json(tmp_path):
    folder = SHARED / "t5_tokenizer"
    ours, reference = converted(folder, tmp_path), AutoTokenizer.from_pretrained(folder)
    assert_same_tokenizer(ours, reference, AWKWARD + prompts())
    ids = [13959, 1566, 12, 2968, 10, 37, 629, 19, 1627, 5, 1]
    assert ours.encode("translate English to German: The house is wonderful.").ids == ids


@needs_shared
def test_real_t5_tokenizer_from_spiece_model(tmp_path):
    folder = SHARED / "t5_tokenizer" / "spm"
    ours, reference = converted(folder, tmp_path), T5Tokenizer.from_pretrained(folder)
    assert_same_tokenizer(ours, reference, AWKWARD + prompts()[:60])


def test_demo_tokenizer(tmp_path):
    folder = ROOT / "demo" / "target"
    rng = random.Random(0)
    examples = [held_out_example(rng) for _ in range(200)]
    texts = [e.prompt for e in examples] + [e.answer for e in examples]
    ours = converted(folder, tmp_path)
    assert_same_tokenizer(ours, AutoTokenizer.from_pretrained(folder), texts + AWKWARD)
    for text in texts:  # nothing in the tasks is lost on the way
        assert streamed(ours, ours.encode(text).ids) == text


def test_byte_tokenizer_is_byt5s():
    ours, reference = byte_tokenizer(), ByT5Tokenizer()
    assert ours.get_vocab_size() == len(reference) == 384
    for text in AWKWARD:
        assert ours.encode(text).ids == reference(text).input_ids
    for text in (t for t in AWKWARD if "</s>" not in t):
        assert streamed(ours, ours.encode(text).ids) == text


def test_characters_wait_for_their_last_byte():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, {0, 1})
    pieces = [stream.push([byte + 3]) for byte in "aé🙂".encode()]
    assert pieces == ["a", "", "é", "", "", "", "🙂"]
    assert stream.push([0xF0 + 3]) == ""
    assert stream.finish() == "\ufffd"


def test_sentinels_are_text_and_padding_is_not():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, {0, 1})
    assert stream.push([0, 259, 100, 1]) == "<extra_id_0>a"


def word_tokenizer(*pieces: str) -> Tokenizer:
    return Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, pieces[0]))


def test_vocabularies_are_compared_piece_by_piece():
    target = word_tokenizer("<pad>", "</s>", "a", "b")
    assert shared_vocabulary(target, word_tokenizer("<pad>", "</s>", "a", "b")) == 4
    assert shared_vocabulary(target, word_tokenizer("<pad>", "</s>", "a")) == 3
    assert shared_vocabulary(target, word_tokenizer("<pad>", "</s>", "a", "b", "c")) == 4
    with pytest.raises(InputError, match="token 2 is 'b', not 'a'"):
        shared_vocabulary(target, word_tokenizer("<pad>", "</s>", "b", "a"))


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer\.json: convert the model again"):
        load_tokenizer(tmp_path)
