"""Every family beside transformers, by the contract: logits, half precision, the cache, texts."""

import copy
import dataclasses
import itertools
import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints, t5gemma2_checkpoints, t5gemma_checkpoints
from helpers.decoding import decode_with, ragged_prompts
from helpers.models import (
    B,
    T,
    assert_close,
    cached_logits,
    reference_logits,
    reference_texts,
    rows_of,
    until,
)
from helpers.pairs import RAW, VARIANTS, both, in_dtype, inputs, known
from transformers.activations import ACT2CLS, ACT2FN

from speculative.checkpoints.folder import open_checkpoint
from speculative.common.errors import InputError
from speculative.models.encoder_decoder import activation
from speculative.models.registry import family_of
from speculative.step.cache import MASKED


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request):
    """The variant's config.json, transformers' model and ours, of the same weights."""
    return RAW[request.param], *both(RAW[request.param])


@pytest.mark.parametrize("blocks", [1, [1, 5, 2, 7, 15]])
def test_logits_are_those_of_transformers(pair, blocks):
    _, reference, model = pair
    given = inputs(model.config)
    logits, expected = cached_logits(model, *given, blocks), reference_logits(reference, *given)
    assert_close(known(logits, model.config), known(expected, model.config))
    if getattr(model.config, "bans_padding", False):
        assert (logits[..., model.config.pad_token_id] == -np.inf).all()


def test_a_config_survives_its_file_and_follows_from_config_json_alone(pair):
    raw, _, model = pair
    values = json.loads(json.dumps(raw | dataclasses.asdict(model.config)))
    assert type(model.config).from_dict(values) == model.config
    assert family_of(raw).config.from_hub(raw, None) == model.config


def test_wrappers_prefixes_and_unknown_tensors_are_left_out_and_named(pair, tmp_path):
    """Each prefix with every third variant."""
    raw, reference, _ = pair
    wrappers = ("module._orig_mod.", "pretrained_model.", "model.")
    wrapper = wrappers[list(RAW.values()).index(raw) % 3]

    def read(name, state):
        folder = checkpoints.save(tmp_path / name, raw, state, kind="zip")
        renamed = family_of(raw).rename(open_checkpoint(folder))
        return {name: np.concatenate([*t.blocks()], None) for name, t in renamed.items()}

    state = reference.state_dict()
    wrapped = {f"{wrapper}{name}": tensor for name, tensor in state.items()}
    step = {"v_head.step": torch.tensor([7])}
    with pytest.warns(match="has: v_head.step"), pytest.warns(match=f"'{wrapper[:6]}.*' in"):
        found = read("wrapped", wrapped | step)
    np.testing.assert_equal(found, read("plain", state))


@pytest.mark.parametrize("name", sorted(ACT2CLS))
def test_activations_are_those_of_transformers(name):
    if name in ("prelu", "xielu"):  # they have weights
        with pytest.raises(InputError, match=f"unknown activation '{name}'"):
            activation(name)
        return
    x = np.linspace(-12, 12, 999, dtype=np.float32)
    expected = ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(np.array(activation(name)(mx.array(x))), expected, atol=1e-5)


def attention_to_sources(model, source, mask, target, heads) -> dict[int, np.ndarray]:
    _, scores = model.attention(rows_of(source, mask), mx.array(target), heads)
    assert {x.dtype for x in scores.values()} == {mx.float32}
    return {layer: np.array(mx.softmax(x, axis=-1)) for layer, x in scores.items()}


def test_attention_to_the_source_is_that_of_transformers(pair):
    """Where it has one softmax for text and source (T5Gemma 2), the part of the source."""
    _, reference, model = pair
    source, mask, target = inputs(model.config)
    given = dict(input_ids=source, attention_mask=mask.astype(int), decoder_input_ids=target)
    theirs = copy.deepcopy(reference)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        output = theirs(**{k: torch.tensor(v) for k, v in given.items()}, output_attentions=True)
    every = dict.fromkeys(range(len(model.decoder.layers)))
    weights = attention_to_sources(model, source, mask, target, every)
    for ours, expected in zip(weights.values(), output.cross_attentions, strict=True):
        share = (expected / expected.sum(-1, keepdim=True)).numpy()
        assert np.allclose(ours, share, rtol=1e-3, atol=1e-5)
        assert np.allclose(ours.sum(-1), 1, atol=1e-6)
    (some,) = attention_to_sources(model, source, mask, target, {1: [1, 0]}).values()
    assert np.allclose(some, weights[1][:, [1, 0]], atol=1e-6)
    for dtype in (mx.bfloat16, mx.float16):
        half = attention_to_sources(in_dtype(model, dtype), source, mask, target, every)
        for ours, expected in zip(half.values(), weights.values(), strict=True):
            assert np.allclose(ours.sum(-1), 1, atol=1e-5)
            assert np.abs(ours - expected).mean() < 0.02


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_transformers(pair, dtype):
    """Where scores are large, as close as transformers' own."""
    _, reference, model = pair
    given = inputs(model.config)
    expected = known(reference_logits(reference, *given), model.config)
    half = in_dtype(model, getattr(mx, dtype))

    def error(logits: np.ndarray) -> float:
        return np.abs(known(logits, model.config) - expected).mean() / np.abs(expected).mean()

    limit = {"bfloat16": 0.1, "float16": 0.02}[dtype]
    own_error = error(cached_logits(half, *given, 7))
    if own_error >= limit:
        theirs = copy.deepcopy(reference).to(getattr(torch, dtype))
        assert own_error <= 1.5 * error(reference_logits(theirs, *given))


def test_rejected_tokens_and_fillers_leave_no_trace(pair):
    """Blocks of which each row keeps another part, fillers before and behind; then as rows alone."""
    _, reference, model = pair
    source, mask, target = inputs(model.config)
    expected = known(reference_logits(reference, source, mask, target), model.config)
    cache, rng = model.start(rows_of(source, mask)), np.random.default_rng(1)
    written, rejected = np.zeros(B, int), 0
    while written.min() < 20:
        width = int(rng.integers(2, 7))
        before, behind = rng.integers(0, 2, (2, B))  # fillers; between them tokens, the first right
        right = np.minimum(rng.integers(0, width + 1, B), width - before - behind)
        right = np.minimum(right, T - written)
        column = np.arange(width) - before[:, None]  # [B, width]
        filler = (column < 0) | (np.arange(width) >= width - behind[:, None])
        positions = np.where(filler, MASKED, written[:, None] + column).astype(np.int32)
        tokens = rng.integers(3, 38, (B, width))
        for b in range(B):
            tokens[b, before[b] :][: right[b]] = target[b, written[b] :][: right[b]]
        logits = known(np.array(model.decode(mx.array(tokens), positions, cache)), model.config)
        cache.keep(before + right)
        for b, n in enumerate(right):
            if n:
                accepted = logits[b, before[b] : before[b] + n]
                assert_close(accepted, expected[b, written[b] : written[b] + n])
        written += right
        rejected += (~filler).sum() - right.sum()
        assert (cache.lengths == written).all()
    assert rejected > 10 and cache.cursor > written.max()


def choose_ends(texts: list[list[int]]) -> tuple[int, int]:
    """Two tokens with which as ends of sequence the texts are of many lengths."""
    pairs = itertools.combinations(sorted({token for text in texts for token in text}), 2)
    return max(pairs, key=lambda pair: len({len(until(list(pair), text)) for text in texts}))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*t5gemma_checkpoints.VARIANTS, *t5gemma2_checkpoints.VARIANTS])
def test_texts_are_those_of_transformers(name):
    """Batches with rows that come and go, texts that end at either of two ends; T5's: test_generate.py,
    BART's: test_bart.py."""
    reference, model = both(RAW[name], 1)
    sources = ragged_prompts(24, model.config.vocab_size)
    free = reference_texts(reference, sources, 16, [10**6])
    ends = choose_ends(free)
    model.config = dataclasses.replace(model.config, eos_token_ids=ends)
    expected = [until(list(ends), text) for text in free]
    rows = decode_with(model, None, sources, 7, max_tokens=16, num_draft=0)
    assert [row.generated for row in rows] == expected
    assert len({*map(len, expected)}) > 1 and len({*map(tuple, expected)}) > 6


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        # The feed-forward product and then the residual stream overflow.
        ("t5", {"wo.weight": 3e4}),
        # Attention overflows; transformers clamps it in the first layers.
        ("t5", {"EncDecAttention.v.weight": 200, "EncDecAttention.o.weight": 2000}),
        # transformers clips in the encoder, too, there after the norm, where it is too late for BART.
        *((kind, {"fc2.weight": 3e4}) for kind in ("bart", "mbart", "m2m", "marian", "pegasus")),
        ("t5gemma", {"embed_tokens.weight": 6e5}),  # the residual stream
        # The product that goes into the last projection, what attention returns, scores before the cap
        ("t5gemma", {"gate_proj.weight": 3e3, "up_proj.weight": 3e3}),
        ("t5gemma", {"v_proj.weight": 500, "o_proj.weight": 5000}),
        ("t5gemma", {"q_proj.weight": 1e3, "k_proj.weight": 1e3}),
    ],
)
def test_float16_stays_finite_where_values_outgrow_it(name, factors):
    changes = {end: lambda w, factor=factor: w * factor for end, factor in factors.items()}
    raw = RAW[name]
    model = in_dtype(both(raw, changes=changes)[1], mx.float16)
    source, mask, target = inputs(model.config)
    assert np.isfinite(np.array(model.encode(mx.array(source), mask).astype(mx.float32))).all()
    logits = cached_logits(model, source, mask, target, 7)
    assert np.isfinite(known(logits, model.config)).all()


@pytest.mark.parametrize("name", ["t5", "bart", "t5gemma", "t5gemma2"])
def test_sources_without_a_token_or_beyond_the_limit_are_refused(name):
    model = both(RAW[name])[1]
    with pytest.raises(InputError, match="without a token"):
        model.start([[3], []])
    if (most := model.config.max_prompt_tokens) is not None:
        model.start([[5] * most])
        with pytest.raises(InputError, match=f"a source of {most + 1} tokens; the model reads"):
            model.start([[5] * (most + 1)])


@pytest.mark.usefixtures("cpu")
def test_padding_does_not_reach_the_logits(pair):
    """Large scores under a low cap: a cap after the mask would let padding in again."""
    _, _, model = pair
    source, mask, target = inputs(model.config)
    if getattr(model.config, "positions", "") == "counted":
        return  # whose positions are counted by ids
    expected = cached_logits(model, source, mask, target, 5)
    changed = np.where(mask, source, 3)
    assert np.array_equal(cached_logits(model, changed, mask, target, 5), expected)
