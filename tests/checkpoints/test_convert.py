"""A converted model loads, and computes what the checkpoint computed."""

import json
import shutil
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import big_checkpoint, checkpoints
from helpers.models import cached_logits, padded_inputs, reference_logits
from helpers.oracle import flat_weights
from helpers.programs import DEMO, ROOT
from safetensors.torch import load_file, save_file
from transformers import T5Tokenizer

from decoder import load
from speculative.checkpoints import tensors
from speculative.checkpoints.tensors import map_npz
from speculative.common.reporting import reporter
from speculative.models.conversion import convert
from speculative.models.registry import family_of


@pytest.mark.parametrize(
    ("variant", "kind", "shards"),
    [
        *((variant, "safetensors", 1) for variant in checkpoints.VARIANTS),
        *(("v1.1", kind, 3) for kind in checkpoints.FORMATS),
    ],
)
def test_converted_models_load_and_agree_with_transformers(tmp_path, variant, kind, shards):
    source = checkpoints.make_folder(tmp_path / "source", variant, shards, kind)
    output = convert(str(source), tmp_path / "out", dtype="float32")
    model, tokenizer = load(output)
    assert tokenizer.encode("The house").ids[-1] == 1
    inputs = padded_inputs(61)
    raw = json.loads((source / "config.json").read_text())
    expected = reference_logits(checkpoints.torch_model(raw), *inputs)
    assert (
        np.abs(cached_logits(model, *inputs, 7) - expected).max() <= 1e-4 * np.abs(expected).max()
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_that_of_every_weight(folder, tmp_path, dtype):
    output = convert(str(folder), tmp_path / "out", dtype=dtype)
    model, _ = load(output)
    for name, weight in flat_weights(model):
        exempt = dtype == "float16" and name.endswith("feed_forward.down.weight")
        assert weight.dtype == (mx.float32 if exempt else getattr(mx, dtype)), name
    original = load_file(folder / "model.safetensors")["shared.weight"]
    rounded = original.to(getattr(torch, dtype)).float().numpy()
    assert (np.array(model.embedding.weight.astype(mx.float32)) == rounded).all()
    assert json.loads((output / "config.json").read_text())["dtype"] == dtype


def test_a_tied_embedding_of_torch_files_is_read_and_written_once(folder, tmp_path, monkeypatch):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shared = state["shared.weight"]
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    raw = json.loads((folder / "config.json").read_text())
    checkpoints.save(folder, raw, state | dict.fromkeys(names, shared), kind="legacy")
    read = []
    blocks = tensors.Tensor.blocks
    monkeypatch.setattr(tensors.Tensor, "blocks", lambda t: read.append(t) or blocks(t))
    output = convert(str(folder), tmp_path / "out", dtype="float32")
    assert len(read) == len(set(read)) == len(state)
    arrays = map_npz(output / "weights.npz")
    assert (arrays["embedding.weight"] == shared.numpy()).all()
    assert "head.weight" not in arrays


def test_weights_that_are_not_finite_are_written_and_named(folder, tmp_path):
    state = load_file(folder / "model.safetensors")
    state["encoder.final_layer_norm.weight"][3] = float("nan")
    state["shared.weight"][7, 2] = -1e30  # beyond float16
    save_file(state, folder / "model.safetensors")
    for dtype, names in (
        ("float32", "encoder.norm.weight"),
        ("float16", "embedding.weight, encoder.norm.weight"),
    ):
        with pytest.warns(UserWarning, match=f"^warning: NaN or infinite as {dtype}: {names}$"):
            output = convert(str(folder), tmp_path / dtype, dtype)
        assert np.isnan(map_npz(output / "weights.npz")["encoder.norm.weight"][3])


def test_a_head_of_its_own_is_kept_whatever_the_config_says(folder, tmp_path):
    state = load_file(folder / "model.safetensors")
    head = state["shared.weight"] + 1
    save_file(state | {"lm_head.weight": head}, folder / "model.safetensors")
    output = convert(str(folder), tmp_path / "out", dtype="float32")
    assert (map_npz(output / "weights.npz")["head.weight"] == head.numpy()).all()
    model, _ = load(output)
    assert model.config.scale_decoder_outputs  # which is the flag's true meaning


def test_generation_config_decides_the_token_ids(folder, tmp_path):
    ids = {"eos_token_id": [1, 7], "decoder_start_token_id": 3, "pad_token_id": None, "top_k": 4}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    model, _ = load(convert(str(folder), tmp_path / "out"))
    assert model.config.eos_token_ids == (1, 7)
    assert model.config.decoder_start_token_id == 3
    assert model.config.pad_token_id == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a child's own peak is asked of /proc")
def test_tensors_of_t5_11bs_size_are_converted_in_bounded_memory(tmp_path):
    source = big_checkpoint.write(tmp_path / "big")
    shutil.copyfile(DEMO / "target" / "spiece.model", source / "spiece.model")
    code = (
        "import re, sys, convert;"
        "from pathlib import Path;"
        "convert.convert(sys.argv[1], Path(sys.argv[2]));"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    command = [sys.executable, "-c", code, source, tmp_path / "out"]
    peak = int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert (tmp_path / "out" / "weights.npz").stat().st_size > 2**29
    shutil.rmtree(tmp_path / "out")
    assert peak < 300 * 2**10


def test_the_type_is_what_the_family_needs(folder, tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(reporter, "note", notes.append)
    assert {family_of({"model_type": kind}).dtype for kind in ("bart", "whisper")} == {"float16"}
    assert family_of({"model_type": "pegasus"}).dtype == "bfloat16"
    for dtype in (None, "float16"):
        output = convert(str(folder), tmp_path / str(dtype), dtype)
        stored = json.loads((output / "config.json").read_text())["dtype"]
        assert stored == (dtype or "bfloat16")
        assert any("without a GPU --dtype float32 is" in note for note in notes) == (dtype is None)
        notes.clear()


@pytest.mark.parametrize("added", [[], ["<new>", "<x>"]])
def test_tokens_without_a_row_are_left_out(folder, tmp_path, monkeypatch, added):
    """The sentinels that T5 has by default, and what was added to the tokenizer alone."""
    reference, notes = T5Tokenizer.from_pretrained(folder), []
    expected = {text: reference(text).input_ids for text in ("17 7", "a <extra_id_0> b", "<new>")}
    if added:
        reference.add_tokens(added)
        reference.save_pretrained(folder)
    else:
        (folder / "tokenizer_config.json").unlink()
    monkeypatch.setattr(reporter, "note", notes.append)
    _, tokenizer = load(convert(str(folder), tmp_path / "out", dtype="float32"))
    assert {text: tokenizer.encode(text).ids for text in expected} == expected
    left_out = "2 tokens without a row in the model: <new> <x>" if added else "100 tokens without"
    assert [note for note in notes if f"tokenizer.json: left out {left_out}" in note] == notes
