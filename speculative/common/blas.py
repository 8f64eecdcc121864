"""For MLX to find when it starts: exact products in float32, and on Linux a fast BLAS. Import this before mlx.

On Apple's M5 (and NVIDIA's GPUs) MLX rounds the factors of float32 products to TF32's 11 bits, unless a product has one
row (MLX's issue 4411). A check of several tokens would not be exact, so we ask for full float32.

The wheel mlx[cpu] brings the reference BLAS, which is several times slower; with it drafting gains nothing (see
docs/tried.md). libmlx looks cblas_sgemm up by name, and the dynamic linker takes the first one in the process's global
scope. We put MKL's or BLIS's there if the machine has them, else OpenBLAS's, from a wheel in requirements.txt. No other
name is global: with BLIS's zdotc_, PyTorch's torch.vdot gives 0. Nothing happens on macOS, with MLX's CUDA backend, or if
LD_PRELOAD names a BLAS.
"""

import ctypes
import importlib.metadata
import os
import platform
import struct
import sys
import warnings
from pathlib import Path

NAMES = ("MKL", "BLIS", "OpenBLAS")
SWITCH = "SPECULATIVE_BLAS"  # the only one to load; 0: keep MLX's own


def load() -> tuple[str, str]:
    """Make a fast cblas_sgemm global. Returns the name of its library, and the reason if there is none; both are ""
    if none is needed."""
    has_cpu = sys.platform == "linux" and any(importlib.metadata.distributions(name="mlx-cpu"))
    preloaded = any(name in os.environ.get("LD_PRELOAD", "") for name in ("blas", "blis", "mkl"))
    wanted = os.environ.get(SWITCH, "").lower()
    if not has_cpu or preloaded or wanted == "0":
        return "", ""
    if "mlx.core" in sys.modules:
        return "", "mlx was imported first; import decoder before mlx"
    # How long idle threads spin, which libraries read when loaded. With the defaults, two processes side by side decode at
    # a seventh of the speed. 1000 is libgomp's own if threads outnumber cores.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    threads = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    os.environ.setdefault("BLIS_NUM_THREADS", threads)  # its own default is 1
    problem = f"no BLAS for {SWITCH}={wanted}, which may be 0 or one of {', '.join(NAMES)}"
    for name, file, product in candidates():
        if wanted not in ("", name.lower()):
            continue
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(file), product), ctypes.c_void_p).value
            name_globally("cblas_sgemm", address or 0)
            return name, ""
        except (OSError, AttributeError, KeyError) as error:
            problem = f"cannot load {name}: {error}; pip install -r requirements.txt"
    return "", problem


def candidates() -> list[tuple[str, str, str]]:
    """Where a BLAS may be, fastest first: its name, its file, and what it calls cblas_sgemm."""
    of_python = sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")), reverse=True)
    mkl = [("MKL", file, "cblas_sgemm") for file in (*of_python, "libmkl_rt.so")]
    # Debian's and Fedora's for OpenMP; those for pthreads start threads for every product.
    debian = f"/usr/lib/{platform.machine()}-linux-gnu/blis-openmp/libblis.so.4"
    blis = [("BLIS", file, "cblas_sgemm") for file in (debian, "libbliso.so.4")]
    file = "scipy_openblas32/lib/libscipy_openblas.so"
    wheels = importlib.metadata.distributions(name="scipy-openblas32")
    openblas = [("OpenBLAS", str(w.locate_file(file)), "scipy_cblas_sgemm") for w in wheels]
    if on_intel():
        return mkl + blis + openblas
    return blis + openblas + mkl


def on_intel() -> bool:
    """Whether this processor is Intel's. On AMD's MKL is slower than the others for two rows or more."""
    with open("/proc/cpuinfo") as file:
        return "GenuineIntel" in file.read(200)


def name_globally(name: str, address: int) -> None:
    """Give a function a name in the process's global scope, by loading a minimal shared library made in memory
    (System V ABI, chapters 4 and 5; ELF, 64 bits)."""
    names = b"\0" + name.encode() + b"\0"
    table = struct.pack("<12Q", 4, 376, 5, 396, 6, 328, 10, len(names), 11, 24, 0, 0)
    symbol = struct.pack("<IBBHQQ", 1, 0x12, 0, 0xFFF1, address, 0)  # a global function
    hashes = struct.pack("<5I", 1, 2, 1, 0, 0)
    kind = (3, {"x86_64": 62, "aarch64": 183}[platform.machine()], 1)  # a shared library
    image = struct.pack("<16s2HI3QI6H", b"\x7fELF\2\1\1", *kind, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    # Segments: the whole library and its dynamic table, both read-write; no executable stack.
    for use, at, size in ((1, 0, 396 + len(names)), (2, 232, 96), (0x6474E551, 0, 0)):
        image += struct.pack("<IIQQQQQQ", use, 6, at, at, at, size, size, 1 << 16)
    file = os.memfd_create("names")
    os.write(file, image + table + bytes(24) + symbol + hashes + names)
    ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
    os.close(file)


os.environ.setdefault("MLX_ENABLE_TF32", "0")
loaded, problem = load()
if problem:
    warnings.warn(f"matrix products will be up to eight times slower: {problem}", stacklevel=3)
