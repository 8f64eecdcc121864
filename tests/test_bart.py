"""BART's family against transformers: logits, what is generated, and where such models go wrong."""

import dataclasses
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import bart_checkpoints, checkpoints
from helpers.decoding import decode_drafted, partial_steps
from helpers.oracle import disturbed, flat_weights

from checkpoints.folder import open_checkpoint
from checkpoints.quantization import Quantization
from checkpoints.tensors import to_mlx
from distributed.sharding import check_ranks
from errors import InputError
from families.bart import FAMILY, Config, Model
from speculative.cache import MASKED
from speculative.cached_model import padded

pytestmark = pytest.mark.slow

VARIANTS = bart_checkpoints.VARIANTS
KINDS = ["bart", "mbart", "m2m", "marian", "pegasus"]
B, S, T = 4, 21, 18
DTYPES = {mx.bfloat16: torch.bfloat16, mx.float16: torch.float16}


def mlx_model(folder, raw) -> Model:
    tensors = FAMILY.rename(open_checkpoint(folder))
    model = Model(Config.from_hub(raw, tensors))
    arrays = {name: np.concatenate(list(tensor.blocks())) for name, tensor in tensors.items()}
    model.load_weights([(name, to_mlx(array)) for name, array in arrays.items()])
    return model


def both(folder, raw, seed=0, **changes):
    """(torch model, MLX model) with the same weights; `changes` to tensors, by the end of the name."""
    reference = bart_checkpoints.torch_model(raw, seed)
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            for end, change in changes.items():
                if name.endswith(end):
                    tensor.copy_(change(tensor))
    checkpoints.save(folder, raw, bart_checkpoints.state_dict(reference))
    return reference, mlx_model(folder, raw)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    return both(tmp_path_factory.mktemp("bart"), VARIANTS[request.param])


@pytest.fixture
def bart(tmp_path):
    return both(tmp_path, VARIANTS["bart"])


def inputs(config: Config):
    """Source tokens, their mask (rows whole, padded on the right, on the left), decoder tokens."""
    rng = np.random.default_rng(0)
    mask = np.ones((B, S), bool)
    mask[1, 13:] = mask[2, :7] = mask[3, 1:] = False
    source = rng.integers(3, config.source_vocab_size - 3, (B, S))
    source[source == config.pad_token_id] = 2
    source[~mask] = config.pad_token_id
    target = rng.integers(3, config.vocab_size - 3, (B, T))
    target[target == config.pad_token_id] = 2
    target[:, 0] = config.decoder_start_token_id
    return source, mask, target


def reference_output(reference, source, mask, target):
    with torch.no_grad():
        return reference(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(mask).long(),
            decoder_input_ids=torch.tensor(target),
        )


def known(logits: np.ndarray, config: Config) -> np.ndarray:
    """The logits that both sides have: transformers bans Marian's padding later."""
    if not config.bans_padding:
        return logits
    return np.delete(logits, config.pad_token_id, axis=-1)


def cached_logits(model: Model, source, mask, target, blocks) -> np.ndarray:
    cache, parts, start = model.start(mx.array(source), mask), [], 0
    for width in blocks:
        tokens = target[:, start : start + width]
        positions = np.tile(np.arange(start, start + tokens.shape[1], dtype=np.int32), (B, 1))
        logits = model.decode(mx.array(tokens), positions, cache)
        parts.append(np.array(logits.astype(mx.float32)))
        start += width
    return np.concatenate(parts, axis=1)


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("blocks", [[T], [1] * T, [1, 5, 2, 7, 3]])
def test_logits_are_those_of_transformers(pair, blocks):
    reference, model = pair
    given = inputs(model.config)
    expected = reference_output(reference, *given).logits.numpy()
    logits = cached_logits(model, *given, blocks)
    assert_close(known(logits, model.config), known(expected, model.config))
    if model.config.bans_padding:
        assert (logits[..., model.config.pad_token_id] == -np.inf).all()


def test_the_encoders_output_is_that_of_transformers(pair):
    """Also without its last norm, or with the embedding's norm before the positions."""
    reference, model = pair
    source, mask, target = inputs(model.config)
    expected = reference_output(reference, source, mask, target).encoder_last_hidden_state.numpy()
    memory = np.array(model.encode(mx.array(source), mask))
    assert_close(memory[mask], expected[mask])


@pytest.mark.parametrize("name", ["m2m", "nllb, other padding"])
def test_m2m_counts_tokens_and_padding_ids_are_none(tmp_path, name):
    reference, model = both(tmp_path, VARIANTS[name])
    source, _, target = inputs(model.config)
    source[0, 5] = source[1, 4] = model.config.pad_token_id  # between tokens
    mask = np.ones_like(source, bool)
    expected = reference_output(reference, source, mask, target).logits.numpy()
    assert_close(cached_logits(model, source, mask, target, [T]), expected)


def test_m2m_has_no_last_position(tmp_path):
    reference, model = both(tmp_path, VARIANTS["m2m"])
    source, target = (np.random.default_rng(i).integers(3, 61, (B, 100)) for i in range(2))
    mask = np.ones_like(source, bool)
    expected = reference_output(reference, source, mask, target).logits.numpy()
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


@pytest.mark.parametrize("form", ["old", "bare"])
@pytest.mark.parametrize("name", KINDS)
def test_other_checkpoints_names_are_known(tmp_path, name, form):
    raw = VARIANTS[name]
    reference, model = both(tmp_path / "new", raw)
    state = bart_checkpoints.state_dict(reference, form)
    other = mlx_model(checkpoints.save(tmp_path / form, raw, state, kind="legacy"), raw)
    assert other.config == model.config
    ours, theirs = dict(flat_weights(model)), dict(flat_weights(other))
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(weight, theirs[name]) for name, weight in ours.items())


def test_own_vocabularies_are_told_by_their_weights(tmp_path):
    raw = VARIANTS["marian, own vocabularies"] | dict(vocab_size=40)  # of one size, to mix up
    reference, model = both(tmp_path / "new", raw)
    state = bart_checkpoints.state_dict(reference, "old")
    other = mlx_model(checkpoints.save(tmp_path / "old", raw, state), raw)
    given = inputs(model.config)
    expected = reference_output(reference, *given).logits.numpy()
    for found in (model, other):
        assert not found.config.shared_embedding and found.config.tied_head
        assert_close(
            known(cached_logits(found, *given, [T]), found.config), known(expected, found.config)
        )


def test_an_untied_head_is_kept(tmp_path):
    raw = VARIANTS["bart"]
    reference = bart_checkpoints.torch_model(raw)
    state = bart_checkpoints.state_dict(reference)
    state["lm_head.weight"] = torch.randn(61, 24)
    model = mlx_model(checkpoints.save(tmp_path, raw, state), raw)
    reference.lm_head.weight = torch.nn.Parameter(state["lm_head.weight"])
    given = inputs(model.config)
    expected = reference_output(reference, *given).logits.numpy()
    assert_close(cached_logits(model, *given, [T]), expected)


def test_unknown_tensors_and_configs_are_refused(tmp_path):
    raw = VARIANTS["bart"]
    state = bart_checkpoints.state_dict(bart_checkpoints.torch_model(raw))
    folder = checkpoints.save(
        tmp_path, raw, state | {"classification_head.dense.bias": torch.ones(2)}
    )
    with pytest.raises(InputError, match=r"unknown tensor classification_head.dense.bias"):
        FAMILY.rename(open_checkpoint(folder))
    for change, message in (
        (dict(model_type="led"), "a led model, not one of bart, mbart, m2m_100, marian, pegasus"),
        (dict(d_model=25), "d_model 25 is not for 2 heads"),
        (dict(activation_function="sine"), "unknown activation 'sine'"),
        (dict(pad_token_id=61), "pad_token_id is 61, but vocab_size only 61"),
        (dict(max_position_embeddings=None), "positions come from a table"),
    ):
        with pytest.raises(InputError, match=message):
            Model(Config.from_hub(raw | change, None))
    with pytest.raises(InputError, match="has no encoder_ffn_dim: not a BART-type model"):
        Config.from_hub({k: v for k, v in raw.items() if k != "encoder_ffn_dim"}, None)
    small = VARIANTS["marian, own vocabularies"] | dict(vocab_size=30)
    with pytest.raises(InputError, match="the encoder's vocabulary has only 30 pieces"):
        Config.from_hub(small, None)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_config_survives_its_file_and_follows_from_config_json_alone(name):
    config = Config.from_hub(VARIANTS[name], None)
    assert Config.from_dict(VARIANTS[name] | config.to_dict()) == config
    tensors = dict(flat_weights(Model(config)))
    assert Config.from_hub(VARIANTS[name], tensors) == config


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
        ("m2m", {}, [2]),
        ("marian", {}, [60]),
        ("pegasus", {}, [0]),
    ],
)
def test_rows_begin_as_in_transformers(tmp_path, name, changes, prefix):
    raw = VARIANTS[name] | changes
    assert Model(Config.from_hub(raw, None)).prefix([7]) == prefix
    reference = bart_checkpoints.torch_model(raw)
    checkpoints.save(tmp_path, raw, bart_checkpoints.state_dict(reference))
    reference = type(reference).from_pretrained(tmp_path)
    generated = reference.generate(torch.tensor([[7, 8, 2]]), max_new_tokens=2, num_beams=1)
    assert generated[0, : len(prefix)].tolist() == prefix


def test_a_missing_start_token_is_the_kinds_own():
    """Unlike one that is null."""
    for name, start in (("bart", 2), ("mbart", 0), ("m2m", 2), ("pegasus", 0)):
        raw = {k: v for k, v in VARIANTS[name].items() if k != "decoder_start_token_id"}
        assert Config.from_hub(raw, None).decoder_start_token_id == start


def test_ends_of_sequence_are_those_of_the_config():
    raw = VARIANTS["marian"]
    assert Config.from_hub(raw | dict(eos_token_id=[59, 2]), None).eos_token_ids == (59, 2)
    assert Config.from_hub(raw | dict(eos_token_id=43), None).eos_token_ids == (43,)


def test_ranks_split_the_heads_and_units_of_both_stacks():
    config = Config.from_hub(VARIANTS["bart"], None)  # 2 and 4 heads, 40 and 36 units
    check_ranks(config, None, 2)
    with pytest.raises(InputError, match="cannot be split among 4 ranks; 2 ranks can"):
        check_ranks(config, None, 4)


# ---------------------------------------------------------------------------------------------
# The cache


def test_rejected_tokens_leave_no_trace(pair):
    """Blocks of which each row keeps another part, and what fills rows up; then as rows alone."""
    reference, model = pair
    source, mask, target = inputs(model.config)
    cache = model.start(mx.array(source), mask)
    rng, written = np.random.default_rng(1), [[] for _ in range(B)]
    expected = reference_output(reference, source, mask, target).logits.numpy()
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
    expected = reference_output(reference, source, mask, target).logits.numpy()
    found = cached_logits(model, source, mask, target, [60, 4])
    assert_close(known(found, model.config), known(expected, model.config))
    with pytest.raises(InputError, match="a source of 65 tokens, and the model knows 64 positions"):
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
    expected = known(reference_output(reference, *given).logits.numpy(), model.config)
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
    logits = known(cached_logits(half, source, mask, target, [T]), model.config)
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


def decode(model: Model, sources, draft=None, num_draft=0, max_tokens=20, batch_size=16):
    """What the rows' tokens are behind their prefixes, and how many steps kept a part of a draft."""
    rows = decode_drafted(
        model, draft, sources, batch_size, num_draft=num_draft, max_tokens=max_tokens
    )
    return [row.generated for row in rows], partial_steps(rows, num_draft)


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


COUNT, MOST = 48, 14
# With these a random model's text hangs on its source and on what was written; without, on biases.
LIVELY = {
    "fc2.weight": lambda w: 3 * w,
    "out_proj.weight": lambda w: 3 * w,
    "q_proj.weight": lambda w: 3 * w,
    "k_proj.weight": lambda w: 3 * w,
    "bias": lambda w: w / 5,
}


@pytest.mark.parametrize(
    ("name", "forced"), [(name, False) for name in VARIANTS] + [(name, True) for name in KINDS]
)
def test_texts_are_those_of_transformers_and_of_plain_decoding(tmp_path, name, forced):
    """Batches with rows that come and go; ends of sequence that do occur, two of them; rejections."""
    raw = VARIANTS[name] | (dict(forced_bos_token_id=7) if forced else {})
    reference, model = both(tmp_path, raw, seed=1, **LIVELY)
    config = model.config
    sources = prompts(config, COUNT)
    ordinary, _ = decode(model, sources, max_tokens=MOST)
    usual = np.bincount(np.concatenate(ordinary), minlength=config.vocab_size).argsort()[::-1]
    ends = tuple(int(token) for token in usual[4:7] if token != 7)[:2]
    config = model.config = dataclasses.replace(config, eos_token_ids=ends)
    bans = dict(bad_words_ids=[[config.pad_token_id]]) if config.bans_padding else {}
    expected = transformers_texts(reference, config, sources, MOST, **bans)
    plain, _ = decode(model, sources, max_tokens=MOST)
    assert plain == expected
    assert len({tuple(text) for text in plain}) > 8
    assert any(text[-1] in ends and len(text) < MOST for text in plain)
    draft, partly = disturbed(model, 0.08), 0
    for num_draft in (1, 4):
        texts, parts = decode(model, sources, draft, num_draft, MOST)
        assert texts == plain
        partly += parts
    assert partly > 5


def test_marian_never_writes_padding(tmp_path):
    raw = VARIANTS["marian"]

    def favoured(bias):
        bias = bias.clone()
        bias[0, raw["pad_token_id"]] = 100
        return bias

    reference, model = both(tmp_path, raw, **{"final_logits_bias": favoured})
    sources = prompts(model.config, 8)
    texts, _ = decode(model, sources, max_tokens=MOST)
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
