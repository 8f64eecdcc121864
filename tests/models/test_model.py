"""T5: what is made of each member's config.json and tensors' names, and the rules of its model."""

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers.models import (
    assert_close,
    cached_logits,
    padded_inputs,
    random_model,
    reference_logits,
)
from helpers.pairs import both
from mlx.utils import tree_flatten
from transformers.models.t5.modeling_t5 import T5Attention

from model import T5, _buckets
from speculative.common.errors import InputError
from speculative.models.conversion import read_config
from speculative.models.registry import family_of
from speculative.models.t5 import FAMILY, NAMES, Config

GELU, SILU, RELU = "gated-gelu", "gated-silu", "relu"
PAD0, MADLAD = (0, 1, 0), (1, 2, 0)  # padding, end, start of the decoder

# vocab_size, d_model, d_kv, d_ff, encoder and decoder layers, heads, feed_forward_proj, ids.
# Sources: the gin files of text-to-text-transfer-transformer and of byt5, and the models' cards.
MEMBERS = {
    "t5-small": (32128, 512, 64, 2048, 6, 6, 8, RELU, PAD0),
    "t5-large": (32128, 1024, 64, 4096, 24, 24, 16, RELU, PAD0),
    "t5-11b": (32128, 1024, 128, 65536, 24, 24, 128, RELU, PAD0),
    "t5-v1_1-xl": (32128, 2048, 64, 5120, 24, 24, 32, GELU, PAD0),
    "t5-v1_1-xxl": (32128, 4096, 64, 10240, 24, 24, 64, GELU, PAD0),
    "aya-101": (250112, 4096, 64, 10240, 24, 24, 64, GELU, PAD0),
    "byt5-small": (384, 1472, 64, 3584, 12, 4, 6, GELU, PAD0),
    "flan-ul2": (32128, 4096, 256, 16384, 32, 32, 16, SILU, PAD0),
    "madlad400-3b-mt": (256000, 1024, 128, 8192, 32, 32, 16, GELU, MADLAD),
    "madlad400-10b-mt": (256000, 2048, 128, 16384, 32, 32, 32, GELU, MADLAD),
    "pile-t5-large": (32128, 1024, 64, 2816, 24, 24, 16, GELU, (0, 2, 0)),
}


def raw_config(name: str) -> dict:
    """The config.json as the hub has it."""
    vocab, d_model, d_kv, d_ff, encoder, decoder, heads, proj, (pad, eos, start) = MEMBERS[name]
    raw = dict(vocab_size=vocab, d_model=d_model, d_kv=d_kv, d_ff=d_ff, num_heads=heads)
    raw |= dict(
        num_layers=encoder, pad_token_id=pad, eos_token_id=eos, decoder_start_token_id=start
    )
    raw |= dict(relative_attention_num_buckets=32, layer_norm_epsilon=1e-6)
    if proj == RELU:  # from before other keys, which then mean the defaults
        return raw | dict(model_type="t5", architectures=["T5WithLMHeadModel"], n_positions=512)
    raw |= dict(num_decoder_layers=decoder, feed_forward_proj=proj)
    raw |= dict(relative_attention_max_distance=128)
    if proj == GELU:
        raw |= dict(tie_word_embeddings=False)
    kinds = {"pile-t5-large": "umt5", "aya-101": "mt5"}
    return raw | dict(model_type=kinds.get(name, "t5"))


def weights(name: str) -> list[str]:
    """The tensors' names in the checkpoint, translated."""
    *_, encoder, decoder, _, proj, _ = MEMBERS[name]
    feed_forward = ["wi", "wo"] if proj == RELU else ["wi_0", "wi_1", "wo"]
    names = ["encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"]
    if proj != RELU:
        names.append("lm_head.weight")
    for stack, layers, sublayers in (("encoder", encoder, 2), ("decoder", decoder, 3)):
        attentions = ["SelfAttention", "EncDecAttention"][: sublayers - 1]
        for i in range(layers):
            layer = f"{stack}.block.{i}.layer"
            for j, attention in enumerate(attentions):
                names += [f"{layer}.{j}.{attention}.{x}.weight" for x in "qkvo"]
            last = sublayers - 1
            names += [f"{layer}.{last}.DenseReluDense.{x}.weight" for x in feed_forward]
            names += [f"{layer}.{j}.layer_norm.weight" for j in range(sublayers)]
            if i == 0 or name == "pile-t5-large":
                names.append(f"{layer}.0.SelfAttention.relative_attention_bias.weight")
    return ["embedding.weight", *(NAMES.ours(n) for n in names)]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_is_understood(name, tmp_path):
    vocab, d_model, d_kv, d_ff, encoder, decoder, heads, proj, (pad, eos, start) = MEMBERS[name]
    (tmp_path / "config.json").write_text(json.dumps(raw_config(name)))
    config = Config.from_hub(read_config(tmp_path), weights(name))
    sizes = dict(vocab_size=vocab, d_model=d_model, d_kv=d_kv, d_ff=d_ff, num_heads=heads)
    assert config == Config(
        **sizes,
        num_layers=encoder,
        num_decoder_layers=decoder,
        activation={GELU: "gelu_new", SILU: "silu", RELU: "relu"}[proj],
        gated=proj != RELU,
        tied_head=proj == RELU,
        bias_per_layer=name == "pile-t5-large",
        scale_decoder_outputs=proj != GELU,
        pad_token_id=pad,
        eos_token_ids=(eos,),
        decoder_start_token_id=start,
    )
    assert dict(tree_flatten(T5(config).parameters())).keys() == set(weights(name))


@pytest.mark.slow
def test_ids_in_generation_config_may_be_lists_or_missing(tmp_path):
    raw = raw_config("pile-t5-large") | {"eos_token_id": None, "decoder_start_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ids = {"eos_token_id": [2, 7], "pad_token_id": [1]}
    (tmp_path / "generation_config.json").write_text(json.dumps(ids))
    config = Config.from_hub(read_config(tmp_path), None)
    assert (config.pad_token_id, config.eos_token_ids) == (1, (2, 7))
    assert config.decoder_start_token_id == 1  # padding, where nothing else is said


@pytest.mark.parametrize(
    ("key", "values", "what"),
    [
        ("d_model", (None, 0, "512", 1.5, True), "a whole number from 1 to 1048576"),
        ("pad_token_id", (-1, "0"), "a token id"),
        ("layer_norm_epsilon", ("tiny",), "float"),
        ("scale_decoder_outputs", ("yes",), "bool"),
    ],
)
def test_values_that_cannot_be_are_named(key, values, what):
    for value in values:
        with pytest.raises(InputError, match=rf"{key}s? is .*, not {what}"):
            Config.from_hub(raw_config("t5-small") | {key: value}, weights("t5-small"))


@pytest.mark.parametrize("name", ["T5Model", "T5WithLMHeadModel", "UMT5ForConditionalGeneration"])
def test_the_architecture_decides_where_there_is_no_model_type(name):
    assert family_of({"architectures": [name]}) is FAMILY
    with pytest.raises(InputError, match="has no model_type"):
        family_of({"architectures": None})


def test_umt5_with_one_decoder_layer_has_a_bias_in_every_encoder_layer():
    """Which the decoder's biases alone would not tell."""
    raw = checkpoints.VARIANTS["umt5"] | dict(num_layers=3, num_decoder_layers=1)
    reference, model = both(raw)
    given = padded_inputs(61)
    assert_close(cached_logits(model, *given, 7), reference_logits(reference, *given))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("buckets", "most", "known"), [(32, 128, 200), (12, 20, 99), (32, 16, 16)])
def test_buckets_are_transformers_own(buckets, most, known):
    """If each has one distance, and the last all others, transformers knows only those."""
    theirs = T5Attention._relative_position_bucket(-torch.arange(known), False, buckets, most)
    ours = _buckets(buckets, most)
    assert ours[np.minimum(range(known), len(ours) - 1)].tolist() == theirs.tolist()
    assert ours[-1] == buckets - 1


def test_hidden_keys_are_minus_infinity():
    """Metal's kernel skips those."""
    (bias, *_) = random_model().encoder.biases(
        np.zeros((1, 2, 2), int), mx.array([[[[True, False]]]])
    )
    assert (bias[..., 1] == -mx.inf).all() and mx.isfinite(bias[..., 0]).all()


def test_what_cross_attention_reads_lies_side_by_side():
    """Else MLX's processor backend copies it in every step."""
    cache = random_model().start([[5, 6, 7, 1], [8, 9, 1, 1]])
    mx.eval(cache.cross)
    assert all(memoryview(x).c_contiguous for pair in cache.cross for x in pair)


T5_KIND, UNSCALED = {"model_type": "t5"}, {"tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("raw", "scaled"),
    [
        *((T5_KIND, True), (T5_KIND | UNSCALED, False), ({"model_type": "umt5"} | UNSCALED, False)),
        ({"model_type": "mt5", "tie_word_embeddings": True}, False),
        # As transformers 5 writes a v1.1 model.
        (T5_KIND | {"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
    ],
)
def test_output_scaling_follows_the_config(raw, scaled):
    assert Config.from_hub(checkpoints.SMALL | raw, []).scale_decoder_outputs is scaled


def test_gated_weights_mean_the_tanh_gelu_whatever_the_config_says():
    raw = checkpoints.SMALL | {"feed_forward_proj": "gelu"}
    gated = Config.from_hub(raw, ["decoder.layers.0.feed_forward.gate.weight"])
    assert (gated.gated, gated.activation) == (True, "gelu_new")
    plain = Config.from_hub(raw, [])
    assert (plain.gated, plain.activation) == (False, "gelu")
