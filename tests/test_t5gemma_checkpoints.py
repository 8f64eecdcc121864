"""T5Gemma's checkpoints: conversion, config.json and tokenizers against transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers import t5gemma_checkpoints as t5gemma
from helpers.models import cached_logits, padded_inputs, reference_logits
from helpers.oracle import flat_weights
from helpers.t5gemma_checkpoints import FULL, SLIDING, VARIANTS, raw_config
from helpers.texts import AWKWARD, assert_same_tokenizer, needs_shared, prompts
from transformers import AutoTokenizer

from checkpoints.folder import open_checkpoint, read_json
from checkpoints.quantization import Quantization
from convert import convert, converted_size, read_config
from decoder import SpeculativeDecoder, generate, load
from errors import InputError
from families import family_of
from families.t5gemma import FAMILY, Config, T5Gemma
from text.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow

WIDE = raw_config(
    {"hidden_size": 96, "intermediate_size": 128},
    {"hidden_size": 64, "intermediate_size": 160},
    vocab_size=704,
    num_attention_heads=4,
    head_dim=16,
)


@pytest.mark.parametrize("variant", ["t5gemma", "own head", "no groups, biases"])
@pytest.mark.parametrize("kind", ["safetensors", "zip"])
def test_converted_models_load_and_agree_with_transformers(tmp_path, variant, kind):
    raw = VARIANTS[variant] | {
        stack: VARIANTS[variant][stack] | {"vocab_size": 704} for stack in ("encoder", "decoder")
    }
    source = t5gemma.make_folder(tmp_path / "source", raw, shards=3, kind=kind)
    output = convert(str(source), tmp_path / "out", dtype="float32")
    model, tokenizer = load(output)
    inputs = padded_inputs(704)
    expected = reference_logits(t5gemma.torch_model(raw), *inputs)
    logits = cached_logits(model, *inputs, 7)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    assert tokenizer.encode("The house").ids[0] == 2
    stream = SpeculativeDecoder(model, tokenizer)._text_stream(())
    assert stream.push([2, 5, 300, 3, 301, 6, 1]) == tokenizer.decode([300, 301])  # no special one


def test_what_transformers_saves_is_understood(tmp_path):
    """It leaves defaults out of config.json and the head out of the weights."""
    raw = raw_config(WIDE["encoder"], WIDE["decoder"], rms_norm_eps=1e-6, sliding_window=4096)
    reference = t5gemma.torch_model(raw)
    reference.save_pretrained(tmp_path / "source")
    t5gemma.save_tokenizer(tmp_path / "source")
    saved = read_config(tmp_path / "source")
    assert Config.from_hub(saved, []) == Config.from_hub(raw, [])
    assert family_of(saved) is FAMILY
    assert family_of({k: v for k, v in saved.items() if k != "model_type"}) is FAMILY
    model, _ = load(convert(str(tmp_path / "source"), tmp_path / "out", dtype="float32"))
    inputs = padded_inputs(704)
    expected = reference_logits(reference, *inputs)
    logits = cached_logits(model, *inputs, 7)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_quantized_models_load_and_write(tmp_path, dtype):
    source = t5gemma.make_folder(tmp_path / "source", WIDE)
    how = Quantization("affine", 8, 32)
    output = convert(str(source), tmp_path / "out", dtype=dtype, quantization=how)
    model, tokenizer = load(output)
    quantized = {name for name, _ in flat_weights(model) if name.endswith(".scales")}
    matrices = {n for n, w in flat_weights(T5Gemma(model.config)) if w.ndim == 2}
    assert {name.removesuffix("scales") + "weight" for name in quantized} == matrices
    size = sum(w.nbytes for _, w in flat_weights(model))
    assert size == converted_size(source, dtype, how)
    inputs = padded_inputs(704)
    expected = reference_logits(t5gemma.torch_model(WIDE), *inputs)
    error = np.abs(cached_logits(model, *inputs, 7) - expected).mean() / np.abs(expected).mean()
    assert error < 0.25
    options = dict(max_tokens=12, num_draft=0)
    plain = generate(model, tokenizer, "Write a short story about a house.", **options)
    options["num_draft"] = 3
    copied = generate(
        model, tokenizer, "Write a short story about a house.", lookup=True, **options
    )
    assert plain and (copied == plain or dtype != "float32")


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
        found = FAMILY.rename(open_checkpoint(checkpoints.save(tmp_path / name, raw, tensors)))
        assert ("head.weight" in found) == (name == "own")
        expected = {n for n, _ in flat_weights(T5Gemma(Config.from_hub(raw, found)))}
        assert found.keys() == expected
    with pytest.raises(InputError, match=r"unknown tensor encoder.layers.0.mlp.q_proj.weight"):
        FAMILY.rename({"model.encoder.layers.0.mlp.q_proj.weight": None, embedding: None})


# ---------------------------------------------------------------------------------------------
# config.json


def test_ids_are_those_that_generate_would_use():
    """The top level's (where generation_config.json's are put) before the decoder's; the start is
    the beginning of sequence unless it is given."""
    raw = VARIANTS["t5gemma"]
    for changes in (
        {},
        {"eos_token_id": [1, 7]},
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


def test_config_survives_its_file():
    for raw in VARIANTS.values():
        config = Config.from_hub(raw, [])
        assert Config.from_dict(raw | json.loads(json.dumps(config.to_dict()))) == config


def test_defaults_are_those_of_transformers():
    config = Config.from_hub({"model_type": "t5gemma", "encoder": {}, "decoder": {}}, None)
    reference = t5gemma.transformers.T5GemmaConfig(encoder={}, decoder={})
    for ours, theirs in ((config.encoder, reference.encoder), (config.decoder, reference.decoder)):
        for name, value in theirs.to_dict().items():
            if hasattr(ours, name):
                assert getattr(ours, name) == value, name
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        windows = [
            theirs.sliding_window if kind == SLIDING else 8192 for kind in theirs.layer_types
        ]
        assert list(ours.windows) == windows
    assert (config.tied_head, config.max_positions, config.decoder_start_token_id) == (
        True,
        8192,
        2,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": None}, "no encoder and decoder: not a T5Gemma model"),
        ({"layer_types": [FULL]}, "layer_types is not"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3', not"),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4 key and value heads"),
        ({"head_dim": 7}, "head_dim is 7, not even"),
        ({"hidden_activation": "relu"}, "unknown activation 'relu'"),
        ({"attn_logit_softcapping": 0.0}, "attn_logit_softcapping is 0.0, not above 0"),
        ({"sliding_window": None}, "sliding_window is None, not a whole number"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2}},
            "rotary positions of type 'yarn'",
        ),
        ({"rope_parameters": [1]}, r"rotary positions of type \[1\]"),
        ({"hidden_size": 0}, "hidden_size is 0, not a whole number"),
        ({"pad_token_id": 61}, "pad_token_id is 61, but vocab_size only 61"),
    ],
)
def test_configs_that_cannot_be_are_named(changes, message):
    raw = raw_config(**changes) if "decoder" not in changes else raw_config() | changes
    with pytest.raises(InputError, match=message):
        Config.from_hub(raw, None)


def test_more_layers_than_weights_are_refused(tmp_path):
    source = t5gemma.make_folder(tmp_path / "source", WIDE)
    raw = read_json(source / "config.json")
    raw["decoder"]["num_hidden_layers"] = 900
    (source / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"config.json has 903 layers, the weights 7"):
        convert(str(source), tmp_path / "out")


# ---------------------------------------------------------------------------------------------
# The tokenizer, of a small vocabulary: there is no real one without a download


def converted_tokenizer(folder: Path, output: Path):
    output.mkdir()
    FAMILY.write_tokenizer(folder, output)
    return load_tokenizer(output)


@needs_shared
@pytest.mark.parametrize("framed", [True, False])
def test_tokens_are_those_of_transformers(tmp_path, framed):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps({"model_type": "t5gemma"}))
    t5gemma.save_tokenizer(tmp_path / "source", framed)
    reference = AutoTokenizer.from_pretrained(tmp_path / "source")
    assert type(reference).__name__ == "GemmaTokenizer"
    ours = converted_tokenizer(tmp_path / "source", tmp_path / "out")
    assert (ours.encode("a").ids[0] == 2) == framed
    chat = "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"
    assert_same_tokenizer(ours, reference, [*AWKWARD, chat, *prompts()])


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer: it has no tokenizer.json"):
        converted_tokenizer(tmp_path, tmp_path / "out")
