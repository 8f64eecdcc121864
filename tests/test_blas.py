"""A fast BLAS is the one that MLX computes with, without a flag; each in a process of its own."""

import ast
import ctypes
import os
import platform
import subprocess
import sys
from collections import Counter
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

import blas
import main

ROOT = Path(__file__).parent.parent
LINUX_CPU = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has its own")


def run(code: str, **environment: str) -> str:
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")
    without = (blas.SWITCH, *threads)  # which the tests set
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
address = bytes(ctypes.cast(ours, ctypes.c_void_p))
blas.name_globally(dict.fromkeys(blas.NAMES, blas.jump(address)))
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
print(blas.loaded.split()[0], blas.problem, os.environ["OPENBLAS_NUM_THREADS"] == str(len(blas.physical_cores())))
"""
    assert run(code) == "libscipy_openblas.so  True"


@LINUX_CPU
@pytest.mark.parametrize(
    ("environment", "first", "printed"),
    [
        ({"SPECULATIVE_BLAS": "0"}, "", ""),
        ({"LD_PRELOAD": "libblis.so.4"}, "", ""),
        ({}, "import mlx.core", "mlx was imported before it could be loaded"),
        (
            {"SPECULATIVE_BLAS": "/none/such.so"},
            "",
            "/none/such.so cannot be loaded: /none/such.so",
        ),
        ({}, "import sys; sys.modules['scipy_openblas32'] = None", "scipy-openblas32 is not"),
    ],
)
def test_what_is_loaded_instead(environment, first, printed):
    output = run(f"{first}\nimport blas; print(blas.loaded + blas.problem)", **environment)
    assert output.startswith(printed) and bool(output) == bool(printed)


# Products that go to each library, and then where each thread may run, this one first.
THREADS = """
import os, blas
import mlx.core as mx
assert not any(name in os.environ for name in ("GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT"))
for rows in (1, 2, 100):
    mx.eval(mx.ones((rows, 512)) @ mx.ones((1024, 512)).T)
print([sorted(os.sched_getaffinity(int(t))) for t in sorted(os.listdir("/proc/self/task"), key=int)])
"""
CORES = len(blas.physical_cores()) if sys.platform == "linux" else 1
SEVERAL = pytest.mark.skipif(CORES < 2, reason="one core")


@LINUX_CPU
@SEVERAL
def test_threads_that_compute_have_a_core_each():
    own, *others = ast.literal_eval(run(THREADS))
    assert own == sorted(os.sched_getaffinity(0))
    assert all(len(cores) == 1 for cores in others)
    # MLX's thread is alone on its core; on the others is one of OpenBLAS, and of BLIS where that is.
    threads = Counter(core for cores in others for core in cores)
    libraries = 1 + bool(blas._blis()[0])
    assert len(threads) == CORES and 1 in threads.values() and max(threads.values()) == libraries


@LINUX_CPU
@SEVERAL
@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"OPENBLAS_NUM_THREADS": "1"}, ""),
        ({"OMP_PROC_BIND": "false"}, ""),
        ({}, "import ctypes; ctypes.CDLL('libgomp.so.1')"),
    ],
)
def test_threads_are_left_alone_where_they_may_be_fewer_or_are_bound_otherwise(environment, first):
    if first and not find_library("gomp"):
        pytest.skip("no OpenMP")
    anywhere = sorted(os.sched_getaffinity(0))
    assert all(cores == anywhere for cores in ast.literal_eval(run(first + THREADS, **environment)))


@LINUX_CPU
def test_a_blis_that_cannot_be_loaded_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "libblis.so.4").write_bytes(b"no library")
    monkeypatch.setattr(blas, "_BLIS", (f"{tmp_path}/*",))
    assert blas._blis() == ("", b"")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_library_is_one_for_the_machine(machine):
    image = blas.shared_library({"a": bytes(16), "bcd": bytes(90)}, machine)
    assert image[:4] == b"\x7fELF" and image[18] == {"x86_64": 62, "aarch64": 183}[machine]
    assert b"\0a\0bcd\0" in image


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code for x86-64")
ROW, AS_IS, TRANSPOSED = 101, 111, 112  # cblas.h


@pytest.fixture(scope="module")
def recorded():
    """An sgemm whose products go to three functions of ours, and what they were called with."""
    calls, keep = [], []
    integer, real, place = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    of_gemm = [*[integer] * 6, real, place, integer, place, integer, real, place, integer]
    of_gemv = [*[integer] * 4, real, place, integer, place, integer, real, place, integer]

    def recorder(name, kinds):
        keep.append(ctypes.CFUNCTYPE(None, *kinds)(lambda *given: calls.append((name, *given))))
        return bytes(ctypes.cast(keep[-1], place))

    cases = blas.special_cases(recorder("gemv", of_gemv), recorder("few", of_gemm))
    code = cases + blas.jump(recorder("many", of_gemm))
    blas.name_globally({"an_other": blas.jump(bytes(8)), "the_product": code})
    product = ctypes.CDLL(None).the_product
    product.argtypes = of_gemm
    return product, calls, keep


@LINUX_CPU
@X86
@pytest.mark.parametrize(
    ("a", "b", "m", "n", "k", "called"),
    [
        (AS_IS, TRANSPOSED, 1, 768, 768, "gemv"),
        (AS_IS, TRANSPOSED, 1, 9, 64, "gemv"),
        (AS_IS, TRANSPOSED, 2, 768, 768, "few"),
        (AS_IS, TRANSPOSED, 30, 512, 512, "few"),
        (AS_IS, TRANSPOSED, 2, 511, 512, "many"),
        (AS_IS, TRANSPOSED, 31, 768, 768, "many"),
        (AS_IS, AS_IS, 1, 768, 768, "many"),
        (AS_IS, AS_IS, 2, 768, 768, "many"),
        (TRANSPOSED, TRANSPOSED, 1, 768, 768, "many"),
        (TRANSPOSED, TRANSPOSED, 2, 768, 768, "many"),
        (AS_IS, TRANSPOSED, -1, 768, 768, "many"),
    ],
)
def test_each_product_goes_where_it_is_fast(recorded, a, b, m, n, k, called):
    product, calls, _ = recorded
    calls.clear()
    asked = (ROW, a, b, m, n, k, 1.5, 1 << 40, 800, 1 << 41, 900, 0.5, 1 << 42, 60)
    product(*asked)
    vector = (ROW, AS_IS, n, k, 1.5, 1 << 41, 900, 1 << 40, 1, 0.5, 1 << 42, 1)
    assert calls == [(called, *(vector if called == "gemv" else asked))]


@LINUX_CPU
def test_products_are_those_of_numpy():
    """Into memory that holds no numbers, with rows that lie apart, beside and within other arrays."""
    code = """
import itertools, ctypes
import decoder
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


@pytest.mark.parametrize(("width", "told"), [(10, False), (8000, True)])
def test_a_large_model_without_one_says_so(monkeypatch, capsys, width, told):
    monkeypatch.setattr(blas, "problem", "the reason")
    model = SimpleNamespace(parameters=lambda: {"weight": mx.zeros((width, width))})
    main.report_slow(model)
    errors = capsys.readouterr().err
    assert errors.count("\n") == told and ("the reason" in errors) == told
