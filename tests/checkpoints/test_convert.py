"""Conversion: what comes out loads and computes what went in; what goes wrong leaves nothing."""

import json
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import big_checkpoint, checkpoints
from helpers.models import cached_logits, padded_inputs, reference_logits
from helpers.oracle import flat_weights
from helpers.pairs import RAW
from helpers.programs import DEMO, ROOT
from safetensors.torch import load_file, save_file
from transformers import T5Tokenizer
from transformers.models.auto import modeling_auto

from decoder import load
from speculative.checkpoints import tensors, weights
from speculative.checkpoints.tensors import map_npz
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.common.files import hidden
from speculative.common.reporting import reporter
from speculative.models import conversion
from speculative.models.conversion import convert
from speculative.models.registry import FAMILIES, check_head, family_of

HOW = ("--dtype", "bfloat16", "--model")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A random checkpoint that has the demo's tokenizer (and its vocabulary size)."""
    return checkpoints.make_folder(tmp_path / "checkpoint", "t5")


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


def test_default_output_is_found_by_any_name_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("org/small-model", "other/small-model", "big"):
        checkpoints.make_folder(Path(name), "t5")
    load("org/small-model")  # converts it, as it does a name on the hub
    made = Path("mlx_models/small-model/weights.npz").stat().st_mtime_ns
    for name in ("small-model", Path("org/small-model").resolve(), "mlx_models/small-model"):
        load(name)
    assert Path("mlx_models/small-model/weights.npz").stat().st_mtime_ns == made
    with pytest.raises(InputError, match="mlx_models/small-model is converted from org/small-mod"):
        load("other/small-model")
    monkeypatch.setattr(conversion, "MAX_UNASKED", 1000)
    with pytest.raises(InputError, match=r"big is a conversion of .* GB; to start it: python conv"):
        load("big")
    monkeypatch.chdir("org/small-model")
    assert convert(".") == Path("mlx_models/small-model")


def test_a_checkpoint_that_has_changed_is_converted_again_or_told(tmp_path, monkeypatch):
    """By its own name again, in the type and bits that it had; by that of its conversion a line says how."""
    monkeypatch.chdir(tmp_path)
    checkpoints.make_folder(Path("tuned"), "t5", d_model=32)
    file = Path("tuned/model.safetensors")
    convert("tuned", dtype="float32", quantization=Quantization(bits=8, group_size=32))

    def train():
        state = load_file(file)
        state["decoder.final_layer_norm.weight"] += 1
        save_file(state, file)

    def trained(name):
        """How far a model has been trained."""
        model = load(name)[0]
        assert model.embedding.bits == 8 and model.embedding.scales.dtype == mx.float32
        return round((model.decoder.norm.weight.mean() - start).item())

    start = load("tuned")[0].decoder.norm.weight.mean()
    train()
    flags = "--dtype float32 --force, and its flags of quantization"
    command = f"python convert.py --model tuned --mlx-path mlx_models/tuned {flags}"
    with pytest.warns(match=f"tuned has changed since its conversion; to repeat it: {command}$"):
        assert trained("mlx_models/tuned") == 0
    assert trained(Path("tuned").resolve()) == trained("mlx_models/tuned") == 1
    train()
    file.rename("aside")  # as what is no longer needed
    assert trained("tuned") == 1
    Path("aside").rename(file)
    write = conversion.write_weights
    monkeypatch.setattr(conversion, "write_weights", lambda *args: [write(*args), train()])
    trained("tuned")
    monkeypatch.setattr(conversion, "write_weights", write)
    assert trained("tuned") == 3  # what changed while it was read is converted again


def test_an_output_that_exists_is_replaced_only_by_force(folder, tmp_path):
    output = convert(str(folder), tmp_path / "out")
    before = (output / "weights.npz").stat().st_ino
    with pytest.raises(InputError, match="already exists; --force replaces it"):
        convert(str(folder), output)
    assert convert(str(folder), output, exist_ok=True) == output
    assert (output / "weights.npz").stat().st_ino == before
    convert(str(folder), output, dtype="float32", force=True)
    assert load(output)[0].embedding.weight.dtype == mx.float32
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint", "out", ".out.lock"}


def test_force_replaces_nothing_but_converted_models(folder, tmp_path):
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.txt").write_text("It was")
    shutil.copytree(DEMO / "causal-target", tmp_path / "not ours")
    for output in (precious, precious / "chapter1.txt", tmp_path / "not ours"):
        with pytest.raises(InputError, match="not a converted model: choose another --mlx-path"):
            convert(str(folder), output, force=True)
    assert (precious / "chapter1.txt").read_text() == "It was"
    output = convert(str(folder), tmp_path / "out")
    (tmp_path / "link").symlink_to(output)
    convert(str(folder), tmp_path / "link", "float32", force=True)
    assert load(output)[0].embedding.weight.dtype == mx.float32


@pytest.mark.parametrize("force", [False, True])
def test_an_output_is_never_what_it_is_made_from(tmp_path, monkeypatch, force):
    """A decoder-only checkpoint in mlx_models/, a link to it, a folder that holds it, an adapter and its base."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO / "causal-target", "mlx_models/my")
    Path("link").symlink_to("mlx_models/my")
    (tmp_path / "config.json").write_text('{"converted_from": "another"}')
    for name in ("base", "adapter"):
        checkpoints.make_folder(Path(name), "t5")
    Path("adapter/adapter_config.json").write_text('{"peft_type": "LORA"}')
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    cases = [
        ("mlx_models/my", None, None),
        ("mlx_models/my", "link", None),
        ("link", "mlx_models/my", None),
    ]
    cases += [("base", "base", None), ("base", ".", None), ("mlx_models/my", "mlx_models", None)]
    cases += [("adapter", "adapter", "base"), ("adapter", "base", "base")]
    for model, output, base in cases:
        with pytest.raises(InputError, match=r"would replace its source .*: choose another"):
            convert(model, output and Path(output), force=force, base=base)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_failed_replacement_leaves_the_earlier_conversion(folder, tmp_path, monkeypatch):
    output = convert(str(folder), tmp_path / "out")
    monkeypatch.setattr(weights, "write_npz_member", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert(str(folder), output, force=True)
    load(output)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing(folder, tmp_path):
    """Simulated by a limit on the size of a file, in the tokenizer's files, amid weights.npz and at its end."""
    size = (convert(str(folder), tmp_path / "whole") / "weights.npz").stat().st_size
    code = (
        "import resource, sys, convert; from apps.cli import cli;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop()),) * 2);"
        "cli.run(convert.main)"
    )
    output = tmp_path / "out"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for limit in (1, size // 2, size - 1):
        command = [sys.executable, "-c", code, *HOW, folder, "--mlx-path", output, str(limit)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 1
        assert result.stderr == f"-c: {output}: File too large\n"
        (tmp_path / ".out.lock").unlink()
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


SLOW_CONVERSION = """
import sys, time
import convert
from speculative.checkpoints import weights
write = weights.write_npz_member
def slow(*args):
    write(*args)
    print("member", flush=True)
    time.sleep(0.2)
weights.write_npz_member = slow
from apps.cli import cli
cli.run(convert.main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_conversion_leaves_nothing_that_loads_and_can_be_repeated(folder, tmp_path, sign):
    output = tmp_path / "out"
    command = [sys.executable, "-c", SLOW_CONVERSION, *HOW, folder, "--mlx-path", output]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        assert process.stdout.readline() == b"member\n"
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if sign == signal.SIGINT else -sign)
    assert sign == signal.SIGKILL or errors.decode().strip() == "interrupted"
    left = {hidden(output, "partial").name} if sign == signal.SIGKILL else set()
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint", ".out.lock"} | left
    load(convert(str(folder), output))


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


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.bin", "is CTranslate2's"),
        ("checkpoint-1500", "no weights but a Trainer's folders: use .*/checkpoint-1500$"),
        ("model-Q4.gguf", "is GGUF"),
    ],
)
def test_formats_of_other_projects_are_named(tmp_path, file, message):
    (tmp_path / file).write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoint-500").mkdir()
    for model in (tmp_path, *tmp_path.glob("*.gguf")):
        with pytest.raises(InputError, match=message):
            convert(str(model), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
        (lambda f: checkpoints.edit(f, model_type="bert"), "a bert model; there are t5, mt5"),
        (
            lambda f: checkpoints.edit(f, architectures=["T5EncoderModel"]),
            "a T5EncoderModel is for other tasks: it cannot generate text",
        ),
        (lambda f: (f / "spiece.model").unlink(), "it has no tokenizer.json and no spiece.model"),
        (lambda f: (f / "spiece.model").write_bytes(b"x"), "spiece.model: not a tokenizer: "),
    ],
)
def test_wrong_checkpoints_are_named(folder, tmp_path, change, message):
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        convert(str(folder), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_every_model_for_another_task_is_refused():
    tasks = "SEQUENCE TOKEN AUDIO".split()
    others = [f"MODEL_FOR_{task}_CLASSIFICATION_MAPPING_NAMES" for task in tasks]
    others += [
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    ]
    listed = [vars(modeling_auto)[name].items() for name in others]
    refused = [name for kind, name in chain(*listed) if kind in FAMILIES]
    assert len(refused) > 20
    for name in refused:
        with pytest.raises(InputError, match=f"a {name} is for other tasks"):
            check_head({"architectures": [name]})
    for name in chain(*(raw["architectures"] for raw in RAW.values() if "architectures" in raw)):
        check_head({"architectures": [name]})


# With these MLX would read outside a table, or not come to an end.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_start_token_id": 10**6}, "is 1000000, but vocab_size is only 1024"),
        ({"num_layers": 20_000}, "num_layers is 20000, not a whole number from 1 to 1024"),
    ],
)
def test_a_config_that_cannot_be_is_refused_when_converted_and_when_loaded(
    folder, tmp_path, changes, message
):
    output = convert(str(folder), tmp_path / "out")
    for place, use in (
        (folder, lambda: convert(str(folder), tmp_path / "no")),
        (output, lambda: load(output)),
    ):
        checkpoints.edit(place, **changes)
        started = time.process_time()
        with pytest.raises(InputError, match=message) as caught:
            use()
        assert str(place) in str(caught.value)
        assert time.process_time() - started < 5
    assert not (tmp_path / "no").exists()


def test_more_pieces_than_rows_are_refused_when_converted_and_when_loaded(folder, tmp_path):
    output = convert(str(folder), tmp_path / "out")  # as many pieces as rows
    few = checkpoints.make_folder(tmp_path / "few", "t5", vocab_size=1023)
    with pytest.raises(
        InputError, match="token 1023, but the embedding has only 1023 rows"
    ) as caught:
        convert(str(few), tmp_path / "no")
    assert str(few) in str(caught.value)
    tokenizer = json.loads((output / "tokenizer.json").read_text())
    framing = tokenizer["post_processor"]["special_tokens"]["</s>"]
    for change in (
        lambda: framing.update(ids=[10**6]),
        lambda: framing.update(ids=[1]) or tokenizer["model"]["vocab"].append(["new", -9.0]),
    ):
        change()
        (output / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(InputError, match=r"tokenizer.json: the tokenizer has the token 10"):
            load(output)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("decoder.final_layer_norm.weight", None, "Missing 1 parameters: decoder.norm.weight"),
        ("shared.weight", None, "no shared.weight: not a T5-type model"),
        ("shared.weight", (1024, 25), r"shape \(1024, 24\) but received shape \(1024, 25\)"),
        ("encoder.block.2.layer.1.layer_norm.weight", (24,), "not in model: encoder.layers.2"),
        ("x.lora_A.weight", (8, 24), "x.lora_A.weight is PEFT's: merge_and_unload"),
        ("base_model.model.x", (24,), "base_model.model.x is PEFT's: merge_and_unload"),
    ],
)
def test_wrong_weights_are_named(folder, tmp_path, name, shape, message):
    state = load_file(folder / "model.safetensors")
    state.pop(name, None)
    state |= {name: torch.zeros(shape)} if shape else {}
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        convert(str(folder), tmp_path / "out")
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint", ".out.lock"}
