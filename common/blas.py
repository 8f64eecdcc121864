"""For MLX to find when it starts: exact products in float32, and on Linux a fast BLAS. Import this before mlx.

On Apple's M5 (and NVIDIA's GPUs) MLX rounds the factors of float32 products to TF32's 11 bits, unless a product has one
row (MLX's issue 4411). A check of several tokens would not be exact, so we ask for full float32.

The wheel mlx[cpu] brings the reference BLAS, which is several times slower; with it drafting gains nothing (see
docs/tried.md). libmlx looks cblas_sgemm up by name, and the dynamic linker takes the first one in the process's global
scope. We put OpenBLAS there, from a wheel in requirements.txt that calls it scipy_cblas_sgemm. Nothing happens on macOS,
with MLX's CUDA backend, or if LD_PRELOAD names a BLAS.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import struct
import sys
import warnings
from pathlib import Path

SWITCH = "SPECULATIVE_BLAS"  # 0: keep MLX's own


def load() -> tuple[str, str]:
    """Make a fast cblas_sgemm global. Returns the name of its file, and the reason if there is none; both are ""
    if none is needed."""
    has_cpu = sys.platform == "linux" and any(importlib.metadata.distributions(name="mlx-cpu"))
    preloaded = any(name in os.environ.get("LD_PRELOAD", "") for name in ("blas", "blis", "mkl"))
    if not has_cpu or preloaded or os.environ.get(SWITCH) == "0":
        return "", ""
    if "mlx.core" in sys.modules:
        return "", "mlx was imported first; import decoder before mlx"
    package = importlib.util.find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        return "", "scipy-openblas32 is not installed: pip install -r requirements.txt"
    path = Path(package.origin).parent / "lib/libscipy_openblas.so"
    # How long idle threads spin, which the library reads when loaded. With the default, two processes side by side decode at
    # a seventh of the speed.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    try:
        product = ctypes.CDLL(str(path)).scipy_cblas_sgemm
        name_globally("cblas_sgemm", ctypes.cast(product, ctypes.c_void_p).value or 0)
    except (OSError, AttributeError, KeyError) as error:
        return "", f"cannot load {path}: {error}"
    return path.name, ""


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
