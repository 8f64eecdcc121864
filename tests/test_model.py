"""The model against transformers, and the cache's rules."""

import shutil

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers.models import (
    B,
    S,
    T,
    cached_logits,
    mlx_model,
    padded_inputs,
    random_model,
    reference_logits,
)
from helpers.oracle import flat_weights
from helpers.programs import DEMO
from transformers import T5ForConditionalGeneration

from convert import convert
from errors import InputError
from families.loading import build, load
from families.t5 import FAMILY, Config
from model import T5
from speculative.cache import MASKED


@pytest.fixture(scope="module", params=checkpoints.VARIANTS)
def pair(request, tmp_path_factory):
    """(torch model, MLX model) with the same weights."""
    raw = checkpoints.VARIANTS[request.param]
    reference = checkpoints.torch_model(raw)
    folder = tmp_path_factory.mktemp(request.param)
    checkpoints.save(folder, raw, checkpoints.state_dict(reference, raw))
    return reference, mlx_model(folder, raw)


@pytest.mark.parametrize("block", [T, 1, 7])
def test_logits_are_those_of_transformers(pair, block):
    reference, model = pair
    inputs = padded_inputs(model.config.vocab_size)
    expected = reference_logits(reference, *inputs)
    logits = cached_logits(model, *inputs, block)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_is_close_to_transformers(pair, dtype):
    reference, model = pair
    inputs = padded_inputs(model.config.vocab_size)
    expected = reference_logits(reference, *inputs)
    half = T5(model.config)
    half.load_weights([(name, w.astype(dtype)) for name, w in flat_weights(model)])
    logits = cached_logits(half, *inputs, 7)
    error = np.abs(logits - expected).mean() / np.abs(expected).mean()
    assert error < (0.1 if dtype == mx.bfloat16 else 0.02)


@pytest.mark.parametrize(
    "factors",
    [
        {"wo.weight": 3e4},  # the feed-forward product and then the residual stream overflow
        # Attention overflows, and then its sum; transformers clamps both in the first layers.
        {
            "block.0.layer.0.SelfAttention.v.weight": 200,
            "block.0.layer.0.SelfAttention.o.weight": 2000,
            "shared.weight": 50,
        },
        {
            "block.0.layer.1.EncDecAttention.v.weight": 200,
            "block.0.layer.1.EncDecAttention.o.weight": 2000,
        },
    ],
)
def test_float16_is_finite_where_transformers_is(tmp_path, factors):
    raw = checkpoints.VARIANTS["t5"] | {"vocab_size": 1024}
    state = checkpoints.state_dict(checkpoints.torch_model(raw), raw)
    for name in state:
        for end, factor in factors.items():
            if name.endswith(end):
                state[name] *= factor
    folder = checkpoints.save(tmp_path / "huge", raw, state)
    reference = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float16).eval()
    inputs = padded_inputs(raw["vocab_size"])
    assert np.isfinite(reference_logits(reference, *inputs)).all()
    for name in ("spiece.model", "tokenizer_config.json"):
        shutil.copyfile(DEMO / "target" / name, folder / name)
    model, _ = load(convert(str(folder), tmp_path / "out", dtype="float16"))
    assert np.isfinite(cached_logits(model, *inputs, 7)).all()
    assert model.encode(mx.array(inputs[0]), inputs[1]).dtype == mx.float16


def test_padding_does_not_reach_the_logits():
    model, source, mask, target = random_model(), *padded_inputs(61)
    expected = cached_logits(model, source, mask, target, 5)
    changed = np.where(mask, source, 60 - source)
    assert np.array_equal(cached_logits(model, changed, mask, target, 5), expected)


def test_rejected_and_dead_slots_are_not_seen():
    """A cache that kept parts of ragged blocks gives the logits of one that never strayed."""
    model, rng = random_model(), np.random.default_rng(1)
    source = rng.integers(3, 61, (B, S))
    rows = rng.integers(3, 61, (B, 400))
    cache, lengths = model.start(mx.array(source)), np.zeros(B, int)
    partial = 0
    while lengths.min() < 60:
        k = rng.integers(1, 8)
        keeps = rng.integers(0, k + 1, B)
        tokens = rng.integers(3, 61, (B, k))  # right up to what is kept, then noise
        for b in range(B):
            tokens[b, : keeps[b]] = rows[b, lengths[b] : lengths[b] + keeps[b]]
        positions = (lengths[:, None] + np.arange(k)).astype(np.int32)
        model.decode(mx.array(tokens), positions, cache)
        cache.keep(keeps)
        partial += ((keeps > 0) & (keeps < k)).sum()
        lengths += keeps
        assert (cache.lengths == lengths).all()
    assert partial > 10
    assert cache.cursor > lengths.max()  # the batch did leave dead slots behind
    next_tokens = mx.array(rows[np.arange(B), lengths][:, None])
    logits = model.decode(next_tokens, lengths[:, None].astype(np.int32), cache)
    for b in range(B):
        n = lengths[b] + 1
        alone = model.start(mx.array(source[b : b + 1]))
        expected = model.decode(mx.array(rows[b : b + 1, :n]), np.arange(n)[None], alone)[0, -1]
        assert np.abs(logits[b, 0] - expected).max() < 1e-4 * np.abs(expected).max()


def test_what_cross_attention_reads_lies_side_by_side():
    """Else MLX's processor backend copies it in every step."""
    cache = random_model().start(mx.array([[5, 6, 7, 1], [8, 9, 1, 1]]))
    for of_layer in cache.cross:
        mx.eval(of_layer)
        assert all(memoryview(x).c_contiguous for x in of_layer)


def test_fillers_leave_no_trace():
    model, rng = random_model(), np.random.default_rng(2)
    source, tokens = rng.integers(3, 61, (1, S)), rng.integers(3, 61, (1, 8))
    plain = model.start(mx.array(source))
    expected = model.decode(mx.array(tokens), np.arange(8)[None], plain)[:, -1]
    cache = model.start(mx.array(source))
    filled = np.array([[5, 5, *tokens[0, :7]]])
    positions = np.array([[MASKED, MASKED, *range(7)]])
    model.decode(mx.array(filled), positions, cache)
    cache.keep(np.array([9]))
    assert cache.lengths.tolist() == [7]
    logits = model.decode(mx.array(tokens[:, 7:]), np.array([[7]]), cache)[:, -1]
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("raw", "scaled"),
    [
        ({"model_type": "t5"}, True),
        ({"model_type": "t5", "tie_word_embeddings": True}, True),
        ({"model_type": "t5", "tie_word_embeddings": False}, False),
        ({"model_type": "umt5", "tie_word_embeddings": False}, False),
        ({"model_type": "mt5", "tie_word_embeddings": True}, False),
        # As transformers 5 writes a v1.1 model.
        ({"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
    ],
)
def test_output_scaling_follows_the_config(raw, scaled):
    assert Config.from_hub(checkpoints.SMALL | raw, []).scale_decoder_outputs is scaled


def test_defaults_of_old_configs():
    keys = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers")
    raw = {key: checkpoints.SMALL[key] for key in keys}
    config = Config.from_hub(raw | {"output_past": True}, [])
    assert config.num_decoder_layers == config.num_layers
    assert config.relative_attention_num_buckets == 32
    assert config.relative_attention_max_distance == 128
    assert (config.pad_token_id, config.eos_token_ids, config.decoder_start_token_id) == (
        0,
        (1,),
        0,
    )
    assert config.activation == "relu"


def test_gated_weights_mean_the_tanh_gelu_whatever_the_config_says():
    raw = checkpoints.SMALL | {"feed_forward_proj": "gelu"}
    gated = Config.from_hub(raw, ["decoder.layers.0.feed_forward.gate.weight"])
    assert (gated.gated, gated.activation) == (True, "gelu_new")
    plain = Config.from_hub(raw, [])
    assert (plain.gated, plain.activation) == (False, "gelu")


def test_config_survives_its_file():
    config = Config.from_hub(checkpoints.VARIANTS["madlad"], ["head.weight"])
    assert Config.from_dict(config.to_dict() | {"unknown": 1}) == config
    assert config.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("decoder.norm.weight"), "Missing 1 parameters: decoder.norm.weight"),
        (lambda w: w.update({"stranger": (3,)}), "1 parameters not in model: stranger"),
        (
            lambda w: w.update({"embedding.weight": (61, 25)}),
            r"Expected shape \(61, 24\) but received shape \(61, 25\) for parameter embedding.weight",
        ),
    ],
)
def test_wrong_weights_are_named(change, message):
    model = random_model()
    shapes = {name: weight.shape for name, weight in flat_weights(model)}
    build(FAMILY, model.config, shapes)
    change(shapes)
    with pytest.raises(InputError, match=message):
        build(FAMILY, model.config, shapes)


def test_unknown_activation_is_named():
    config = Config.from_hub(checkpoints.SMALL | {"feed_forward_proj": "gated-swoosh"}, [])
    with pytest.raises(InputError, match="unknown activation 'swoosh'"):
        T5(config)


def test_empty_source_is_refused():
    with pytest.raises(InputError, match="without a token"):
        random_model().start(mx.array([[3], [0]]), np.array([[True], [False]]))
