"""Languages of multilingual models: how they are framed, what a wrong one is answered, the options."""

import json
import sys

import pytest
import torch
import transformers
from helpers.bart_tokenizers import MULTILINGUAL, checkpoint
from helpers.texts import encoded
from tokenizers import Tokenizer

import main
from decoder import SpeculativeDecoder, batch_generate
from speculative.common.errors import InputError
from speculative.models.conversion import convert
from speculative.models.loading import load
from speculative.models.t5 import codes_in_words
from speculative.text.languages import Languages, has_spaces, is_chinese, short
from speculative.text.text_side import TextSide
from speculative.text.translation_prompt import INSTRUCT

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
    name, reference, model, _ = multilingual
    own = model.text.prompt_tokenizer.encode("good day").ids
    with pytest.raises(InputError, match="no language 'Frrench'; there are French \\(fr") as error:
        encoded(model, "good day", target_lang="Frrench")
    assert str(error.value).startswith("target_lang: ")
    assert encoded(model, "good day") == (own, model.prefix(own))
    source_lang, target_lang = CODES[name]
    source, prefix = encoded(model, "good day", source_lang, target_lang)
    if name == "marian, codes":
        assert source == reference(f">>{target_lang}<< good day").input_ids
        assert prefix == model.prefix(own) == [reference.pad_token_id]
        with pytest.raises(InputError, match="source_lang: this model does not take a source"):
            encoded(model, "good day", source_lang="eng")
        return
    inputs = reference._build_translation_inputs(
        "good day", return_tensors=None, src_lang=source_lang, tgt_lang=target_lang
    )
    forced = inputs["forced_bos_token_id"]
    assert source == inputs["input_ids"] and source != own and forced > 3
    assert prefix == ([forced] if name == "mbart" else [2, forced])
    # One of the two alone: the other is the tokenizer's or the model's own.
    assert encoded(model, "good day", target_lang=target_lang) == (own, prefix)
    assert encoded(model, "good day", source_lang) == (source, model.prefix(own))


def test_the_encoder_of_small_100_is_told_the_target_language(bart_folders, tmp_path):
    """As its authors' SMALL100Tokenizer tells it: the target's language, the text, the end."""
    _, reference = checkpoint(tmp_path / "hub", bart_folders["m2m"], "m2m")
    settings = dict(tokenizer_class="SMALL100Tokenizer", tgt_lang="fr")
    (tmp_path / "hub" / "tokenizer_config.json").write_text(json.dumps(settings))
    model, _ = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    text = reference("good day", add_special_tokens=False).input_ids
    for asked, code in ((None, "fr"), ("German", "de")):
        expected = [reference.get_lang_id(code), *text, reference.eos_token_id], [2]
        assert encoded(model, "good day", target_lang=asked) == expected
    with pytest.raises(InputError, match="source_lang: this model does not take a source"):
        encoded(model, "good day", source_lang="en")


def test_some_models_are_told_in_words(demo_pair, monkeypatch):
    """T5, and so the embedded pair, by what its config.json lists; MADLAD-400 by a tag in the text."""
    target, tokenizer, draft = demo_pair
    asked = tokenizer.encode("translate English to German: The king sees.").ids
    framed = encoded(target, "The king sees.", "English", "Deutsch")
    assert framed == (asked, target.prefix(asked))
    for option, name in (("source_lang", "fr"), ("target_lang", "Italian")):
        with pytest.raises(InputError, match=f"{option}: no language '{name}'; there are "):
            encoded(target, "good day", **{option: name})
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens(["<2de>", "<2zh>"])
    codes = codes_in_words({}, own)
    assert codes == {"de": "<2de> ", "zh": "<2zh> "}
    told = TextSide(own, languages=Languages(codes))
    monkeypatch.setattr(target, "text", told)
    assert encoded(target, "good day", None, "German")[0] == own.encode("<2de> good day").ids
    with pytest.raises(InputError, match="this model has no languages to choose from"):
        encoded(draft, "good day", target_lang="de")
    decoder = SpeculativeDecoder(target, tokenizer)
    with pytest.raises(InputError, match="prompt_template are not for token ids"):
        decoder.generate([3, 4], target_lang="de")


NLLB = "ace_Arab arb_Arab ckb_Arab crh_Latn deu_Latn kor_Hang nno_Latn nob_Latn pbt_Arab pes_Arab por_Latn prs_Arab srp_Cyrl zho_Hans zho_Hant"


@pytest.mark.parametrize(
    "codes, wanted",
    [
        (NLLB, "German=deu_Latn Deutsch=deu_Latn de=deu_Latn deu=deu_Latn de-AT=deu_Latn"),
        (NLLB, "pt-BR=por_Latn Norwegian=nob_Latn zh=zho_Hans zh-TW=zho_Hant Arabic=arb_Arab"),
        (NLLB, "gsw= Luxembourgish= Klingon= sr-Latn= nds= ="),  # near, but other languages
        (NLLB, "fa=pes_Arab Persian=pes_Arab Dari=prs_Arab Persian_(Afghanistan)=prs_Arab"),
        (NLLB, "Chinese_(Traditional)=zho_Hant Portuguese_(Brazil)=por_Latn Chinese_(Klingon)="),
        (NLLB, "Norwegian_(Bokmål)=nob_Latn Kurdish_(Sorani)=ckb_Arab Serbian_(Latin)="),
        (NLLB, "Serbian_(Cyrillic)=srp_Cyrl Arabic_(Egyptian)= ku=ckb_Arab ps=pbt_Arab"),
        ("arz_Arab yue_Hant nno_Latn", "ar=arz_Arab zh=yue_Hant no=nno_Latn zh-Hant="),
        (NLLB, "ko=kor_Hang crh=crh_Latn"),  # their scripts are not the CLDR's
        ("en_XX de_DE pt_XX zh_CN", "English=en_XX GERMAN=de_DE por=pt_XX zh-Hant= Dutch="),
        ("de fil ns zh", "Tagalog=fil ns=ns Chinese=zh"),
        ("deu cmn_Hans pt_BR", "allemand=deu zh=cmn_Hans pt=pt_BR"),
    ],
)
def test_a_language_has_many_names(codes, wanted):
    """Each is the model's code or, with nothing after the sign, one line."""
    languages = Languages(dict.fromkeys(codes.split(), 5), ["source", "text", 2], ["target"])
    for pair in wanted.split():
        name, code = pair.replace("_(", " (").split("=")
        try:
            found = languages.find("target_lang", name)
        except InputError as error:
            found, line = "", str(error)
            assert f"no language {name!r}; there are" in line and "\n" not in line
        assert found == code, name


@pytest.mark.parametrize(
    "name", ["\0", "German\0", "Chinese (\0)", "\ud800", "a" * 18_000, "de" + "-1996" * 3600]
)
def test_what_cannot_be_a_name_is_no_language(demo_pair, name):
    for text in (demo_pair[0].text, TextSide(demo_pair[1], translation=INSTRUCT)):
        with pytest.raises(InputError, match=r"^target_lang: no language") as error:
            text.resolve_languages(None, name)
        assert len(str(error.value)) < 600
    assert short(name) == name and not is_chinese(name)


def test_a_language_is_looked_up_once(monkeypatch):
    codes = dict.fromkeys(NLLB.split(), 5)
    for asked in range(2):
        if asked:
            monkeypatch.delattr("speculative.text.languages.fuzz.ratio")
        assert Languages(codes).find("target_lang", "Allemand") == "deu_Latn"


def test_a_files_name_has_the_short_code():
    codes = "arb_Arab cmn_Hant deu_Latn nob_Latn pes_Arab zsm_Latn twi_Latn".split()
    assert [short(code) for code in codes] == ["ar", "zh-Hant", "de", "nb", "fa", "ms", "tw-Latn"]
    assert [
        has_spaces(code) for code in ("zho_Hans", "ja_XX", "kor_Hang", "tha_Thai", "x", "km")
    ] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "change",
    [{"codes": None}, *({"codes": {"fr": token}} for token in (-5, 61, [])), {"source": [61]}],
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
    source, prefix = encoded(model, "good day", **languages)
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
