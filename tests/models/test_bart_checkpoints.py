"""BART's family: what is made of each config.json and of the tensors' names, from the hub's layout to text."""

import pytest
import torch
from helpers import bart_checkpoints, checkpoints
from helpers.bart_checkpoints import VARIANTS
from helpers.bart_models import KINDS
from helpers.bart_tokenizers import FAMILIES, SENTENCES, assert_same, checkpoint
from helpers.models import T, assert_close, cached_logits, mlx_model, reference_logits
from helpers.oracle import disturbed, greedy
from helpers.pairs import inputs, known
from helpers.texts import encoded

from decoder import Options, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.models.bart import FAMILY, Bart, Config
from speculative.models.conversion import convert
from speculative.models.loading import load
from speculative.text.rows import TextStream
from speculative.text.text_side import Prompt, TextSide
from speculative.text.tokenizer import SOURCE_FILE, load_tokenizer

pytestmark = pytest.mark.slow


OWN = VARIANTS["marian, own vocabularies"] | dict(vocab_size=40)  # of one size, to mix up
UNTIED = VARIANTS["bart"] | dict(tie_word_embeddings=False)  # of four tables one is nobody's


@pytest.mark.parametrize(
    ("raw", "form"),
    [
        *((VARIANTS[name], "old") for name in KINDS),
        (OWN, "new"),
        (OWN, "old"),
        (UNTIED, "old"),
        (VARIANTS["bart"], "own head"),
    ],
)
def test_names_in_checkpoints_old_and_new_are_known(tmp_path, raw, form):
    reference = bart_checkpoints.torch_model(raw)
    state = bart_checkpoints.state_dict(reference, form)
    if form == "own head":
        state["lm_head.weight"] = torch.randn(61, 24)
        reference.lm_head.weight = torch.nn.Parameter(state["lm_head.weight"])
    model = mlx_model(checkpoints.save(tmp_path, raw, state, kind="legacy"), raw)
    c, given = model.config, inputs(model.config)
    assert c.shared_embedding == (raw not in (OWN, UNTIED))
    assert c.tied_head == (form != "own head" and raw is not UNTIED)
    expected = reference_logits(reference, *given)
    assert_close(known(cached_logits(model, *given, T), c), known(expected, c))


def test_unknown_tensors_are_named_and_unknown_configs_refused():
    with pytest.warns(match=r"no BART has: classification_head\.dense"):
        FAMILY.rename({"shared.weight": None, "classification_head.dense.bias": None})
    raw = VARIANTS["bart"]
    for change, message in (
        (dict(activation_function="sine"), "unknown activation 'sine'"),
        (dict(pad_token_id=61), "pad_token_id is 61, but vocab_size is only 61"),
    ):
        with pytest.raises(InputError, match=message):
            Bart(Config.from_hub(raw | change, None))
    with pytest.raises(InputError, match="has no encoder_ffn_dim: not a BART-type model"):
        Config.from_hub({k: v for k, v in raw.items() if k != "encoder_ffn_dim"}, None)


@pytest.mark.parametrize(
    ("name", "changes", "prefix"),
    [
        ("bart", {}, [2]),
        ("bart", dict(forced_bos_token_id=0), [2, 0]),
        ("bart", dict(force_bos_token_to_be_generated=True), [2, 0]),
        ("bart", dict(decoder_start_token_id=None), [0]),
        ("mbart", {}, [0]),
        ("mbart", dict(decoder_start_token_id=50), [50]),
        ("mbart-50", dict(forced_bos_token_id=53), [2, 53]),
        ("marian", {}, [60]),
        ("pegasus", {}, [0]),
    ],
)
def test_rows_begin_as_in_transformers(tmp_path, name, changes, prefix):
    raw = VARIANTS[name] | changes
    assert Bart(Config.from_hub(raw, None)).prefix([7]) == prefix
    reference = bart_checkpoints.torch_model(raw)
    checkpoints.save(tmp_path, raw, bart_checkpoints.state_dict(reference))
    reference = type(reference).from_pretrained(tmp_path)
    generated = reference.generate(torch.tensor([[7, 8, 2]]), max_new_tokens=2, num_beams=1)
    assert generated[0, : len(prefix)].tolist() == prefix


def test_ids_that_are_missing_or_several():
    """A start token that is missing is the kind's own, unlike one that is null."""
    for name, start in (("bart", 2), ("mbart", 0), ("m2m", 2), ("pegasus", 0)):
        raw = {k: v for k, v in VARIANTS[name].items() if k != "decoder_start_token_id"}
        assert Config.from_hub(raw, None).decoder_start_token_id == start
    ends = VARIANTS["marian"] | dict(eos_token_id=[59, 2])
    assert Config.from_hub(ends, None).eos_token_ids == (59, 2)


FORMS = [("new", "safetensors"), ("old", "legacy"), ("bare", "zip")]


@pytest.mark.parametrize("name", FAMILIES)
def test_converted_checkpoints_write_transformers_texts(bart_folders, tmp_path, name):
    form, kind = FORMS[FAMILIES.index(name) % 3]
    reference, tokens = checkpoint(tmp_path / "hub", bart_folders[name], name, form, kind)
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    bans = reference.config.pad_token_id
    for text in list(SENTENCES.values())[:3]:
        source, prefix = encoded(model, text)
        assert source == tokens(text).input_ids
        output = reference.generate(
            torch.tensor([source]),
            max_new_tokens=8,
            num_beams=1,
            forced_eos_token_id=None,
            bad_words_ids=[[bans]] if "marian" in name else None,
        )[0].tolist()
        assert output[:1] == prefix
        assert greedy(model, [source], 8) == [output[1:]]
    # What a text shows of special tokens: nothing.
    ids = [i for i in (*tokens.all_special_ids, *range(20, 30)) if i < model.config.vocab_size]
    stream = TextStream(tokenizer, SpeculativeDecoder(model, tokenizer).maker.hidden)
    languages = {*model.text.languages.codes.values()} if model.text.languages else {}
    expected = tokens.decode([i for i in ids if i not in languages], skip_special_tokens=True)
    assert stream.push(ids) + stream.finish() == expected


def test_a_mask_without_a_row_is_left_out(bart_folders, tmp_path):
    """bart-large-cnn's embedding ends before it; transformers would index beyond."""
    size = load_tokenizer(bart_folders["bart"][1]).get_vocab_size()
    reference = checkpoint(tmp_path / "hub", bart_folders["bart"], "bart", vocab_size=size - 1)[1]
    _, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    assert reference.mask_token_id == size - 1
    assert_same(reference, tokenizer, SENTENCES.values())
    assert max(tokenizer.encode("a <mask> b").ids) < size - 1


@pytest.fixture
def two_vocabularies(bart_folders, tmp_path):
    checkpoint(tmp_path / "hub", bart_folders["marian, two"], "marian, two")
    return load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))


def test_what_is_copied_from_a_source_is_in_the_texts_vocabulary(two_vocabularies):
    """The same piece, or the unknown one; as an id it may have no row in the decoder's table."""
    model, tokenizer = two_vocabularies
    prompt, decoder = "L'élève, the quick brown fox: déjà vu", SpeculativeDecoder(model, tokenizer)
    row = decoder.maker.row(prompt, Options(), lambda tokens: b"")
    assert max(row.prompt) >= model.config.vocab_size  # more pieces than the text's
    lookup = decoder.drafter(Options(lookup=True))
    lookup.admit([row], [0])
    vocabulary, pieces = (
        tokenizer.get_vocab(),
        map(model.text.source_tokenizer.id_to_token, row.prompt),
    )
    expected = [piece if piece in vocabulary else "<unk>" for piece in pieces]
    assert [tokenizer.id_to_token(token) for token in lookup._matchers[row][0].text] == expected
    assert len({*expected}) > 5
    (plain,) = decoder.batch_generate([prompt], num_draft=0, max_tokens=12)
    (drafted,) = decoder.batch_generate([prompt], num_draft=3, lookup=True, max_tokens=12)
    assert drafted.tokens == plain.tokens


def test_one_vocabulary_has_two_tokenizers(bart_folders, tmp_path):
    """A model converted with the source's for both still loads, and drafts."""
    reference = checkpoint(tmp_path / "hub", bart_folders["marian"], "marian")[1]
    output = convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32")
    model, tokenizer = load(output)
    (output / SOURCE_FILE).rename(output / "tokenizer.json")
    draft = disturbed(model, 0.1)
    draft.text = load(output)[0].text
    decoder = SpeculativeDecoder(model, tokenizer, draft)
    english, russian = "The quick brown fox", SENTENCES["ru_RU"]
    answered = [{"role": "user", "content": english}, {"role": "assistant", "content": russian}]
    prompts = [Prompt(english, reference=russian), answered, Prompt(russian, reference=english)]
    row, begun, _ = (decoder.maker.row(prompt, Options(), lambda tokens: b"") for prompt in prompts)
    written = reference(text_target=russian).input_ids
    assert (row.prompt, row.reference) == (reference(english).input_ids, written)
    assert begun.tokens == [*model.prefix([]), *written[:-1]]
    drafter = decoder.drafter(Options(lookup=True))
    drafter.admit([row], [0])
    assert [x.text for x in drafter.lookup._matchers[row]] == [row.reference, row.prompt]
    plain = decoder.batch_generate(prompts, num_draft=0, max_tokens=20)
    drafted = decoder.batch_generate(prompts, num_draft=4, lookup=True, max_tokens=20)
    assert [x.tokens for x in drafted] == [x.tokens for x in plain]


def test_a_draft_model_of_another_source_vocabulary_is_refused(two_vocabularies, bart_folders):
    model, tokenizer = two_vocabularies
    draft = disturbed(model, 0)
    draft.text = TextSide(tokenizer, load_tokenizer(bart_folders["marian"][1]))
    with pytest.raises(InputError, match="a different vocabulary from the target"):
        SpeculativeDecoder(model, tokenizer, draft)
