"""Languages of multilingual models: how they are framed, what a wrong one is answered, the options."""

import json
import sys

import pytest
import torch
import transformers
from helpers.bart_tokenizers import MULTILINGUAL, checkpoint
from tokenizers import Tokenizer

import main
from decoder import SpeculativeDecoder, batch_generate
from errors import InputError
from families.conversion import convert
from families.loading import load
from text.languages import Languages, frame

pytestmark = pytest.mark.slow


@pytest.fixture
def multilingual(request, bart_folders, tmp_path):
    name = request.param
    checkpoint(tmp_path / "hub", bart_folders[name], name)
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    return name, transformers.AutoTokenizer.from_pretrained(bart_folders[name][0]), model, tokenizer


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
    alike = {"nllb": "fra_Latn, ace_Arab", "m2m": "fr, af", "marian, codes": "fra, deu"}
    listed = f"target_lang: no language 'fro'; there are {alike.get(name, 'fr_XX, ')}"
    with pytest.raises(InputError, match=listed):
        frame(model, tokenizer, "good day", target_lang="fro")
    assert frame(model, tokenizer, "good day") == (own, model.prefix(own))
    source_lang, target_lang = CODES[name]
    source, prefix = frame(model, tokenizer, "good day", source_lang, target_lang)
    if name == "marian, codes":
        assert source == reference(f">>{target_lang}<< good day").input_ids
        assert prefix == model.prefix(own) == [reference.pad_token_id]
        with pytest.raises(InputError, match="source_lang: this model does not take a source"):
            frame(model, tokenizer, "good day", source_lang="eng")
        return
    inputs = reference._build_translation_inputs(
        "good day", return_tensors=None, src_lang=source_lang, tgt_lang=target_lang
    )
    forced = inputs["forced_bos_token_id"]
    assert source == inputs["input_ids"] and source != own and forced > 3
    assert prefix == ([forced] if name == "mbart" else [2, forced])
    # One of the two alone: the other is the tokenizer's or the model's own.
    assert frame(model, tokenizer, "good day", target_lang=target_lang) == (own, prefix)
    assert frame(model, tokenizer, "good day", source_lang) == (source, model.prefix(own))


def test_what_has_its_language_elsewhere_says_where(demo_pair):
    """MADLAD-400 has it in the text."""
    target, tokenizer, _ = demo_pair
    with pytest.raises(InputError, match="this model has no languages to choose from"):
        frame(target, tokenizer, "good day", target_lang="de")
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens(["<2de>"])
    with pytest.raises(InputError, match="from the prompt; begin it with <2de>"):
        frame(target, own, "good day", target_lang="de")
    decoder = SpeculativeDecoder(target, tokenizer, encode=lambda text: [3, 4])
    with pytest.raises(InputError, match="not for prompts in a chat template"):
        decoder.generate("good day", target_lang="de")


@pytest.mark.parametrize(
    "change",
    [{"codes": None}, *({"codes": {"fr": token}} for token in (-5, 61, "x")), {"source": [61]}],
)
def test_a_foreign_languages_file_is_refused(tmp_path, change):
    right = {"codes": {"fr": 60}, "source": ["source", "text", 2], "prefix": ["start", "target"]}
    (tmp_path / "languages.json").write_text(json.dumps(right))
    assert Languages.load(tmp_path, 61) == Languages(**right)
    (tmp_path / "languages.json").write_text(json.dumps(right | change))
    with pytest.raises(InputError, match="does not fit this model: convert the model"):
        Languages.load(tmp_path, 61)


def test_languages_are_options_of_decoding(bart_folders, tmp_path, monkeypatch, capsys):
    """As transformers' generate with the same languages, drafted or not, from Python and the command."""
    reference, _ = checkpoint(tmp_path / "hub", bart_folders["nllb"], "nllb")
    monkeypatch.chdir(tmp_path)
    model, tokenizer = load(convert("hub", dtype="float32"))
    languages = dict(source_lang="deu_Latn", target_lang="fra_Latn")
    source, prefix = frame(model, tokenizer, "good day", **languages)
    forced = dict(forced_bos_token_id=prefix[1], forced_eos_token_id=None)
    expected = reference.generate(torch.tensor([source]), max_new_tokens=9, num_beams=1, **forced)
    for draft in (None, model):
        options = dict(max_tokens=8, **languages)
        (response,) = batch_generate(model, tokenizer, ["good day"], draft, **options)
        assert prefix + response.tokens == expected[0].tolist()
    flags = ["--source-lang", "deu_Latn", "--target-lang", "fra_Latn"]
    monkeypatch.setattr(
        sys, "argv", ["main.py", "--model", "hub", "-m", "8", "-p", "good day", *flags]
    )
    main.main()
    assert capsys.readouterr().out == f"{response.text}\n"
