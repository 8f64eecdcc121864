"""T5Gemma and T5Gemma 2: conversion, config.json, tokenizers, and what narrow types would lose."""

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers import t5gemma2_checkpoints as t5gemma2
from helpers import t5gemma_checkpoints as t5gemma
from helpers.models import assert_close, cached_logits, padded_inputs, reference_logits
from helpers.oracle import flat_weights
from helpers.pairs import both, in_dtype
from helpers.t5gemma_checkpoints import SLIDING, VARIANTS, raw_config
from helpers.texts import AWKWARD, assert_same_tokenizer, needs_shared, prompts
from transformers import AutoTokenizer

from decoder import SpeculativeDecoder, load
from speculative.checkpoints.folder import open_checkpoint
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.models.conversion import convert, read_config
from speculative.models.registry import family_of
from speculative.models.t5gemma import FAMILY, Config, Norm, T5Gemma, embed
from speculative.text.rows import TextStream
from speculative.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow


def test_small_norm_weights_are_not_lost_in_bfloat16():
    """1 + 0.003 is 1 in bfloat16, where numbers above 1 are 0.008 apart."""
    norm, key = Norm(4096, 1e-6), mx.random.key(0)
    norm.weight = mx.full((4096,), 0.003, mx.bfloat16)
    x = mx.random.normal((64, 4096), key=key).astype(mx.bfloat16)
    y, plain = norm(x), mx.fast.rms_norm(x.astype(mx.float32), None, 1e-6)
    assert y.dtype == mx.bfloat16
    assert abs(((y * plain).sum() / (plain**2).sum()).item() - 1.003) < 0.0005


@pytest.mark.usefixtures("cpu")
def test_embeddings_are_scaled_by_a_number_of_the_models_type():
    """The root of 24 is 4.899, and 4.906 in bfloat16."""
    reference, model = both(VARIANTS["t5gemma"])
    embedding = in_dtype(model, mx.bfloat16).encoder.embedding
    table = reference.to(torch.bfloat16).model.encoder.embed_tokens.weight
    expected = (table * torch.tensor(24**0.5, dtype=torch.bfloat16)).float().detach().numpy()
    embedded = embed(embedding, mx.arange(61))
    assert embedded.dtype == mx.bfloat16
    assert np.array_equal(np.array(embedded.astype(mx.float32)), expected)


@pytest.mark.usefixtures("compiled")
def test_compiled_soft_caps_agree_with_transformers():
    reference, model = both(VARIANTS["t5gemma"])
    inputs = padded_inputs(61)
    assert_close(cached_logits(model, *inputs, 7), reference_logits(reference, *inputs))


PLAIN, PLAIN2 = (module.raw_config(vocab_size=704) for module in (t5gemma, t5gemma2))
OWN_HEAD = raw_config(final_logit_softcapping=3.0, vocab_size=704) | {"tie_word_embeddings": False}
SQUARE = dict(hidden_size=64, intermediate_size=64, num_attention_heads=4, head_dim=16)
WIDE, WIDE2 = (made.raw_config(SQUARE, vocab_size=704, **SQUARE) for made in (t5gemma, t5gemma2))


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(OWN_HEAD, "safetensors"), (PLAIN, "saved"), (PLAIN2, "saved"), (PLAIN2, "zip")],
)
def test_converted_models_agree_with_transformers(tmp_path, raw, kind):
    """Which leaves defaults out of config.json, and the head out of the weights."""
    hub, reference = tmp_path / "hub", t5gemma.torch_model(raw)
    t5gemma.save_tokenizer(hub)
    if kind == "saved":
        reference.save_pretrained(hub, max_shard_size="40KB")
    else:
        state = reference.state_dict() if kind == "zip" else t5gemma.state_dict(reference)
        checkpoints.save(hub, raw, dict(state), 3, kind)
    saved = read_config(hub)
    family = family_of(saved)
    assert family_of({k: v for k, v in saved.items() if k != "model_type"}) is family
    assert family.config.from_hub(saved, None) == family.config.from_hub(raw, None)
    model, tokenizer = load(convert(str(hub), tmp_path / "out", dtype="float32"))
    inputs = padded_inputs(704)
    assert_close(cached_logits(model, *inputs, 7), reference_logits(reference, *inputs))
    assert tokenizer.encode("The house").ids[0] == 2
    stream = TextStream(tokenizer, SpeculativeDecoder(model, tokenizer).maker.hidden)
    assert stream.push([2, 5, 300, 3, 301, 6, 1]) == tokenizer.decode([300, 301])  # no special one
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert family.config.from_dict(values) == model.config


@pytest.mark.parametrize(("raw", "dtype"), [(WIDE, "float16"), (WIDE2, "bfloat16")])
def test_quantized_models_are_close(tmp_path, raw, dtype):
    reference, bits = t5gemma.torch_model(raw), Quantization("affine", 8, 32)
    t5gemma.save_tokenizer(tmp_path / "hub")
    source = checkpoints.save(tmp_path / "hub", raw, t5gemma.state_dict(reference))
    model, _ = load(convert(str(source), tmp_path / "out", dtype, quantization=bits))
    quantized = {name for name, _ in flat_weights(model) if name.endswith(".scales")}
    matrices = {n for n, w in flat_weights(type(model)(model.config)) if w.ndim == 2}
    assert {name.removesuffix("scales") + "weight" for name in quantized} == matrices
    inputs = padded_inputs(704)
    expected = reference_logits(reference, *inputs)
    error = np.abs(cached_logits(model, *inputs, 7) - expected).mean() / np.abs(expected).mean()
    assert error < 0.25


def test_heads_and_embeddings_under_any_of_their_names(tmp_path):
    raw = VARIANTS["t5gemma"]
    state = t5gemma.state_dict(t5gemma.torch_model(raw))
    head, embedding = "lm_head.out_proj.weight", "model.decoder.embed_tokens.weight"
    stored = {
        "alias": state | {head: state[embedding].clone()},
        "head only": {k: v for k, v in state.items() if k != embedding} | {head: state[embedding]},
        "bare": {k.removeprefix("model."): v for k, v in state.items()},
        "own": state | {head: state[embedding] + 1},
    }
    for name, tensors in stored.items():
        renamed = FAMILY.rename(open_checkpoint(checkpoints.save(tmp_path / name, raw, tensors)))
        assert ("head.weight" in renamed) == (name == "own")
        expected = {n for n, _ in flat_weights(T5Gemma(Config.from_hub(raw, renamed)))}
        assert renamed.keys() == expected
    with pytest.warns(match=r"no T5Gemma has: encoder.layers.0.mlp.q_proj.weight"):
        FAMILY.rename({"model.encoder.layers.0.mlp.q_proj.weight": None, embedding: None})


def test_ids_are_those_that_generate_would_use():
    """The top level's, then the decoder's; the start is the beginning of sequence unless it is given."""
    raw = VARIANTS["t5gemma"]
    for changes in (
        {"eos_token_id": [7], "bos_token_id": 9, "pad_token_id": 4},
        {"decoder_start_token_id": 6},
        {"decoder": raw["decoder"] | {"bos_token_id": 8, "eos_token_id": [3, 5]}},
    ):
        reference = t5gemma.torch_model(raw | changes)
        settings = reference.generation_config
        config = Config.from_hub(raw | changes, [])
        eos = settings.eos_token_id
        assert list(config.eos_token_ids) == (eos if isinstance(eos, list) else [eos])
        assert config.pad_token_id == settings.pad_token_id
        prefix = reference.generate(torch.tensor([[5, 6]]), max_new_tokens=1)[0, 0].item()
        assert [prefix] == T5Gemma(config).prefix([5, 6]), changes


@pytest.mark.parametrize(("kind", "encoder"), [("t5gemma", {}), ("t5gemma2", {"text_config": {}})])
def test_defaults_are_those_of_transformers(kind, encoder):
    raw = {"model_type": kind, "encoder": encoder, "decoder": {}}
    config = family_of(raw).config.from_hub(raw, None)
    reference = t5gemma.torch_config(raw)
    encoder = getattr(reference.encoder, "text_config", reference.encoder)
    for ours, theirs in ((config.encoder, encoder), (config.decoder, reference.decoder)):
        for name, value in theirs.to_dict().items():
            if hasattr(ours, name):
                assert getattr(ours, name) == value, name
        kinds = theirs.layer_types
        assert [w == 4096 for w in ours.windows] == [kind == SLIDING for kind in kinds]
        rope = theirs.rope_parameters
        bases = [rope.get(kind, rope)["rope_theta"] for kind in kinds]
        assert [ours.of_layer(i).rope_theta for i in range(len(kinds))] == bases
    assert (config.tied_head, config.decoder_start_token_id) == (True, 2)
    assert config.max_positions == config.decoder.max_position_embeddings


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (raw_config() | {"decoder": None}, "no encoder and decoder: not a T5Gemma model"),
        (raw_config(rope_parameters={"rope_type": "yarn"}), "rotary positions of type 'yarn'"),
        (PLAIN2 | {"encoder": {}}, "no encoder and decoder: not a T5Gemma 2 model"),
    ],
)
def test_configs_that_cannot_be_are_named(raw, message):
    with pytest.raises(InputError, match=message):
        family_of(raw).config.from_hub(raw, None)


@needs_shared
@pytest.mark.parametrize("framed", [True, False])
def test_tokens_are_those_of_transformers(tmp_path, framed):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "t5gemma"}))
    t5gemma.save_tokenizer(source, framed)
    reference = AutoTokenizer.from_pretrained(source)
    assert type(reference).__name__ == "GemmaTokenizer"
    FAMILY.write_tokenizer(source, out)
    ours = load_tokenizer(out)
    assert (ours.encode("a").ids[0] == 2) == framed
    chat = "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"
    assert_same_tokenizer(ours, reference, [*AWKWARD, chat, *prompts()])
