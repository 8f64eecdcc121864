"""For MLX to find when it starts: exact products in float32, and on Linux a fast BLAS. Import this before mlx.

On Apple's M5 (and NVIDIA's GPUs) MLX rounds the factors of float32 products to TF32's 11 bits, unless a product has one
row (MLX's issue 4411). A check of several tokens would not be exact, so we ask for full float32.

The wheel mlx[cpu] brings the reference BLAS, which is several times slower; with it drafting gains nothing (see
docs/tried.md). libmlx looks cblas_sgemm up by name, and the dynamic linker takes the first one in the process's global
scope. We put that of a faster BLAS there: MKL or BLIS if the machine has one, else OpenBLAS, whose wheel is in
requirements.txt. Only this name is global: if all names of BLIS were, PyTorch would use them too, and get 0 for
torch.vdot of complex numbers. Nothing happens on macOS, with MLX's CUDA backend, or if LD_PRELOAD names a BLAS.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

SWITCH = "SPECULATIVE_BLAS"  # one of INSTALL, to load no other; 0: keep MLX's own
# Fastest for few rows first.
INSTALL = {
    "MKL": "pip install mkl",
    "BLIS": "apt install libblis4-openmp",
    "OpenBLAS": "pip install -r requirements.txt",
}


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
    # How long idle threads spin, which the library reads when loaded. With the default, two processes side by side decode at
    # a seventh of the speed.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    threads = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    os.environ.setdefault("BLIS_NUM_THREADS", threads)  # its own default is 1
    problem = f"{SWITCH}={wanted} is none of 0, {', '.join(INSTALL)}"
    for name, file, product in candidates():
        if wanted not in ("", name.lower()):
            continue
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(file), product), ctypes.c_void_p).value
            name_globally("cblas_sgemm", address or 0)
            return name, ""
        except (OSError, AttributeError, KeyError) as error:
            problem = f"cannot load {name}: {error} ({INSTALL[name]})"
    return "", problem


def candidates() -> Iterator[tuple[str, str, str]]:
    """Where a BLAS may be, best first: its name, its file, and what it calls cblas_sgemm."""
    of_python = Path(sys.prefix, "lib").glob("libmkl_rt.so*")  # pip's or conda's
    for file in (*sorted(map(str, of_python), reverse=True), "libmkl_rt.so"):
        yield "MKL", file, "cblas_sgemm"
    # With OpenMP, as Debian and Fedora name it: the build with pthreads starts threads for every product.
    debian = f"/usr/lib/{platform.machine()}-linux-gnu/blis-openmp/libblis.so.4"
    for file in (debian, "libbliso.so.4"):
        yield "BLIS", file, "cblas_sgemm"
    package = importlib.util.find_spec("scipy_openblas32")
    folder = Path(getattr(package, "origin", "")).parent
    yield "OpenBLAS", str(folder / "lib/libscipy_openblas.so"), "scipy_cblas_sgemm"


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
