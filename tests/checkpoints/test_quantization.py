"""Quantized weights: which ones, that they compute what they stand for, and what is refused."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers import checkpoints
from helpers.models import cached_logits, padded_inputs
from mlx.utils import tree_flatten

from apps.cli.models import note_types
from decoder import generate, load
from model import T5
from speculative.checkpoints import tensors
from speculative.checkpoints.tensors import map_npz, to_mlx
from speculative.checkpoints.weights import MODES, Quantization, is_matrix
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.conversion import convert, converted_size
from speculative.models.t5 import Config

# Rows that divide into every group; as many heads as a group has members, as in t5-3b.
WIDE = dict(d_model=128, d_kv=8, d_ff=256, num_heads=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.make_folder(tmp_path_factory.mktemp("wide") / "source", "v1.1", **WIDE)


def dequantized(output, quantization: Quantization) -> T5:
    """The model of a converted folder with the plain weights that the quantized ones stand for."""
    arrays = {name: to_mlx(array) for name, array in map_npz(output / "weights.npz").items()}
    model = T5(Config.from_dict(json.loads((output / "config.json").read_text())))
    weights = {name: arrays[name] for name, _ in tree_flatten(model.parameters())}
    for name, weight in weights.items():
        stem = name.removesuffix("weight")
        if f"{stem}scales" in arrays:
            scaling = arrays[f"{stem}scales"], arrays.get(f"{stem}biases")
            weights[name] = mx.dequantize(weight, *scaling, **vars(quantization)).astype(mx.float32)
    model.load_weights([*weights.items()])
    return model


QUICK = [Quantization(), Quantization("mxfp4")]  # the others are the same code with other numbers
EVERY = [
    Quantization(m, bits[i], g) for m, (bits, groups) in MODES.items() for i, g in enumerate(groups)
]
EVERY += [Quantization(bits=bits) for bits in MODES["affine"][0]]
OTHERS = [pytest.param(q, marks=pytest.mark.slow) for q in dict.fromkeys(EVERY) if q not in QUICK]


@pytest.mark.parametrize("quantization", [*QUICK, *OTHERS], ids=str)
def test_logits_are_those_of_the_weights_that_the_quantized_stand_for(
    folder, tmp_path, quantization
):
    output = convert(str(folder), tmp_path / "out", dtype="float32", quantization=quantization)
    inputs = padded_inputs(1024)
    expected = cached_logits(dequantized(output, quantization), *inputs, 7)
    difference = np.abs(cached_logits(load(output)[0], *inputs, 7) - expected).max()
    assert difference <= 1e-3 * np.abs(expected).max()
    stored = map_npz(output / "weights.npz")
    scaled = {name.removesuffix(".scales") for name in stored if name.endswith(".scales")}
    assert {"embedding", "head", "decoder.layers.1.cross_attention.key"} <= scaled
    assert not any("norm" in name or "relative_bias" in name for name in scaled)
    assert all(stored[f"{name}.weight"].dtype == np.uint32 for name in scaled)
    config = json.loads((output / "config.json").read_text())
    assert config["quantization"] == vars(quantization)
    size = (output / "weights.npz").stat().st_size
    headers = 600 * len(stored)  # of a zip and of its members, at most
    assert size - headers < converted_size(folder, "float32", quantization) < size


def test_blocks_are_quantized_as_the_whole(folder, tmp_path, monkeypatch):
    whole = convert(str(folder), tmp_path / "whole", quantization=Quantization(bits=3))
    monkeypatch.setattr(tensors, "BLOCK_BYTES", 5000)
    parts = convert(str(folder), tmp_path / "parts", quantization=Quantization(bits=3))
    assert (whole / "weights.npz").read_bytes() == (parts / "weights.npz").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dtype"), [("affine", "bfloat16"), ("mxfp4", "bfloat16"), ("affine", "float16")]
)
def test_narrow_types_stay_what_they_are(folder, tmp_path, dtype, mode):
    """float16 keeps the last feed-forward product in float32 when quantized, too."""
    quantization = Quantization(mode)
    narrow = convert(str(folder), tmp_path / "narrow", dtype=dtype, quantization=quantization)
    inputs = padded_inputs(1024)
    expected = cached_logits(dequantized(narrow, quantization), *inputs, 7)
    logits = cached_logits(load(narrow)[0], *inputs, 7)
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.99
    if mode == "affine":
        scales = map_npz(narrow / "weights.npz")
        down = scales["decoder.layers.0.feed_forward.down.scales"]
        assert down.dtype == (np.float32 if dtype == "float16" else "V2")
        assert scales["decoder.layers.0.feed_forward.up.scales"].dtype.itemsize == 2


@pytest.mark.usefixtures("cpu")
def test_target_and_draft_may_be_quantized_differently(demo_pair, tmp_path):
    plain_target, tokenizer, draft = demo_pair
    quantization = Quantization(bits=8, group_size=32)
    target, _ = load(convert("demo/target", tmp_path / "t", "float32", quantization=quantization))
    quantization = Quantization("mxfp4")
    small, _ = load(convert("demo/draft", tmp_path / "d", "float32", quantization=quantization))
    prompt = "repair: The kign sees the the house."
    expected = generate(plain_target, tokenizer, prompt)
    for draft_model in (None, draft, small):
        assert generate(target, tokenizer, prompt, draft_model, num_draft=4) == expected


def test_matrices_whose_rows_do_not_divide_are_left_and_counted(tmp_path):
    source = checkpoints.make_folder(tmp_path / "source", "t5", **WIDE | {"d_model": 96})
    reason = "matrices are not quantized: row lengths are not multiples"
    with pytest.warns(UserWarning, match=reason):
        output = convert(str(source), tmp_path / "out", quantization=Quantization())
    stored = map_npz(output / "weights.npz")
    assert "encoder.layers.0.feed_forward.down.scales" in stored  # 256 in a row
    assert "encoder.layers.0.feed_forward.up.scales" not in stored  # 96
    load(output)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 7}, "bits is 7, but the mode affine needs 2, 3, 4, 5, 6, 8"),
        ({"mode": "int4"}, "mode is 'int4', not one of affine, mxfp4, nvfp4, mxfp8"),
        ({"method": "gptq"}, "config.json: unknown quantization"),
        ({"bits": 8}, "but received shape"),
        (None, "parameters not in model: decoder.layers.0.attention.key.biases"),
    ],
)
def test_a_quantization_that_is_not_that_of_the_weights_is_refused(
    folder, tmp_path, change, message
):
    output = convert(str(folder), tmp_path / "out", quantization=Quantization())
    config = json.loads((output / "config.json").read_text())
    config["quantization"] = change and config["quantization"] | change
    (output / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        load(output)


def test_nothing_to_quantize_is_an_error_that_leaves_nothing(tmp_path):
    source = checkpoints.make_folder(tmp_path / "source", "t5")
    with pytest.raises(InputError, match="no weight can be quantized"):
        convert(str(source), tmp_path / "out", quantization=Quantization(group_size=128))
    assert not (tmp_path / "out").exists()


def test_tables_that_are_added_are_no_matrices():
    assert is_matrix("decoder.layers.0.attention.query", nn.Linear(64, 64))
    assert is_matrix("source_embedding", nn.Embedding(320, 64))
    for name in ("decoder.relative_bias.0", "encoder.positions", "embedding.whatever"):
        table = nn.Embedding(320, 64)
        assert not is_matrix(name, table) and not Quantization().covers(name, table)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_commands_say_where_16_bits_are_slow(monkeypatch, dtype):
    notes = []
    monkeypatch.setattr(reporter, "note", notes.append)
    model = T5(Config.from_hub(checkpoints.SMALL, []))
    model.set_dtype(dtype)
    for device in (mx.gpu, mx.cpu):
        monkeypatch.setattr(mx, "default_device", lambda device=device: device)
        note_types(model, None)
        assert bool(notes) == (device == mx.cpu and dtype != mx.float32)
    assert all("slower than float32" in note for note in notes)
