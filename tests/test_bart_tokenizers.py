"""Tokenizers of BART's family against transformers and SentencePiece; languages; conversion as a whole."""

import json
import random
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from helpers import bart_checkpoints, checkpoints
from helpers import bart_tokenizers as folders
from helpers.bart_tokenizers import EDGES, ODD, SENTENCES
from helpers.oracle import flat_weights, greedy

import main
from checkpoints.quantization import Quantization
from checkpoints.tokenizer import TextStream, load_tokenizer, shared_vocabulary
from convert import convert
from decoder import batch_generate
from demo.tasks import training_example
from errors import InputError
from families.bart_tokenizers import write_tokenizer
from families.languages import Languages, frame
from families.loading import load

pytestmark = pytest.mark.slow

PROMPTS = Path(__file__).parents[2] / "shared" / "prompts.jsonl"
MULTILINGUAL = ["mbart", "mbart-50", "nllb", "m2m", "marian, codes"]
FAMILIES = ["bart", *MULTILINGUAL, "marian", "pegasus"]


@pytest.fixture(scope="session")
def models() -> dict[str, bytes]:
    """SentencePiece models: of English alone, of French and others, of all."""
    rng = random.Random(0)
    examples = [training_example(rng).prompt for _ in range(300)]  # texts that do not change
    licence = (Path(__file__).parents[1] / "LICENSE").read_text()
    english = [SENTENCES["en_XX"], licence, *examples]
    others = [*SENTENCES.values()] * 3
    train = folders.sentencepiece_model
    return {
        "unigram": train([*english, *others], "unigram"),
        "bpe": train([*english, *others], "bpe"),
        "pegasus": train([*english, *others], "unigram", **folders.PEGASUS_IDS),
        "english": train(english, "unigram", 500),
        "others": train(others, "unigram", 400),
    }


@pytest.fixture(scope="session")
def built(tmp_path_factory, models) -> dict[str, tuple[Path, Path]]:
    """By family: the hub's folder, and a folder with what is written for it."""
    root = tmp_path_factory.mktemp("tokenizers")
    two = models["english"], models["others"]
    made = {
        "bart": folders.bart(root / "bart", [*SENTENCES.values()] * 3),
        "mbart": folders.mbart(root / "mbart", models["unigram"]),
        "mbart-50": folders.mbart50(root / "mbart50", models["unigram"]),
        "nllb": folders.nllb(root / "nllb", models["bpe"]),
        "m2m": folders.m2m(root / "m2m", models["bpe"]),
        "marian": folders.marian(root / "marian", *two),
        "marian, codes": folders.marian(root / "codes", *two, (">>fra<<", ">>deu<<")),
        "pegasus": folders.pegasus(root / "pegasus", models["pegasus"]),
    }
    outputs = {}
    for name, folder in made.items():
        outputs[name] = folder, folder.with_name(f"{folder.name}-converted")
        outputs[name][1].mkdir()
        write_tokenizer(*outputs[name])
    return outputs


@pytest.fixture(params=FAMILIES)
def pair(request, built):
    """(name, transformers' tokenizer, ours)"""
    folder, output = built[request.param]
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    return request.param, reference, load_tokenizer(output)


def assert_same(reference, ours, texts) -> None:
    assert [ours.encode(text).ids for text in texts] == [reference(t).input_ids for t in texts]


def test_ids_are_those_of_transformers(pair):
    name, reference, ours = pair
    odd = ODD if name != "mbart" else ODD[3:]  # whose ligatures transformers does not know
    assert_same(reference, ours, [*SENTENCES.values(), *odd])
    assert ours.encode("hello").ids != ours.encode("good").ids


@pytest.mark.skipif(not PROMPTS.exists(), reason="no shared prompts here")
def test_prompts_ids_are_those_of_transformers(pair):
    name, reference, ours = pair
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    assert len(prompts) == 240
    if name == "mbart":  # two of them have an ellipsis, which it takes for unknown
        prompts = [prompt for prompt in prompts if "\u2026" not in prompt]
        assert len(prompts) >= 230
    assert_same(reference, ours, prompts)


# The SentencePiece model, and how many tokens are before and behind the text.
MODELS = {
    "mbart": ("unigram", 0, 2),
    "mbart-50": ("unigram", 1, 1),
    "nllb": ("bpe", 1, 1),
    "m2m": ("bpe", 1, 1),
    "marian": ("english", 0, 1),
    "marian, codes": ("english", 0, 1),
    "pegasus": ("pegasus", 0, 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_text_is_cut_as_sentencepiece_cuts_it(built, models, name):
    """Spaces at the end, ligatures and full width included."""
    kind, before, behind = MODELS[name]
    reference = sentencepiece.SentencePieceProcessor(model_proto=models[kind])
    ours = load_tokenizer(built[name][1])
    unknown = ours.token_to_id("<unk>")
    for text in [*EDGES, *ODD, *SENTENCES.values()]:
        found = ours.encode(text).ids
        expected = [ours.token_to_id(p) for p in reference.encode(text, out_type=str)]
        expected = [unknown if i is None else i for i in expected]
        assert found[before : len(found) - behind] == expected


def test_frames_are_golden(built, models):
    def ids(name):
        ours = load_tokenizer(built[name][1])
        return ours.encode("a").ids, ours.token_to_id

    framed, of = ids("bart")
    assert framed == [0, of("a"), 2]
    framed, of = ids("mbart")
    assert framed == [of("▁a"), 2, of("en_XX")] and of("en_XX") > 3
    framed, of = ids("mbart-50")
    assert framed == [of("fr_XX"), of("▁a"), 2]
    framed, of = ids("nllb")
    assert framed == [of("eng_Latn"), of("▁a"), 2]
    framed, of = ids("m2m")
    vocabulary = json.loads((built["m2m"][0] / "vocab.json").read_text())
    assert framed == [of("__de__"), vocabulary["▁a"], 2]
    behind = {code: of(f"__{code}__") - len(vocabulary) for code in ("af", "en", "fr")}
    assert behind == {"af": 0, "en": 128022 - 128004, "fr": 128028 - 128004}  # as published
    vocabulary = json.loads((built["marian"][0] / "vocab.json").read_text())
    assert ids("marian")[0] == [vocabulary["▁a"], 0]
    names = folders.pieces(models["pegasus"])
    assert ids("pegasus")[0] == [names.index("▁a") + 103, 1]


def test_marians_code_counts_at_the_start_only(built):
    folder, output = built["marian, codes"]
    reference, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(output)
    starts = [">>fra<< good day", ">>fra<<good", ">>deu<<", ">>deu<<\nline >>fra<<"]
    middles = ["good >>fra<< day", " >>fra<< day", ">> a", "\n>>fra<< x", ">>fra <"]
    assert_same(reference, ours, starts + middles)
    assert all(ours.encode(text).ids[0] in (2, 3) for text in starts)
    assert not any({2, 3} & set(ours.encode(text).ids) for text in middles)


def test_unknown_characters_are_marians(built):
    """One alone may be a piece of the target's; several together are one unknown piece."""
    folder, output = built["marian"]
    reference, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(output)
    texts = ["café", "naïveté ű", "мы и я", "a 你好 b", "ééé", "你 x"]
    assert_same(reference, ours, texts)
    unknown = ours.token_to_id("<unk>")
    assert unknown not in ours.encode(texts[0]).ids and unknown in ours.encode(texts[3]).ids


def test_the_targets_pieces_are_not_cut_out_of_a_source(built, tmp_path):
    """Not even where the source's model does not know a character of them."""
    folder, _ = built["marian"]
    ids = json.loads((folder / "vocab.json").read_text())
    assert "fé" not in ids and "é" in ids
    ids["fé"] = len(ids)
    files = {n: (folder / n).read_bytes() for n in ("source.spm", "target.spm")}
    changed = folders._folder(tmp_path / "changed", "marian", files | {"vocab.json": ids})
    (tmp_path / "out").mkdir()
    write_tokenizer(changed, tmp_path / "out")
    reference, ours = (
        transformers.AutoTokenizer.from_pretrained(changed),
        load_tokenizer(tmp_path / "out"),
    )
    assert_same(reference, ours, ["café", "fé"])
    assert ours.decode([ids["fé"]]) == "fé"


def test_a_piece_without_a_number_is_not_cut_out(built, tmp_path):
    """transformers would take it for unknown."""
    folder, _ = built["marian"]
    ids = json.loads((folder / "vocab.json").read_text())
    whole = load_tokenizer(built["marian"][1]).encode("the").tokens
    assert whole == ["▁the", "</s>"]
    ids["▁nothing like it"] = ids.pop("▁the")
    changed = tmp_path / "changed"
    files = {n: (folder / n).read_bytes() for n in ("source.spm", "target.spm")}
    folders._folder(changed, "marian", files | {"vocab.json": ids})
    (tmp_path / "out").mkdir()
    write_tokenizer(changed, tmp_path / "out")
    tokens = load_tokenizer(tmp_path / "out").encode("the").tokens
    assert "".join(tokens) == "▁the</s>" and len(tokens) > 2


def test_vocabularies_of_one_size_are_told_apart(built, models, tmp_path):
    """No two OPUS-MT models share one, and many are of the same size."""
    folder = folders.marian(tmp_path / "other", models["others"], models["english"])
    ids = json.loads((folder / "vocab.json").read_text())
    first, second = list(ids)[50:52]
    ids[first], ids[second] = ids[second], ids[first]
    (folder / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "out").mkdir()
    write_tokenizer(folder, tmp_path / "out")
    ours, other = load_tokenizer(built["marian"][1]), load_tokenizer(tmp_path / "out")
    assert ours.get_vocab_size() == other.get_vocab_size()
    with pytest.raises(InputError, match="another vocabulary than the model"):
        shared_vocabulary(ours, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_text_is_decoded_as_transformers_does(built, name):
    """Pieces of the target language as well, at once and in a stream."""
    folder, output = built[name]
    reference, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(output)
    for text in SENTENCES.values():
        ids = (
            reference(text_target=text).input_ids if "marian" in name else reference(text).input_ids
        )
        languages = Languages.load(output)
        special = {*reference.all_special_ids, *(languages.codes.values() if languages else ())}
        ids = [i for i in ids if i not in special]
        expected = reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert ours.decode(ids, skip_special_tokens=True) == expected
        stream = TextStream(ours, set())
        assert stream.push(ids) + stream.finish() == ours.decode(ids, skip_special_tokens=False)


# ---------------------------------------------------------------------------------------------
# Wrong files


def test_what_cannot_be_right_is_refused(built, tmp_path):
    def refused(folder: Path, message: str):
        (tmp_path / "out").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=message):
            write_tokenizer(folder, tmp_path / "out")

    model = (built["nllb"][0] / "sentencepiece.bpe.model").read_bytes()
    # Without tokenizer.json NLLB has no language codes, and transformers says nothing.
    alone = folders._folder(
        tmp_path / "nllb",
        "m2m_100",
        {"sentencepiece.bpe.model": model},
        tokenizer_class="NllbTokenizer",
    )
    refused(alone, "no token for the language eng_Latn: its tokenizer.json is needed")
    two = folders._folder(tmp_path / "two", "marian", {"target_vocab.json": {}})
    refused(two, "a vocabulary for each language")
    vocabulary = {"<unk>": 0, "</s>": 1, "<pad>": 2}
    broken = {"vocab.json": vocabulary, "source.spm": b"\xff\xff"}
    refused(folders._folder(tmp_path / "broken", "marian", broken), "not a model of SentencePiece")
    absent = folders._folder(tmp_path / "absent", "marian", {"vocab.json": vocabulary})
    refused(absent, "source.spm: no such file")
    for i, (ids, message) in enumerate(
        [({"a": "b"}, "not token ids"), ({"</s>": 0, "<pad>": 1}, "no <unk>")]
    ):
        refused(folders._folder(tmp_path / f"ids{i}", "marian", {"vocab.json": ids}), message)
    gaps = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 9}
    files = {"vocab.json": gaps, "sentencepiece.bpe.model": model}
    refused(folders._folder(tmp_path / "gaps", "m2m_100", files), "its ids leave gaps")


# ---------------------------------------------------------------------------------------------
# Conversion, from the hub's folder to text

RAW = {
    "bart": "bart",
    "mbart": "mbart",
    "mbart-50": "mbart-50",
    "nllb": "m2m",
    "m2m": "m2m",
    "marian": "marian",
    "marian, codes": "marian",
    "pegasus": "pegasus",
}
FORMS = [("new", "safetensors"), ("old", "legacy"), ("bare", "zip")]


def checkpoint(folder: Path, built: tuple, name: str, form="new", kind="safetensors", **changes):
    """A checkpoint with a tokenizer, in `folder`; its torch model and transformers' tokenizer."""
    tokens, converted = built
    reference = transformers.AutoTokenizer.from_pretrained(tokens)
    size = load_tokenizer(converted).get_vocab_size()
    raw = bart_checkpoints.VARIANTS[RAW[name]] | dict(vocab_size=size + 3)
    raw |= dict(max_position_embeddings=200) | changes
    if "marian" in name:
        pad = reference.pad_token_id
        raw |= dict(pad_token_id=pad, decoder_start_token_id=pad, bad_words_ids=[[pad]])
    model = bart_checkpoints.torch_model(raw)
    state = bart_checkpoints.state_dict(model, form)
    checkpoints.save(folder, raw, state, shards=1 + (form == "old"), kind=kind)
    for file in tokens.iterdir():
        if file.name != "config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    return model, reference


@pytest.mark.parametrize("name", FAMILIES)
def test_converted_checkpoints_write_transformers_texts(built, tmp_path, name):
    form, kind = FORMS[FAMILIES.index(name) % 3]
    reference, tokens = checkpoint(tmp_path / "hub", built[name], name, form, kind)
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    model.languages = Languages.load(tmp_path / "out")
    bans = reference.config.pad_token_id
    for text in list(SENTENCES.values())[:3]:
        source, prefix = frame(model, tokenizer, text)
        assert source == tokens(text).input_ids
        output = reference.generate(
            torch.tensor([source]),
            max_new_tokens=8,
            num_beams=1,
            forced_eos_token_id=None,
            bad_words_ids=[[bans]] if "marian" in name else None,
        )[0].tolist()
        assert output[:1] == prefix
        assert greedy(model, source, 8) == output[1:]


@pytest.mark.parametrize("name", ["bart", "nllb"])
def test_quantized_models_keep_their_positions(built, tmp_path, name):
    sizes = dict(d_model=64, encoder_ffn_dim=64, decoder_ffn_dim=128)
    reference, _ = checkpoint(tmp_path / "hub", built[name], name, **sizes)
    quantization = Quantization(bits=8, group_size=64)
    out = convert(str(tmp_path / "hub"), tmp_path / "out", "float32", quantization=quantization)
    model, tokenizer = load(out)
    weights = dict(flat_weights(model))
    assert weights["encoder.layers.0.attention.query.weight"].dtype == mx.uint32
    state = reference.state_dict()
    if name == "bart":
        table = state["model.encoder.embed_positions.weight"].numpy()
        assert np.array_equal(weights["encoder.positions.weight"], table)
        assert np.array_equal(weights["logits_bias"], state["final_logits_bias"].numpy()[0])
    source = tokenizer.encode("good day").ids
    with torch.no_grad():
        start = torch.tensor([[2]])
        expected = reference(torch.tensor([source]), decoder_input_ids=start).logits.numpy()
    positions = np.zeros((1, 1), np.int32)
    logits = np.array(model.decode(mx.array([[2]]), positions, model.start(mx.array([source]))))
    assert np.abs(logits - expected).mean() < 0.1 * np.abs(expected).mean()


def test_a_mask_without_a_row_is_left_out(built, tmp_path):
    """bart-large-cnn's embedding ends before it; transformers would index beyond."""
    size = load_tokenizer(built["bart"][1]).get_vocab_size()
    checkpoint(tmp_path / "hub", built["bart"], "bart", vocab_size=size - 1)
    _, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    reference = transformers.AutoTokenizer.from_pretrained(built["bart"][0])
    assert reference.mask_token_id == size - 1
    assert_same(reference, tokenizer, SENTENCES.values())
    assert max(tokenizer.encode("a <mask> b").ids) < size - 1


def test_the_forced_first_token_is_generation_configs(built, tmp_path):
    checkpoint(tmp_path / "hub", built["bart"], "bart", forced_bos_token_id=5)
    (tmp_path / "hub" / "generation_config.json").write_text(json.dumps({"forced_bos_token_id": 0}))
    model, _ = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    assert model.prefix([]) == [2, 0]


# ---------------------------------------------------------------------------------------------
# Languages


@pytest.fixture
def multilingual(request, built, tmp_path):
    name = request.param
    checkpoint(tmp_path / "hub", built[name], name)
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    model.languages = Languages.load(tmp_path / "out")
    return name, transformers.AutoTokenizer.from_pretrained(built[name][0]), model, tokenizer


CODES = {
    "mbart": ("de_DE", "ro_RO"),
    "mbart-50": ("de_DE", "ro_RO"),
    "nllb": ("deu_Latn", "fra_Latn"),
    "m2m": ("fr", "zh"),
    "marian, codes": (None, "deu"),
}


@pytest.mark.parametrize("multilingual", MULTILINGUAL, indirect=True)
def test_languages_are_framed_as_in_transformers(multilingual):
    name, reference, model, tokenizer = multilingual
    own = tokenizer.encode("good day").ids
    assert frame(model, tokenizer, "good day") == (own, model.prefix(own))
    source_lang, target_lang = CODES[name]
    source, prefix = frame(model, tokenizer, "good day", source_lang, target_lang)
    if name == "marian, codes":
        assert source == reference(f">>{target_lang}<< good day").input_ids
        assert prefix == model.prefix(own) == [reference.pad_token_id]
        return
    inputs = reference._build_translation_inputs(
        "good day", return_tensors=None, src_lang=source_lang, tgt_lang=target_lang
    )
    forced = inputs["forced_bos_token_id"]
    assert source == inputs["input_ids"] and source != own
    assert forced > 3
    assert prefix == ([forced] if name == "mbart" else [2, forced])
    # One of the two alone: the other is the tokenizer's or the model's own.
    assert frame(model, tokenizer, "good day", target_lang=target_lang) == (own, prefix)
    assert frame(model, tokenizer, "good day", source_lang) == (source, model.prefix(own))


@pytest.mark.parametrize("multilingual", MULTILINGUAL, indirect=True)
def test_a_wrong_language_lists_what_there_is(multilingual):
    name, _, model, tokenizer = multilingual
    with pytest.raises(InputError, match=r"target_lang: no language 'fro'; there are ") as error:
        frame(model, tokenizer, "good day", target_lang="fro")
    assert str(error.value).count(",") < 10
    alike = {"nllb": "fra_Latn, ace_Arab", "m2m": "fr, af", "marian, codes": "fra, deu"}
    assert f"there are {alike.get(name, 'fr_XX, ')}" in str(error.value)
    if "marian" in name:
        with pytest.raises(InputError, match="source_lang: this model is not told its source"):
            frame(model, tokenizer, "good day", source_lang="eng")


def test_models_of_one_language_refuse_codes(built, tmp_path):
    checkpoint(tmp_path / "hub", built["marian"], "marian")
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    model.languages = Languages.load(tmp_path / "out")
    assert model.languages is None
    with pytest.raises(InputError, match="are for models of several languages"):
        frame(model, tokenizer, "good day", target_lang="fr")


def test_a_foreign_languages_file_is_refused(tmp_path):
    (tmp_path / "languages.json").write_text('{"codes": {}}')
    with pytest.raises(InputError, match="not a table of languages: convert the model again"):
        Languages.load(tmp_path)


@pytest.mark.parametrize("name", ["nllb", "mbart-50", "m2m", "marian, codes"])
def test_languages_are_options_of_decoding(built, tmp_path, monkeypatch, capsys, name):
    """As transformers' generate with the same languages, drafted or not, from Python and the command."""
    reference, _ = checkpoint(tmp_path / "hub", built[name], name)
    monkeypatch.chdir(tmp_path)
    model, tokenizer = load(convert("hub", dtype="float32"))
    source_lang, target_lang = CODES[name]
    options = dict(source_lang=source_lang, target_lang=target_lang, max_tokens=8)
    source, prefix = frame(model, tokenizer, "good day", source_lang, target_lang)
    forced = prefix[1] if len(prefix) > 1 else None
    expected = reference.generate(
        torch.tensor([source]),
        max_new_tokens=8 + len(prefix) - 1,
        num_beams=1,
        forced_bos_token_id=forced,
        forced_eos_token_id=None,
        bad_words_ids=[[reference.config.pad_token_id]] if "marian" in name else None,
    )[0].tolist()
    for draft, num_draft in ((None, 0), (model, 3)):
        (response,) = batch_generate(
            model, tokenizer, ["good day"], draft, num_draft=num_draft, **options
        )
        assert prefix + response.tokens == expected
    flags = [] if source_lang is None else ["--source-lang", source_lang]
    command = ["main.py", "--model", "hub", "-m", "8", "-p", "good day", *flags]
    monkeypatch.setattr(sys, "argv", [*command, "--target-lang", target_lang])
    main.main()
    assert capsys.readouterr().out == f"{response.text}\n"
    monkeypatch.setattr(sys, "argv", [*command, "--target-lang", "tlh"])
    with pytest.raises(InputError, match="target_lang: no language 'tlh'; there are "):
        main.main()
