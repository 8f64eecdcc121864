"""A fast BLAS is the one that MLX computes with, without a flag; each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

import blas
import main

ROOT = Path(__file__).parent.parent
LINUX_CPU = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has its own")


def run(code: str, **environment: str) -> str:
    without = (blas.SWITCH, "OPENBLAS_NUM_THREADS")  # which the tests set
    environment = {k: v for k, v in os.environ.items() if k not in without} | environment
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@LINUX_CPU
def test_what_is_named_globally_is_what_mlx_calls():
    """A product goes to a function of ours, which writes 7 into the result's first place."""
    code = """
import ctypes, os
os.environ["SPECULATIVE_BLAS"] = "0"
import blas
kinds = [ctypes.c_int] * 6 + [ctypes.c_float] + [ctypes.c_void_p, ctypes.c_int] * 2
@ctypes.CFUNCTYPE(None, *kinds, ctypes.c_float, ctypes.POINTER(ctypes.c_float), ctypes.c_int)
def ours(*arguments):
    arguments[-2][0] = 7
address = ctypes.cast(ours, ctypes.c_void_p).value
blas.name_globally(dict.fromkeys(blas.NAMES, address))
import mlx.core as mx
print((mx.ones((3, 4)) @ mx.ones((4, 5)))[0, 0].item())
"""
    assert run(code) == "7.0"


@LINUX_CPU
def test_importing_the_decoder_loads_openblas_with_as_many_threads_as_cores():
    code = """
import os, decoder, blas
import mlx.core as mx
import numpy as np
a, b = mx.random.normal((8, 300)), mx.random.normal((300, 50))
assert np.allclose(np.array(a @ b), np.array(a) @ np.array(b), atol=1e-4)
print(blas.loaded.name, blas.problem, os.environ["OPENBLAS_NUM_THREADS"] == str(blas.physical_cores()))
"""
    assert run(code) == "libscipy_openblas.so  True"


@LINUX_CPU
@pytest.mark.parametrize(
    ("environment", "first", "printed"),
    [
        ({"SPECULATIVE_BLAS": "0"}, "", "None"),
        ({"LD_PRELOAD": "libblis.so.4"}, "", "None"),
        ({}, "import mlx.core", "None"),  # too late
        (
            {"SPECULATIVE_BLAS": "/none/such.so"},
            "",
            "None /none/such.so cannot be loaded: /none/such.so",
        ),
        ({}, "import sys; sys.modules['scipy_openblas32'] = None", "None scipy-openblas32 is not"),
    ],
)
def test_what_is_loaded_instead(environment, first, printed):
    assert run(f"{first}\nimport blas; print(blas.loaded, blas.problem)", **environment).startswith(
        printed
    )


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_library_is_one_for_the_machine(machine):
    image = blas.jumping_library({"a": 1, "bcd": 2}, machine)
    assert image[:4] == b"\x7fELF" and image[18] == {"x86_64": 62, "aarch64": 183}[machine]
    assert b"\0a\0bcd\0" in image


@pytest.mark.parametrize(("width", "told"), [(10, False), (8000, True)])
def test_a_large_model_without_one_says_so(monkeypatch, capsys, width, told):
    monkeypatch.setattr(blas, "problem", "the reason")
    model = SimpleNamespace(parameters=lambda: {"weight": mx.zeros((width, width))})
    main.report_slow(model)
    errors = capsys.readouterr().err
    assert errors.count("\n") == told and ("the reason" in errors) == told
