"""What MLX finds when it starts: whole products in float32, and on Linux a fast BLAS; each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has its own")


def run(code: str, **environment: str) -> str:
    given = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | environment
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("environment", "first", "printed"),
    [
        ({}, "", "libscipy_openblas.so"),
        ({"SPECULATIVE_BLAS": "0"}, "", ""),
        ({}, "import mlx.core", "mlx was imported first"),
    ],
)
def test_what_is_loaded(environment, first, printed):
    output = run(
        f"{first}\nfrom common import blas; print(blas.loaded + blas.problem)", **environment
    )
    assert output.startswith(printed) and bool(output) == bool(printed)


@pytest.mark.parametrize(
    ("module", "given", "set_to"),
    [("decoder", {}, 0), ("speech", {}, 0), ("decoder", {"MLX_ENABLE_TF32": "1"}, 1)],
)
def test_products_in_float32_are_whole_unless_the_user_says_otherwise(
    monkeypatch, module, given, set_to
):
    monkeypatch.delenv("MLX_ENABLE_TF32")
    assert run(f"import {module}, os; print(os.environ['MLX_ENABLE_TF32'])", **given) == str(set_to)


def test_products_are_those_of_numpy():
    """Into memory that holds no numbers, within other arrays."""
    code = """
import itertools, ctypes
from common import blas
import numpy as np
sgemm = ctypes.CDLL(None).cblas_sgemm
real, place = ctypes.c_float, lambda array: ctypes.c_void_p(array.ctypes.data)
for m, (n, k), b_as in itertools.product(
    (1, 2, 15, 16, 40), ((70, 3), (70, 64), (70, 300), (600, 500)), (111, 112)
):
    a = np.random.rand(m, k + 5).astype(np.float32)
    b = np.random.rand(*((k, n + 3) if b_as == 111 else (n, k + 3))).astype(np.float32)
    c = np.full((m, n + 2), np.nan, np.float32)
    sgemm(101, 111, b_as, m, n, k, real(2), place(a), k + 5, place(b), b.shape[1], real(0), place(c), n + 2)
    right = 2 * a[:, :k] @ (b[:, :n] if b_as == 111 else b[:, :k].T)
    assert np.allclose(c[:, :n], right, rtol=1e-4) and np.isnan(c[:, n:]).all(), (m, k, b_as)
print("right")
"""
    assert run(code) == "right"
