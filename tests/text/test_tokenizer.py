"""Tokenizers: tokenizer.json against transformers, vocabularies compared, text as it streams."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
from helpers.programs import DEMO, ROOT
from helpers.texts import AWKWARD, SHARED, assert_same_tokenizer, needs_shared, prompts, streamed
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, ByT5Tokenizer, T5Tokenizer

from demo.training.tasks import held_out_example
from speculative.common.errors import InputError
from speculative.models.encoder_decoder import EncoderDecoder
from speculative.models.loading import _text_side
from speculative.models.t5 import FAMILY, write_tokenizer
from speculative.text.rows import TextStream
from speculative.text.tokenizer import (
    byte_tokenizer,
    load_tokenizer,
    shared_vocabulary,
    token_names,
)
from speculative.text.tokenizer_files import save

EMBEDDED = DEMO / "draft"


def converted(folder: Path, tmp_path: Path) -> Tokenizer:
    source = shutil.copytree(folder, tmp_path / "source")
    (source / "config.json").write_text("{}")
    write_tokenizer(source, tmp_path)
    return load_tokenizer(tmp_path)


@pytest.mark.slow
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


T5_IDS = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
TAGS = ["<2de>", "<2fr>", "<2zh_Latn>"]
MADLAD_IDS = dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1, user_defined_symbols=TAGS)
# How the family's vocabularies were trained, and what their tokenizer_config.json says.
TRAINED = {
    "t5": (T5_IDS, {}),
    "mt5": (T5_IDS | dict(byte_fallback=True), {"extra_ids": 0}),
    "umt5": (T5_IDS | dict(byte_fallback=True), {"extra_ids": 0}),
    "madlad": (MADLAD_IDS | dict(byte_fallback=True), {"extra_ids": 0, "pad_token": "<s>"}),
    "madlad without bytes": (MADLAD_IDS, {"extra_ids": 0, "pad_token": "<s>"}),
    "madlad, bpe": (
        MADLAD_IDS | dict(byte_fallback=True, model_type="bpe"),
        {"extra_ids": 0, "pad_token": "<s>"},
    ),
}
TRANSLATE = [f"{tag}{space}two words" for tag in TAGS for space in ("", " ", "  ")]
PLAIN = ["two words", "a number: 12", "to  German\n and \tmore", "x", ""]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders with a spiece.model and configs, one for every way of training."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = folder / "corpus.txt"
    rng = random.Random(0)
    examples = [held_out_example(rng) for _ in range(500)]
    corpus.write_text("\n".join(e.prompt + "\n" + e.answer for e in examples))
    for name, (options, config) in TRAINED.items():
        (folder / name).mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(folder / name / "spiece"),
            vocab_size=500,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=3,
            **options,
        )
        kind = "umt5" if name == "umt5" else "mt5" if name == "mt5" else "t5"
        (folder / name / "config.json").write_text(json.dumps({"model_type": kind}))
        if config:
            config = {"tokenizer_class": "T5Tokenizer"} | config
            (folder / name / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("files", ["spiece.model", "tokenizer.json", "both"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_family_is_tokenized_as_by_sentencepiece(trained, tmp_path, name, files):
    if name.endswith("bpe") and files == "tokenizer.json":
        pytest.skip("transformers makes a Unigram tokenizer of it")
    source = trained / name
    reference = sentencepiece.SentencePieceProcessor(model_file=str(source / "spiece.model"))
    transformers_own = T5Tokenizer.from_pretrained(source)
    if files != "spiece.model":
        saved = tmp_path / "saved"
        transformers_own.save_pretrained(saved)
        shutil.copyfile(source / "config.json", saved / "config.json")
        if files == "both":
            shutil.copyfile(source / "spiece.model", saved / "spiece.model")
        source = saved
    (tmp_path / "out").mkdir()
    ours = converted(source, tmp_path / "out")
    eos = reference.eos_id()
    tags = TRANSLATE if "madlad" in name else []
    for text in [*PLAIN, *tags, "ü", "two 🙂🙃 words 日本語"]:
        ids = ours.encode(text).ids
        assert ids == [*reference.encode(text), eos], text
        if reference.unk_id() not in ids:
            stream = TextStream(ours, {eos})
            assert "".join(map(stream.push, ([i] for i in ids))) + stream.finish() == (
                reference.decode(ids[:-1])
            )
    for text in [] if name.endswith("bpe") else PLAIN:
        assert ours.encode(text).ids == transformers_own(text).input_ids
    for tag in tags and TAGS:
        assert reference.piece_to_id(tag) in ours.encode(f"{tag} two words").ids
    extra = 0 if TRAINED[name][1] else 100
    assert ours.get_vocab_size() == reference.get_piece_size() + extra


@pytest.mark.parametrize("kind, folder", [(T5Tokenizer, DEMO / "target"), (ByT5Tokenizer, None)])
def test_tokens_that_a_fine_tuner_added_cut_the_text(tmp_path, kind, folder):
    """Those that the vocabulary has as pieces, too."""
    reference = kind.from_pretrained(folder) if folder else kind()
    reference.add_tokens(["7", "-", ".", AddedToken("er", lstrip=True), AddedToken("<x>")])
    reference.save_pretrained(tmp_path / "tuned")
    ours = converted(tmp_path / "tuned", tmp_path)
    for text in ("translate number to German: 1784", "a - b.<x>c 17 7 long er", ""):
        assert ours.encode(text).ids == reference(text).input_ids


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
    assert stream.finish() == ""


def test_bytes_that_are_no_utf_8_are_left_out_as_in_byt5():
    ours, reference = byte_tokenizer(), ByT5Tokenizer()
    rng = np.random.default_rng(0)
    likely = [*"aé€🙂\ufffd".encode(), *b"\xc0\xe0\xed\xf0\xf4\xff\x80\x9f"]
    for _ in range(500):
        tokens = [int(byte) + 3 for byte in rng.choice(likely, rng.integers(1, 12))]
        expected = reference.decode(tokens)
        assert ours.decode(tokens) == streamed(ours, tokens) == expected


def test_bytes_that_make_no_character_do_not_end_the_stream():
    """With them a line's end before them is no longer one to `tokenizers`, whose own stream gives up."""
    pieces = ["<unk>", "▁p", "q", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokens = [pieces.index(p) for p in ("▁p", "<0x0A>", "<0xF0>", "<0xF1>", "q", "▁p", "<0x0A>")]
    stream = TextStream(tokenizer, set())
    assert [stream.push([t]) for t in tokens] == ["p", "\n", "", "", "\ufffd\ufffdq", " p", "\n"]
    assert stream.finish() == ""
    named = [token_names(tokenizer, {0})(token, i == 0) for i, token in enumerate((*tokens, 0))]
    assert [own for _, own in named] == [b"p", b"\n", b"\xf0", b"\xf1", b"q", b" p", b"\n", b""]
    assert [name for name, _ in named[2:]] == ["\\xf0", "\\xf1", "q", " p", "\n", "<unk>"]
    assert token_names(byte_tokenizer(), {0, 1})(259, True) == ("<extra_id_0>", b"<extra_id_0>")


def test_sentinels_are_text_and_other_special_tokens_are_not(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<sep>"])
    tokenizer.add_tokens(["<own>"])
    save(tokenizer, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    model = EncoderDecoder()
    model.config = SimpleNamespace(vocab_size=386, decoder_start_token_id=0)
    text = _text_side(tmp_path, FAMILY, model)
    stream = TextStream(text.tokenizer, {0, 1, *text.hidden})
    assert stream.push([0, 259, 100, 384, 385, 2, 1]) == "<extra_id_0>a<own>"


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
    with pytest.raises(InputError, match=r"tokenizer\.json is missing: convert the model again"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", b"{"), ("tokenizer.json", b"{}"), ("spiece.model", b"<html>")],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, capfd, name, content):
    folder, output = tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(EMBEDDED, folder)
    output.mkdir()
    if name == "tokenizer.json":
        (folder / "spiece.model").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        write_tokenizer(folder, output)
    assert str(folder) in str(caught.value) and name in str(caught.value)
    assert "tiktoken" not in str(caught.value) and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
