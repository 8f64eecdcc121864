"""What MLX finds when it starts: whole products in float32, and on Linux a fast BLAS; each in a process of its own."""

import ast
import ctypes
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from common import blas

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


# Where each thread may run, this one first.
THREADS = """
import os, decoder
assert not any(name in os.environ for name in ("OPENBLAS_THREAD_TIMEOUT", "GOMP_SPINCOUNT"))
print([sorted(os.sched_getaffinity(int(t))) for t in sorted(os.listdir("/proc/self/task"), key=int)])
"""


@pytest.mark.skipif(sys.platform == "linux" and len(blas.physical_cores()) < 2, reason="one core")
@pytest.mark.parametrize("given", [{}, {"OPENBLAS_NUM_THREADS": "2"}, {"OMP_PROC_BIND": "false"}])
def test_threads_that_compute_have_a_core_each_unless_the_user_says_where_they_run(given):
    own, *others = ast.literal_eval(run(THREADS, **given))
    assert own == sorted(os.sched_getaffinity(0))
    bound = sorted(cores for cores in others if cores != own)
    # MLX's thread is alone on its core; on the others is one of OpenBLAS, and of BLIS where that is.
    first, *more = blas.physical_cores()
    expected = sorted([core] for core in [first, *more * (1 + bool(blas._blis()[1]))])
    assert bound == ([] if given else expected)


ROW, AS_IS, TRANSPOSED = 101, 111, 112  # cblas.h


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code for x86-64")
@pytest.mark.parametrize(
    ("to", "a", "b", "m", "n", "k"),
    [
        ("gemv", AS_IS, TRANSPOSED, 1, 9, 64),
        ("few", AS_IS, TRANSPOSED, 30, 512, 512),
        ("many", AS_IS, TRANSPOSED, 2, 511, 512),
        ("many", AS_IS, TRANSPOSED, 31, 768, 768),
        ("many", AS_IS, AS_IS, 1, 768, 768),
        ("many", TRANSPOSED, TRANSPOSED, 1, 768, 768),
    ],
)
def test_each_product_goes_where_it_is_fast(to, a, b, m, n, k):
    calls: list[str] = []
    functions = [
        ctypes.CFUNCTYPE(None)(partial(calls.append, name)) for name in ("gemv", "few", "many")
    ]
    sgemm = blas.sgemm(*(ctypes.cast(each, ctypes.c_void_p).value for each in functions))
    integer, real, place = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    factors = [real, place, integer, place, integer, real, place, integer]
    product = ctypes.CFUNCTYPE(None, *[integer] * 6, *factors)(sgemm)
    product(ROW, a, b, m, n, k, 1.5, 1 << 40, 800, 1 << 41, 900, 0.5, 1 << 42, 60)
    assert calls == [to]


@pytest.mark.parametrize("without", ["", "from pathlib import Path; Path.glob = lambda *_: ()"])
def test_products_are_those_of_numpy(without):
    """With BLIS and without, into memory that holds no numbers, within other arrays."""
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
    assert run(without + code) == "right"
