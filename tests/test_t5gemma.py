"""T5Gemma: logits and texts against transformers, on small random models."""

import copy
import dataclasses
import itertools

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import t5gemma_checkpoints as t5gemma
from helpers.decoding import decode_with, ragged_prompts
from helpers.models import (
    B,
    S,
    T,
    cached_logits,
    padded_inputs,
    reference_logits,
    reference_texts,
    until,
)
from helpers.oracle import flat_weights
from helpers.t5gemma_checkpoints import SLIDING, VARIANTS, mlx_model, random_model, raw_config

from errors import InputError
from families.t5gemma import FAMILY, Norm, T5Gemma, embed
from speculative.cache import MASKED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request):
    """(torch model, MLX model) with the same weights."""
    raw = VARIANTS[request.param]
    reference = t5gemma.torch_model(raw)
    return reference, mlx_model(reference, raw)


def in_dtype(model: T5Gemma, dtype: mx.Dtype) -> T5Gemma:
    """As conversion would write it."""
    other = T5Gemma(model.config)
    exact = FAMILY.float32 if dtype == mx.float16 else ()
    weights = [
        (n, w.astype(mx.float32 if n.endswith(exact) else dtype)) for n, w in flat_weights(model)
    ]
    other.load_weights(weights)
    return other


def tokens_and_positions(first: int, tokens) -> tuple[mx.array, np.ndarray]:
    tokens = np.asarray(tokens)
    positions = np.arange(first, first + tokens.shape[1], dtype=np.int32)
    return mx.array(tokens), np.tile(positions, (len(tokens), 1))


# ---------------------------------------------------------------------------------------------
# Logits


@pytest.mark.parametrize("block", [T, 1, 7])
def test_logits_are_those_of_transformers(pair, block):
    reference, model = pair
    inputs = padded_inputs(61)
    expected = reference_logits(reference, *inputs)
    logits = cached_logits(model, *inputs, block)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_about_as_close_as_that_of_transformers(pair, dtype):
    reference, model = pair
    inputs = padded_inputs(61)
    expected = reference_logits(reference, *inputs)
    theirs = reference_logits(copy.deepcopy(reference).to(getattr(torch, dtype)), *inputs)
    ours = cached_logits(in_dtype(model, getattr(mx, dtype)), *inputs, 7)
    assert np.isfinite(ours).all()
    assert np.abs(ours - expected).mean() <= 1.5 * np.abs(theirs - expected).mean()


@pytest.mark.parametrize(
    "factors",
    [
        {"embed_tokens": 6e5},  # the residual stream
        {"gate_proj": 3e3, "up_proj": 3e3},  # the product that goes into the last projection
        {"v_proj": 500, "o_proj": 5000},  # what attention returns
        {"q_proj": 1e3, "k_proj": 1e3},  # scores, before the cap
    ],
)
def test_float16_stays_finite_where_values_outgrow_it(factors):
    reference = t5gemma.torch_model(VARIANTS["t5gemma"])
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            for part, factor in factors.items():
                if part in name:
                    weight *= factor
    model = in_dtype(mlx_model(reference, VARIANTS["t5gemma"]), mx.float16)
    assert np.isfinite(cached_logits(model, *padded_inputs(61), 7)).all()


def test_padding_does_not_reach_the_logits():
    """Large scores under a low cap: a cap after the mask would let padding in again."""
    model, (source, mask, target) = random_model(), padded_inputs(61)
    expected = cached_logits(model, source, mask, target, 5)
    changed = np.where(mask, source, 60 - source)
    assert np.array_equal(cached_logits(model, changed, mask, target, 5), expected)


def test_small_norm_weights_are_not_lost_in_bfloat16():
    """1 + 0.003 is 1 in bfloat16, where numbers above 1 are 0.008 apart."""
    norm = Norm(4096, 1e-6)
    norm.weight = mx.full((4096,), 0.003, mx.bfloat16)
    x = mx.random.normal((64, 4096), key=mx.random.key(0)).astype(mx.bfloat16)
    y = norm(x)
    assert y.dtype == mx.bfloat16
    x, y = np.array(x.astype(mx.float32)), np.array(y.astype(mx.float32))
    plain = x / np.sqrt((x**2).mean(axis=1, keepdims=True))
    assert abs((y * plain).sum() / (plain**2).sum() - 1.003) < 0.0005


def test_embeddings_are_scaled_by_a_number_of_the_models_type():
    """The root of 24 is 4.899, and 4.906 in bfloat16."""
    reference = t5gemma.torch_model(VARIANTS["t5gemma"])
    model = in_dtype(mlx_model(reference, VARIANTS["t5gemma"]), mx.bfloat16)
    table = reference.to(torch.bfloat16).model.encoder.embed_tokens.weight
    expected = (table * torch.tensor(24**0.5, dtype=torch.bfloat16)).float().detach().numpy()
    embedded = embed(model.encoder.embedding, mx.arange(61))
    assert embedded.dtype == mx.bfloat16
    assert np.array_equal(np.array(embedded.astype(mx.float32)), expected)


def test_the_sources_keys_have_no_positions(monkeypatch):
    """Cross-attention sees a set: what the encoder gives, in another order, gives the same logits."""
    model, rng = random_model(), np.random.default_rng(3)
    source, target = rng.integers(3, 61, (2, 9)), rng.integers(3, 61, (2, 6))
    memory, order = model.encode(mx.array(source), np.ones((2, 9), bool)), rng.permutation(9)
    expected = model.decode(*tokens_and_positions(0, target), model.start(mx.array(source)))
    monkeypatch.setattr(model, "encode", lambda *_: memory[:, mx.array(order)])
    logits = model.decode(*tokens_and_positions(0, target), model.start(mx.array(source)))
    assert np.abs(np.array(logits - expected)).max() < 1e-5


# ---------------------------------------------------------------------------------------------
# Windows


def one_windowed_layer(window: int) -> T5Gemma:
    """One layer each, windowed; the decoder does not look at the source."""
    raw = raw_config(num_hidden_layers=1, sliding_window=window, layer_types=[SLIDING])
    model = mlx_model(t5gemma.torch_model(raw), raw)
    out = model.decoder.layers[0].cross_attention.out
    out.weight = mx.zeros(out.weight.shape)
    return model


def moved(before: mx.array, after: mx.array) -> list[int]:
    """The positions at which [1, T, D] differ."""
    return np.flatnonzero(np.abs(np.array(before - after))[0].max(axis=-1) > 1e-6).tolist()


def test_the_encoders_window_is_inclusive_on_both_sides():
    model, source = one_windowed_layer(3), np.arange(5, 25)[None]
    changed = np.where(np.arange(20) == 9, 40, source)
    whole = np.ones((1, 20), bool)
    before, after = (model.encode(mx.array(tokens), whole) for tokens in (source, changed))
    assert moved(before, after) == [6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("block", [20, 1, 3])
def test_the_decoders_window_counts_the_token_itself(block):
    model, target = one_windowed_layer(3), np.arange(5, 25)[None]
    changed = np.where(np.arange(20) == 9, 40, target)

    def logits(tokens: np.ndarray) -> mx.array:
        cache = model.start(mx.array([[7, 8]]))
        starts = range(0, 20, block)
        parts = [tokens_and_positions(at, tokens[:, at : at + block]) for at in starts]
        return mx.concatenate([model.decode(*part, cache) for part in parts], axis=1)

    assert moved(logits(target), logits(changed)) == [9, 10, 11]


def test_the_decoders_window_counts_positions_not_slots():
    """Between a token and those that see it lie slots of rejected ones."""
    model, tokens = one_windowed_layer(3), np.arange(5, 12)[None]
    straight = model.start(mx.array([[7, 8]]))
    expected = model.decode(*tokens_and_positions(0, tokens), straight)[:, -1]
    cache = model.start(mx.array([[7, 8], [9, 10]]))
    for at in range(6):  # the second row keeps all that is drafted, the first one of four tokens
        block = np.array([[tokens[0, at], 50, 51, 52], [20, 21, 22, 23]])
        positions = np.array([[at], [4 * at]]) + np.arange(4)
        model.decode(mx.array(block), positions.astype(np.int32), cache)
        cache.keep(np.array([1, 4]))
    assert cache.cursor == 24
    last = np.array([[6], [24]], np.int32)
    logits = model.decode(mx.array([[int(tokens[0, 6])], [30]]), last, cache)[0, -1]
    assert np.abs(np.array(logits - expected[0])).max() < 1e-5


# ---------------------------------------------------------------------------------------------
# The cache


def test_rejected_and_masked_slots_are_not_seen():
    """Ragged blocks, some of whose tokens are rejected or mere fillers, leave the logits of rows that
    were decoded alone and straight; windows are exceeded."""
    model, rng = random_model(), np.random.default_rng(1)
    source, rows = rng.integers(3, 61, (B, S)), rng.integers(3, 61, (B, 200))
    cache, lengths, partial = model.start(mx.array(source)), np.zeros(B, int), 0
    while lengths.min() < 60:
        k = rng.integers(1, 8)
        first, last = rng.integers(0, k, B), rng.integers(1, k + 1, B)  # [first, last) is no filler
        keeps = rng.integers(0, k + 1, B)
        tokens, positions = rng.integers(3, 61, (B, k)), np.full((B, k), MASKED, np.int32)
        for b in range(B):
            real = np.arange(first[b], last[b])
            positions[b, real] = lengths[b] + np.arange(len(real))
            right = real[real < keeps[b]]
            tokens[b, right] = rows[b, lengths[b] : lengths[b] + len(right)]
        logits = model.decode(mx.array(tokens), positions, cache)
        assert np.isfinite(np.array(logits)).all()
        cache.keep(keeps)
        kept = np.array([max(0, min(keeps[b], last[b]) - first[b]) for b in range(B)])
        partial += ((kept > 0) & (kept < last - first)).sum()
        lengths += kept
        assert (cache.lengths == lengths).all()
    assert partial > 10 and cache.cursor > lengths.max()
    next_tokens = mx.array(rows[np.arange(B), lengths][:, None])
    logits = model.decode(next_tokens, lengths[:, None].astype(np.int32), cache)
    for b in range(B):
        alone = model.start(mx.array(source[b : b + 1]))
        tokens = rows[b : b + 1, : lengths[b] + 1]
        expected = model.decode(*tokens_and_positions(0, tokens), alone)[0, -1]
        assert np.abs(logits[b, 0] - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_source_is_as_long_as_the_model_knows_and_no_longer():
    model = random_model()
    assert model.config.max_positions == 500
    cache = model.start(mx.full((1, 64), 5))
    assert np.isfinite(np.array(cache.cross[0][0])).all()
    with pytest.raises(InputError, match="a source of 65 tokens; the model reads 64 at most"):
        model.start(mx.full((1, 65), 5))
    with pytest.raises(InputError, match="without a token"):
        model.start(mx.array([[3], [0]]), np.array([[True], [False]]))


# ---------------------------------------------------------------------------------------------
# Texts

TEXTS, LENGTH = 12, 16


def sources_and_texts(reference, model) -> tuple[list[list[int]], list[list[int]]]:
    """Sources, and transformers' texts for them; the model's ends of sequence become two tokens of
    these, such that texts are of many lengths."""
    sources = ragged_prompts(TEXTS, 61)
    free = reference_texts(reference, sources, LENGTH, [10**6])  # which never comes
    pairs = itertools.combinations(sorted({token for text in free for token in text}), 2)
    eos = max(
        (list(pair) for pair in pairs), key=lambda pair: len({len(until(pair, t)) for t in free})
    )
    model.config = dataclasses.replace(model.config, eos_token_ids=tuple(eos))
    expected = [until(eos, text) for text in free]
    assert len({len(text) for text in expected}) > 3
    return sources, expected


def test_texts_are_those_of_transformers(pair):
    reference, model = pair
    sources, expected = sources_and_texts(reference, model)
    rows = decode_with(model, None, sources, 7, max_tokens=LENGTH, num_draft=0)
    assert [row.generated for row in rows] == expected
