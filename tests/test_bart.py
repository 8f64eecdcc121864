"""BART's family against transformers: logits, what is generated, and where such models go wrong."""

import dataclasses
import json
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers.bart_checkpoints import VARIANTS
from helpers.bart_models import KINDS, LIVELY, B, S, T, both, inputs, known
from helpers.decoding import decode_drafted
from helpers.models import assert_close, cached_logits, reference_logits
from helpers.oracle import disturbed, flat_weights
from transformers import GenerationConfig

from checkpoints.quantization import Quantization
from decoder import Batch
from errors import InputError
from families.bart import Config, Model
from speculative.batch import decode as decode_rows
from speculative.cache import MASKED
from speculative.cached_model import padded
from speculative.drafting import Drafter, ModelDrafter
from speculative.options import Options
from speculative.row import Row, Waiting
from speculative.schedule import FixedSchedule
from text.generation import Generation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    return both(tmp_path_factory.mktemp("bart"), VARIANTS[request.param])


@pytest.fixture
def bart(tmp_path):
    return both(tmp_path, VARIANTS["bart"])


def encoder_output(reference, source, mask) -> np.ndarray:
    given = dict(input_ids=torch.tensor(source), attention_mask=torch.tensor(mask).long())
    with torch.no_grad():
        return reference.get_encoder()(**given).last_hidden_state.numpy()


@pytest.mark.parametrize("blocks", [T, 1, [1, 5, 2, 7, 3]])
def test_logits_are_those_of_transformers(pair, blocks):
    reference, model = pair
    given = inputs(model.config)
    expected = reference_logits(reference, *given)
    logits = cached_logits(model, *given, blocks)
    assert_close(known(logits, model.config), known(expected, model.config))
    if model.config.bans_padding:
        assert (logits[..., model.config.pad_token_id] == -np.inf).all()


def test_the_encoders_output_is_that_of_transformers(pair):
    """Also without its last norm, or with the embedding's norm before the positions."""
    reference, model = pair
    source, mask, _ = inputs(model.config)
    expected = encoder_output(reference, source, mask)
    memory = np.array(model.encode(mx.array(source), mask))
    assert_close(memory[mask], expected[mask])


@pytest.mark.parametrize("name", ["m2m", "nllb, other padding"])
def test_m2m_counts_tokens_and_padding_ids_are_none(tmp_path, name):
    reference, model = both(tmp_path, VARIANTS[name])
    source, _, target = inputs(model.config)
    source[0, 5] = source[1, 4] = model.config.pad_token_id  # between tokens
    mask = np.ones_like(source, bool)
    expected = reference_logits(reference, source, mask, target)
    assert_close(cached_logits(model, source, mask, target, T), expected)


def test_m2m_has_no_last_position(tmp_path):
    reference, model = both(tmp_path, VARIANTS["m2m"])
    source, target = (np.random.default_rng(i).integers(3, 61, (B, 100)) for i in range(2))
    mask = np.ones_like(source, bool)
    expected = reference_logits(reference, source, mask, target)
    assert_close(cached_logits(model, source, mask, target, [30, 70]), expected)
    assert model.config.max_positions is None


def test_every_tensor_arrives_in_its_place(pair):
    """A key's bias cancels in the softmax: no logits would miss it."""
    reference, model = pair
    state, weights = reference.state_dict(), dict(flat_weights(model))
    for stack in ("encoder", "decoder"):
        for theirs, ours in (("self_attn.k_proj", "attention.key"), ("fc2", "down")):
            expected = state[f"model.{stack}.layers.1.{theirs}.bias"].numpy()
            assert np.array_equal(weights[f"{stack}.layers.1.{ours}.bias"], expected)
    parameters = sum(p.numel() for n, p in reference.named_parameters() if "positions" not in n)
    learned = sum(w.size for n, w in weights.items() if "positions" not in n)
    assert learned == parameters + weights.get("logits_bias", mx.zeros(0)).size


# ---------------------------------------------------------------------------------------------
# The cache


def test_rejected_tokens_leave_no_trace(pair):
    """Blocks of which each row keeps another part, and what fills rows up; then as rows alone."""
    reference, model = pair
    source, mask, target = inputs(model.config)
    cache = model.start(mx.array(source), mask)
    rng, written = np.random.default_rng(1), [[] for _ in range(B)]
    expected = reference_logits(reference, source, mask, target)
    rejected = 0
    while min(map(len, written)) < 12:
        begun = np.array([len(row) for row in written])
        width = int(rng.integers(1, 6))
        # The first tokens are right, those behind n are to be rejected; some rows are shorter.
        n, long = rng.integers(0, width + 1, B), rng.integers(0, 2, B)
        tokens = rng.integers(3, model.config.vocab_size - 3, (B, width))
        positions = begun[:, None] + np.arange(width)
        positions = np.minimum(positions, T - 1)
        for b in range(B):
            n[b] = min(n[b], T - begun[b])
            tokens[b, : n[b]] = target[b, begun[b] : begun[b] + n[b]]
            if long[b]:
                positions[b, n[b] :] = MASKED
        logits = np.array(model.decode(mx.array(tokens), positions.astype(np.int32), cache))
        cache.keep(n)
        rejected += int((width - n).sum())
        for b in range(B):
            found, right = logits[b, : n[b]], expected[b, begun[b] : begun[b] + n[b]]
            if n[b]:
                assert_close(known(found, model.config), known(right, model.config))
            written[b] += [1] * n[b]
    assert rejected > 10
    assert cache.lengths.tolist() == [len(row) for row in written]


def test_fillers_do_not_reach_the_positions_table(bart):
    """MASKED as a row of the table would be foreign memory: the output has to be the same each time."""
    _, model = bart
    source, mask, target = inputs(model.config)
    alone = cached_logits(model, source, mask, target, [3])
    cache = model.start(mx.array(source), mask)
    tokens = np.concatenate([np.full((B, 2), 7), target[:, :3]], axis=1)
    positions = np.tile(np.array([MASKED, MASKED, 0, 1, 2], np.int32), (B, 1))
    logits = np.array(model.decode(mx.array(tokens), positions, cache))
    assert_close(logits[:, 2:], alone)
    assert np.isfinite(logits).all()
    kind = type(model.decoder.positions)
    with mock.patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__) as table:
        model.decode(mx.array(tokens), positions, model.start(mx.array(source), mask))
    assert all(call.args[1].max() < 64 for call in table.call_args_list)


@pytest.mark.parametrize("name", ["bart", "mbart", "marian", "pegasus"])
def test_positions_end_where_the_table_does(tmp_path, name):
    reference, model = both(tmp_path, VARIANTS[name])
    assert model.config.max_positions == 64
    rng = np.random.default_rng(0)
    source, target = (rng.integers(3, 58, (B, 64)) for _ in range(2))
    mask = np.ones_like(source, bool)
    expected = reference_logits(reference, source, mask, target)
    found = cached_logits(model, source, mask, target, [60, 4])
    assert_close(known(found, model.config), known(expected, model.config))
    with pytest.raises(InputError, match="a source of 65 tokens; the model reads 64 at most"):
        model.start(mx.array(np.concatenate([source, source[:, :1]], axis=1)))
    with pytest.raises(InputError, match="longer than the 64 positions that the model knows"):
        cached_logits(model, source, mask, np.tile(target, 2), [64, 1])


def test_a_source_without_a_token_is_refused(bart):
    with pytest.raises(InputError, match="without a token"):
        bart[1].start(mx.array([[1, 1]]), np.zeros((1, 2), bool))


# ---------------------------------------------------------------------------------------------
# Half precision, quantization


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_is_close_to_transformers(pair, dtype):
    reference, model = pair
    given = inputs(model.config)
    expected = known(reference_logits(reference, *given), model.config)
    half = Model(model.config)
    half.load_weights([(name, weight.astype(dtype)) for name, weight in flat_weights(model)])
    logits = known(cached_logits(half, *given, [7, 11]), model.config)
    assert half.encode(mx.array(given[0]), given[1]).dtype == dtype
    error = np.abs(logits - expected).mean() / np.abs(expected).mean()
    assert error < (0.1 if dtype == mx.bfloat16 else 0.02)


@pytest.mark.parametrize("name", KINDS)
def test_float16_is_finite(tmp_path, name):
    """transformers clips in the encoder, too, there after the norm, where it is too late for BART."""
    changes = {"fc2.weight": lambda w: w * 3e4}
    _, model = both(tmp_path, VARIANTS[name], **changes)
    half = Model(model.config)
    half.load_weights([(n, weight.astype(mx.float16)) for n, weight in flat_weights(model)])
    source, mask, target = inputs(model.config)
    memory = np.array(half.encode(mx.array(source), mask))
    assert np.isfinite(memory).all()
    logits = known(cached_logits(half, source, mask, target, T), model.config)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("name", ["bart", "marian, own vocabularies"])
def test_no_table_of_what_is_added_is_quantized(name):
    sizes = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=32)
    model = Model(Config.from_hub(VARIANTS[name] | sizes, None))
    quantization = Quantization(bits=4, group_size=32)
    covered = {n for n, w in flat_weights(model) if quantization.covers(n, w.shape)}
    kinds = {n.split(".")[-2] for n in covered}
    embeddings = {"embedding"} | ({"source_embedding"} if "own" in name else set())
    assert kinds == {"query", "key", "value", "out", "up", "down"} | embeddings


# ---------------------------------------------------------------------------------------------
# What is generated


COUNT, MOST = 48, 14


def decode(model: Model, sources) -> list[list[int]]:
    """What the rows' tokens are behind their prefixes."""
    return [row.generated for row in decode_drafted(model, None, sources, 16, max_tokens=MOST)]


def prompts(config: Config, count: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    right = [i for i in range(3, config.source_vocab_size) if i != config.pad_token_id]
    eos = config.eos_token_ids[0]
    return [[*rng.choice(right, rng.integers(1, S)).tolist(), eos] for _ in range(count)]


def transformers_texts(reference, config: Config, sources, max_tokens: int, **settings):
    """transformers' greedy texts behind the prefix, the end of sequence included."""
    tokens, mask = padded(sources, config.pad_token_id)
    forced = config.forced_bos_token_id is not None
    output = reference.generate(
        torch.tensor(tokens).long(),
        attention_mask=torch.tensor(mask).long(),
        max_new_tokens=max_tokens + forced,
        num_beams=1,
        do_sample=False,
        eos_token_id=list(config.eos_token_ids),
        forced_bos_token_id=config.forced_bos_token_id,
        forced_eos_token_id=None,  # at the cap: another issue's
        **settings,
    )
    texts = []
    for row in output[:, 1 + forced :].tolist():
        ends = [i for i, token in enumerate(row) if token in config.eos_token_ids]
        texts.append(row[: ends[0] + 1] if ends else row)
    return texts


@pytest.mark.parametrize(
    ("name", "forced"), [(name, False) for name in VARIANTS] + [(name, True) for name in KINDS]
)
def test_texts_are_those_of_transformers(tmp_path, name, forced):
    """Batches with rows that come and go; ends of sequence that do occur, two of them."""
    raw = VARIANTS[name] | (dict(forced_bos_token_id=7) if forced else {})
    reference, model = both(tmp_path, raw, seed=1, **LIVELY)
    config = model.config
    sources = prompts(config, COUNT)
    ordinary = decode(model, sources)
    usual = np.bincount(np.concatenate(ordinary), minlength=config.vocab_size).argsort()[::-1]
    ends = tuple(int(token) for token in usual[4:7] if token != 7)[:2]
    config = model.config = dataclasses.replace(config, eos_token_ids=ends)
    bans = dict(bad_words_ids=[[config.pad_token_id]]) if config.bans_padding else {}
    expected = transformers_texts(reference, config, sources, MOST, **bans)
    plain = decode(model, sources)
    assert plain == expected
    assert len({tuple(text) for text in plain}) > 8
    assert any(text[-1] in ends and len(text) < MOST for text in plain)


# As bart-large-cnn's, mbart's, nllb's, opus-mt's and pegasus-xsum's generation_config.json, for short texts.
SETTINGS = {
    "bart": dict(no_repeat_ngram_size=3, min_length=9, max_length=18, forced_bos_token_id=0)
    | dict(forced_eos_token_id=2, num_beams=4, length_penalty=2.0, early_stopping=True),
    "mbart": dict(forced_eos_token_id=2, max_length=12, num_beams=5),
    "m2m": dict(max_length=14, num_beams=5, forced_bos_token_id=9),
    "marian": dict(bad_words_ids=[[60]], forced_eos_token_id=0, max_length=13, num_beams=6)
    | dict(no_repeat_ngram_size=2),  # not its own: random weights repeat one token
    "pegasus": dict(forced_eos_token_id=1, min_length=6, max_length=11, num_beams=8),
}


@pytest.mark.parametrize("name", KINDS)
def test_texts_under_a_checkpoints_own_settings(tmp_path, name):
    """Plain and drafted, side by side; ends of sequence come early where they may."""
    settings, raw = SETTINGS[name], VARIANTS[name]
    ids = {key: value for key, value in settings.items() if key.endswith("_token_id")}
    bias = {"bart": 4.0, "pegasus": 4.0, "mbart": 1.0, "m2m": 1.0, "marian": 0.0}[name]
    eos = torch.tensor(raw["eos_token_id"])
    early = {"final_logits_bias": lambda b: b.index_fill(1, eos, bias)}
    reference, model = both(tmp_path, raw | ids, seed=1, **LIVELY, **early)
    ours = {key: raw[key] for key in ("eos_token_id", "pad_token_id")} | settings
    (tmp_path / "generation_config.json").write_text(json.dumps(ours))
    reference.generation_config = GenerationConfig.from_pretrained(
        tmp_path, decoder_start_token_id=model.config.decoder_start_token_id
    )
    generation = Generation.load(tmp_path, ["forced_bos_token_id"])
    sources, draft = prompts(model.config, 12), disturbed(model, 0.08)
    expected = []
    for source in sources:
        row = reference.generate(torch.tensor([source]), num_beams=1)[0].tolist()
        expected.append(row[len(model.prefix(source)) :])
    assert len(set(map(tuple, expected))) > 6
    for num_draft in (0, 2, 5):
        rows = [
            Row(source, generation.fill(Options(), len(prefix)), tokens=prefix)
            for source in sources
            for prefix in [model.prefix(source)]
        ]
        drafter = ModelDrafter(draft) if num_draft else Drafter()
        batch = Batch(model, drafter, Options(), FixedSchedule(num_draft))
        list(decode_rows(batch, Waiting(rows), 5))
        assert [row.generated for row in rows] == expected


def test_marian_never_writes_padding(tmp_path):
    raw = VARIANTS["marian"]

    def favoured(bias):
        bias = bias.clone()
        bias[0, raw["pad_token_id"]] = 100
        return bias

    reference, model = both(tmp_path, raw, **{"final_logits_bias": favoured})
    sources = prompts(model.config, 8)
    texts = decode(model, sources)
    assert not any(raw["pad_token_id"] in text for text in texts)
    bans = dict(bad_words_ids=[[raw["pad_token_id"]]])
    assert texts == transformers_texts(reference, model.config, sources, MOST, **bans)


def test_a_text_ends_where_the_models_positions_do(bart):
    """With the start token it has as many tokens as there are positions, drafted ones among them, and the
    model itself refuses one more."""
    _, model = bart
    model.config = dataclasses.replace(model.config, eos_token_ids=(3,))
    for draft, num_draft in ((None, 0), (model, 5)):
        (row,) = decode_drafted(model, draft, [[5, 6, 2]], num_draft=num_draft, max_tokens=80)
        assert len(row.tokens) == 64 and row.finish_reason == "length"
    cache = model.start(mx.array([[5, 6, 2]]))
    with pytest.raises(InputError, match="longer than the 64 positions"):
        model.decode(mx.zeros((1, 65), mx.int32), np.arange(65, dtype=np.int32)[None], cache)


def test_a_draft_model_of_fewer_positions_stops_drafting_there(bart):
    _, model = bart
    model.config = dataclasses.replace(model.config, eos_token_ids=(3,))
    short = Model(dataclasses.replace(model.config, max_positions=20))
    weights = dict(flat_weights(model))
    for name in ("encoder", "decoder"):
        weights[f"{name}.positions.weight"] = weights[f"{name}.positions.weight"][:22]
    short.load_weights(list(weights.items()))
    prompts = [[5, 6, 2], list(range(4, 34))]  # the second is too long for it to read
    rows = decode_drafted(model, short, prompts, num_draft=4, max_tokens=40)
    plain = decode_drafted(model, None, prompts, max_tokens=40)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
    assert rows[0].stats.drafted > 0 and rows[1].stats.drafted == 0
    assert all(origin == "plain" for origin in rows[0].origins[20:])
