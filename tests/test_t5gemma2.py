"""T5Gemma 2's text against transformers: logits, texts, windows, conversion."""

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints, models, t5gemma_checkpoints
from helpers import t5gemma2_checkpoints as t5gemma2
from helpers.decoding import decode_with, ragged_prompts
from helpers.models import (
    assert_close,
    cached_logits,
    padded_inputs,
    reference_logits,
    reference_texts,
)
from helpers.oracle import endless, flat_weights
from helpers.t5gemma2_checkpoints import VARIANTS, mlx_model, raw_config

from checkpoints.quantization import Quantization
from convert import convert, read_config
from errors import InputError
from families.loading import load
from families.t5gemma2 import Config, T5Gemma2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request):
    """(torch model, MLX model) with the same weights."""
    raw = VARIANTS[request.param]
    reference = t5gemma2.torch_model(raw)
    return reference, mlx_model(reference, raw)


@pytest.mark.parametrize("blocks", [30, 1, [1, 5, 2, 7, 15]])
def test_logits_are_those_of_transformers(pair, blocks):
    reference, model = pair
    inputs = padded_inputs(61)
    assert_close(cached_logits(model, *inputs, blocks), reference_logits(reference, *inputs))


def test_texts_are_those_of_transformers(pair):
    reference, model = pair
    endless(model)
    sources = ragged_prompts(12, 61)
    expected = reference_texts(reference, sources, 16, [10**6])
    rows = decode_with(model, None, sources, 5, max_tokens=16, num_draft=0)
    assert [row.generated for row in rows] == expected
    assert len({tuple(text) for text in expected}) > 6


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_is_close_to_transformers(pair, dtype):
    reference, model = pair
    half = T5Gemma2(model.config)
    exact = "feed_forward.down.weight" if dtype == mx.float16 else "none"
    half.load_weights(
        [(n, w if n.endswith(exact) else w.astype(dtype)) for n, w in flat_weights(model)]
    )
    inputs = padded_inputs(61)
    expected = reference_logits(reference, *inputs)
    error = np.abs(cached_logits(half, *inputs, 7) - expected).mean() / np.abs(expected).mean()
    assert error < (0.1 if dtype == mx.bfloat16 else 0.02)


@pytest.mark.parametrize(("window", "seen"), [(5, [7, 8, 9, 10, 11]), (6, [6, 7, 8, 9, 10, 11])])
def test_the_encoders_window_is_lopsided(window, seen):
    """Of an even window, one more is seen ahead than behind."""
    raw = raw_config(num_hidden_layers=1, sliding_window=window, layer_types=["sliding_attention"])
    model, source = mlx_model(t5gemma2.torch_model(raw), raw), np.arange(5, 25)[None]
    whole, changed = np.ones((1, 20), bool), np.where(np.arange(20) == 9, 40, source)
    before, after = (
        np.array(model.encode(mx.array(tokens), whole)) for tokens in (source, changed)
    )
    assert np.flatnonzero(np.abs(before - after)[0].max(axis=-1) > 1e-6).tolist() == seen


@pytest.mark.parametrize("kind", ["saved", "zip"])
def test_converted_models_agree_with_transformers(tmp_path, kind):
    raw = raw_config(vocab_size=704)
    reference = t5gemma2.torch_model(raw)
    t5gemma_checkpoints.save_tokenizer(tmp_path / "hub")
    if kind == "saved":
        reference.save_pretrained(tmp_path / "hub", max_shard_size="40KB")
    else:
        checkpoints.save(tmp_path / "hub", raw, dict(reference.state_dict()), 2, kind)
    model, tokenizer = load(convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32"))
    inputs = padded_inputs(704)
    assert_close(cached_logits(model, *inputs, 7), reference_logits(reference, *inputs))
    assert tokenizer.encode("The house").ids[0] == 2
    assert Config.from_hub(read_config(tmp_path / "hub"), []) == Config.from_hub(raw, [])
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert Config.from_dict(values) == model.config


def test_quantized_models_are_close(tmp_path):
    sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=4, head_dim=16)
    raw = raw_config(sizes, vocab_size=704, **sizes)
    t5gemma_checkpoints.save_tokenizer(tmp_path / "hub")
    reference = t5gemma2.torch_model(raw)
    checkpoints.save(tmp_path / "hub", raw, t5gemma2.state_dict(reference))
    how = Quantization("affine", 8, 32)
    model, _ = load(convert(str(tmp_path / "hub"), tmp_path / "out", "bfloat16", quantization=how))
    inputs = padded_inputs(704)
    expected = reference_logits(reference, *inputs)
    error = np.abs(cached_logits(model, *inputs, 7) - expected).mean() / np.abs(expected).mean()
    assert error < 0.25


def test_defaults_are_those_of_transformers():
    raw = {"model_type": "t5gemma2", "encoder": {"text_config": {}}, "decoder": {}}
    config, reference = Config.from_hub(raw, None), t5gemma2.transformers.T5Gemma2Config(**raw)
    for found, theirs in (
        (config.encoder, reference.encoder.text_config),
        (config.decoder, reference.decoder),
    ):
        for name, value in theirs.to_dict().items():
            if hasattr(found, name):
                assert getattr(found, name) == value, name
        bases = [theirs.rope_parameters[kind]["rope_theta"] for kind in theirs.layer_types]
        assert list(found.rope_thetas) == bases
        assert [w == 4096 for w in found.windows] == [k.startswith("s") for k in theirs.layer_types]


def test_a_head_of_its_own_is_kept_and_an_embedding_for_each_stack_refused(tmp_path):
    raw = VARIANTS["t5gemma2"]
    reference = t5gemma2.torch_model(raw)
    state = t5gemma2.state_dict(reference)
    own = {"lm_head.out_proj.weight": torch.randn(61, 24)}
    model = models.mlx_model(checkpoints.save(tmp_path / "head", raw, state | own), raw)
    reference.lm_head.out_proj.weight = torch.nn.Parameter(own["lm_head.out_proj.weight"])
    inputs = padded_inputs(61)
    assert_close(cached_logits(model, *inputs, 7), reference_logits(reference, *inputs))
    other = {"model.decoder.embed_tokens.weight": torch.randn(61, 24)}
    with pytest.raises(InputError, match="an embedding for each stack, which T5Gemma 2 has not"):
        models.mlx_model(checkpoints.save(tmp_path / "two", raw, state | other), raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": {}}, "no encoder and decoder: not a T5Gemma 2 model"),
        ({"encoder": 3}, "no encoder and decoder: not a T5Gemma 2 model"),
        (raw_config({"hidden_size": 30}), "hidden_size is 24 in the encoder, 30 in the decoder"),
        (raw_config({"vocab_size": 60}), "vocab_size is 61 in the encoder, 60 in the decoder"),
        (raw_config(rope_parameters=[1]), r"rotary positions of type \[1\]"),
        (
            raw_config(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 0}}),
            "the factor of rotary positions is 0, not 1 or more",
        ),
        (
            raw_config(layer_types=None, sliding_window_pattern=0),
            "sliding_window_pattern is 0, not",
        ),
        (raw_config(layer_types=["full_attention"]), "layer_types is not 3 of"),
    ],
)
def test_configs_that_cannot_be_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        Config.from_hub(raw_config() | changes, None)
