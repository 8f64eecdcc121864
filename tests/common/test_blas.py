"""What MLX finds when it starts: whole products in float32, and on Linux a fast BLAS; each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from speculative.common import blas

ROOT = Path(__file__).parents[2]
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
        ({"SPECULATIVE_BLAS": "OpenBLAS"}, "", "OpenBLAS"),
        ({"SPECULATIVE_BLAS": "0"}, "", ""),
        ({"SPECULATIVE_BLAS": "1"}, "", "no BLAS for SPECULATIVE_BLAS=1"),
        ({"LD_PRELOAD": "libblas.so"}, "", ""),
        ({}, "import mlx.core", "mlx was imported first"),
    ],
)
def test_what_is_loaded(environment, first, printed):
    output = run(
        f"{first}\nfrom speculative.common import blas; print(blas.loaded + blas.problem)",
        **environment,
    )
    assert output.startswith(printed) and bool(output) == bool(printed)


@pytest.mark.parametrize(
    ("module", "given", "set_to"),
    [("decoder", {}, 0), ("apps.speech", {}, 0), ("decoder", {"MLX_ENABLE_TF32": "1"}, 1)],
)
def test_products_in_float32_are_whole_unless_the_user_says_otherwise(
    monkeypatch, module, given, set_to
):
    monkeypatch.delenv("MLX_ENABLE_TF32")
    assert run(f"import {module}, os; print(os.environ['MLX_ENABLE_TF32'])", **given) == str(set_to)


@pytest.mark.parametrize("on_intel", [True, False])
def test_the_fastest_blas_that_can_be_loaded_is_taken(monkeypatch, tmp_path, on_intel):
    """MKL, of Python's environment before the system's, is the first on Intel's processors, and the last on others."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmkl_rt.so.3").touch()
    tried = []

    def open_library(file: str) -> NoReturn:
        tried.append(Path(file).name)
        raise OSError("no such file")

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(blas, "on_intel", lambda: on_intel)
    monkeypatch.setattr(blas.ctypes, "CDLL", open_library)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.delenv("SPECULATIVE_BLAS", raising=False)
    assert "no such file; pip install" in blas.load()[1]
    mkl = ["libmkl_rt.so.3", "libmkl_rt.so"]
    others = ["libblis.so.4", "libbliso.so.4", "libscipy_openblas.so"]
    assert tried == (mkl + others if on_intel else others + mkl)


def test_blis_uses_all_cores_unless_the_user_says_otherwise():
    code = "from speculative.common import blas; import os; print(os.environ['BLIS_NUM_THREADS'])"
    assert run(code) == str(len(os.sched_getaffinity(0)))
    assert run(code, OMP_NUM_THREADS="3") == "3"


@pytest.mark.parametrize("name", blas.NAMES)
def test_products_are_those_of_numpy(name):
    """Into memory that holds no numbers, within other arrays. PyTorch's names are left alone."""
    code = """
import itertools, ctypes
from speculative.common import blas
import numpy as np
assert not hasattr(ctypes.CDLL(None), "sgemm_")
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
    if name != run(
        "from speculative.common import blas; print(blas.loaded)", SPECULATIVE_BLAS=name
    ):
        pytest.skip(f"no {name} here")
    assert run(code, SPECULATIVE_BLAS=name) == "right"
