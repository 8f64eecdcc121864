"""Where a conversion is written: what is there already, what changes, and what is left when it fails."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from helpers import checkpoints
from helpers.programs import DEMO, ROOT
from safetensors.torch import load_file, save_file

from decoder import load
from speculative.checkpoints import weights
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.common.files import hidden
from speculative.models import conversion
from speculative.models.conversion import convert

HOW = ("--dtype", "bfloat16", "--model")


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
