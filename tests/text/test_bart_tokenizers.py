"""Tokenizers of BART's family against transformers and SentencePiece."""

import json
import shutil

import pytest
import sentencepiece
import transformers
from helpers import bart_tokenizers as folders
from helpers.bart_tokenizers import EDGES, FAMILIES, ODD, SENTENCES, assert_same, reader

from speculative.common.errors import InputError
from speculative.models.bart_tokenizer import write_tokenizer
from speculative.text.languages import Languages
from speculative.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(params=FAMILIES)
def pair(request, bart_folders):
    """(name, transformers' tokenizer, ours)"""
    folder, output = bart_folders[request.param]
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    return request.param, reference, reader(output)


def test_ids_are_those_of_transformers(pair):
    name, reference, ours = pair
    odd = ODD if name != "mbart" else ODD[3:]  # whose ligatures transformers does not know
    assert_same(reference, ours, [*SENTENCES.values(), *odd])


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_that_a_fine_tuner_added_are_those_of_transformers(bart_folders, tmp_path, name):
    """White space before them too; a special one is a language."""
    folder = shutil.copytree(bart_folders[name][0], tmp_path / "tuned")
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    new = {"m2m": "__mansi__", "marian, codes": ">>mansi<<"}.get(name, "mansi")
    reference.add_tokens(["7", "quick", "<2de>"])
    reference.add_tokens([new], special_tokens=True)
    reference.save_pretrained(folder)
    write_tokenizer(folder, tmp_path)
    assert_same(reference, reader(tmp_path), ["1784", "the quick <2de> brown fox", "<2de>a 7"])
    languages = Languages.load(tmp_path, 1000)
    if languages and languages.source:
        assert languages.find("target_lang", "Mansi") == "mansi" and "quick" not in languages.codes
        assert languages.codes["mansi"] == reference.convert_tokens_to_ids(new)


# The SentencePiece model, and how many tokens are before and behind the text.
MODELS = {
    "mbart": ("unigram", 0, 2),
    "mbart-50": ("unigram", 1, 1),
    "nllb": ("bpe", 1, 1),
    "m2m": ("bpe", 1, 1),
    "marian": ("english", 0, 1),
    "marian, codes": ("english", 0, 1),
    "marian, two": ("english", 0, 1),
    "pegasus": ("pegasus", 0, 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_text_is_cut_as_sentencepiece_cuts_it(bart_folders, spm_models, name):
    """Spaces at the end, ligatures and full width included."""
    kind, before, behind = MODELS[name]
    reference = sentencepiece.SentencePieceProcessor(model_proto=spm_models[kind])
    ours = reader(bart_folders[name][1])
    unknown = ours.token_to_id("<unk>")
    for text in [*EDGES, *ODD, *SENTENCES.values()]:
        tokens = ours.encode(text).ids
        expected = [ours.token_to_id(p) for p in reference.encode(text, out_type=str)]
        expected = [unknown if i is None else i for i in expected]
        assert tokens[before : len(tokens) - behind] == expected


def test_marians_code_counts_at_the_start_only(bart_folders):
    folder, output = bart_folders["marian, codes"]
    reference, ours = transformers.AutoTokenizer.from_pretrained(folder), reader(output)
    starts = [">>fra<< good day", ">>fra<<good", ">>deu<<", ">>deu<<\nline >>fra<<"]
    middles = ["good >>fra<< day", " >>fra<< day", ">> a", "\n>>fra<< x", ">>fra <"]
    assert_same(reference, ours, starts + middles)
    assert all(ours.encode(text).ids[0] in (2, 3) for text in starts)
    assert not any({2, 3} & set(ours.encode(text).ids) for text in middles)


def test_unknown_characters_are_marians(bart_folders):
    """One alone may be a piece of the target's; several together are one unknown piece."""
    folder, output = bart_folders["marian"]
    reference, ours = transformers.AutoTokenizer.from_pretrained(folder), reader(output)
    texts = ["café", "naïveté ű", "мы и я", "a 你好 b", "ééé", "你 x"]
    assert_same(reference, ours, texts)
    beside = "日👍🏽day"  # a word that the target's vocabulary has from the source's
    assert load_tokenizer(output).encode(beside).ids == reference(text_target=beside).input_ids
    unknown = ours.token_to_id("<unk>")
    assert unknown not in ours.encode(texts[0]).ids and unknown in ours.encode(texts[3]).ids


def test_only_numbered_pieces_of_the_sources_model_are_cut_out(bart_folders, tmp_path):
    """Not the target's, even where the source's model knows no character of them; and transformers
    would take a piece without a number for unknown."""
    folder, output = bart_folders["marian"]
    files = {name: (folder / name).read_bytes() for name in ("source.spm", "target.spm")}
    ids = json.loads((folder / "vocab.json").read_text())
    assert "fé" not in ids and "é" in ids
    assert reader(output).encode("the").tokens == ["▁the", "</s>"]
    ids |= {"▁nothing like it": ids.pop("▁the"), "fé": len(ids) + 1}
    changed = folders._folder(tmp_path / "changed", "marian", files | {"vocab.json": ids})
    (tmp_path / "out").mkdir()
    write_tokenizer(changed, tmp_path / "out")
    ours = reader(tmp_path / "out")
    assert_same(transformers.AutoTokenizer.from_pretrained(changed), ours, ["café", "fé"])
    assert ours.decode([ids["fé"]]) == "fé"
    tokens = ours.encode("the").tokens
    assert "".join(tokens) == "▁the</s>" and len(tokens) > 2


@pytest.mark.parametrize(
    ("kind", "files", "settings", "message"),
    [
        (
            "m2m_100",
            {"vocab.json": {"</s>": 0}},
            dict(src_lang="xx"),
            "no language 'xx'; there are",
        ),
        ("marian", {"source.spm": b"\xff\xff"}, {}, "source.spm: not a tokenizer"),
    ],
)
def test_what_cannot_be_right_is_refused(spm_models, tmp_path, kind, files, settings, message):
    base = {"vocab.json": {"<unk>": 0, "</s>": 1, "<pad>": 2}}
    if kind == "m2m_100":
        base = {"sentencepiece.bpe.model": spm_models["bpe"]}
    folder = folders._folder(tmp_path / "hub", kind, base | files, **settings)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=message):
        write_tokenizer(folder, tmp_path / "out")
