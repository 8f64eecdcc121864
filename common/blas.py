"""What MLX finds when it starts: exact products in float32, and on Linux a fast BLAS. Import this before mlx.

On Apple's M5 (and NVIDIA's GPUs) MLX rounds the factors of float32 products to TF32's 11 bits, unless a product has one
row (MLX's issue 4411). A check of several tokens would not be exact, so we ask for full float32.

The wheel mlx[cpu] brings the reference BLAS, which is several times slower; with it drafting gains nothing (see
docs/tried.md). libmlx looks cblas_sgemm up by name, and the dynamic linker takes the first one in the process's global
scope. We put OpenBLAS there, from a wheel in requirements.txt that calls it scipy_cblas_sgemm. Products of 2 to 30 rows
go to BLIS if the system has it. Nothing happens on macOS, with MLX's CUDA backend, or if LD_PRELOAD names a BLAS.
"""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import struct
import sys
import warnings
from pathlib import Path

SWITCH = "SPECULATIVE_BLAS"  # 0: keep MLX's own

# On x86-64, turn a product of one row, cblas_sgemm(row major, A not transposed, B transposed, 1, N, K, ...), into
# cblas_sgemv(row major, B not transposed, N, K, ...), which reads B twice as fast (on ARM, OpenBLAS does this itself).
# sgemv's arguments take the places of sgemm's (System V ABI, AMD64 supplement, 3.2.3). Products of 2 to 30 rows with
# 2^18 weights or more go to BLIS.
_SGEMM = bytes.fromhex(
    "83fe6f 7553 83fa70 754e"  # cmp esi, 111; jne others; cmp edx, 112; jne others
    "83f901 7530"  # cmp ecx, 1; jne few
    "4489c2 4489c9"  # mov edx, r8d; mov ecx, r9d: N and K
    "4c8b442418 448b4c2420"  # mov r8, [rsp + 24]; mov r9d, [rsp + 32]: B and its row's length
    "488b442428"  # mov rax, [rsp + 40]: C
    "c744241001000000"  # mov dword [rsp + 16], 1: A, step 1
    "4889442418 c744242001000000"  # mov [rsp + 24], rax; mov dword [rsp + 32], 1: C, step 1
    "ff251f000000"  # jmp [gemv]
    "83f91e 7714"  # few: cmp ecx, 30; ja others
    "4489c0 410fafc1"  # mov eax, r8d; imul eax, r9d: N K
    "3d00000400 7206"  # cmp eax, 2^18; jb others
    "ff250e000000"  # jmp [few rows]
    "ff2510000000"  # others: jmp [others]
)
_THREADS = Path("/proc/self/task")
# BLIS built with OpenMP, on Debian and Ubuntu, and on Fedora. The pthreads build starts threads for each product.
_BLIS = ("usr/lib/*/blis-openmp/libblis.so.*", "usr/lib64/libbliso.so.*")
# How long idle threads spin. With the defaults, two processes side by side decode at a seventh of the speed.
_LOOKING = {"OPENBLAS_THREAD_TIMEOUT": "20", "GOMP_SPINCOUNT": "30000"}


def load() -> tuple[str, str]:
    """Make a fast cblas_sgemm global. Returns the names of its files, and the reason if there is none; both are ""
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
    cores, threads, given = physical_cores(), set(_THREADS.iterdir()), dict(os.environ)
    numbers = dict.fromkeys(("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS"), str(len(cores)))
    os.environ.update(numbers | _LOOKING | given)  # the libraries read these when loaded
    try:
        openblas = ctypes.CDLL(str(path))
        product, blis = _address(openblas, "scipy_cblas_sgemm"), ""
        if platform.machine() == "x86_64":
            blis, few_rows = _blis()
            product = sgemm(_address(openblas, "scipy_cblas_sgemv"), few_rows or product, product)
        name_globally("cblas_sgemm", product)
    except (OSError, AttributeError, KeyError) as error:
        return "", f"cannot load {path}: {error}"
    finally:
        for name in _LOOKING.keys() - given.keys():
            del os.environ[name]
    if len(cores) > 1 and not given.keys() & {"OPENBLAS_NUM_THREADS", "OMP_PROC_BIND"}:
        _bind(threads, cores)
    return path.name + (f" and {blis}" if blis else ""), ""


def _blis() -> tuple[str, int]:
    """The name of BLIS's file and the address of its sgemm; "" and 0 if the system has none."""
    for path in (path for pattern in _BLIS for path in Path("/").glob(pattern)):
        return path.name, _address(ctypes.CDLL(str(path)), "cblas_sgemm")
    return "", 0


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def sgemm(gemv: int, few_rows: int, others: int) -> int:
    """The address of a new cblas_sgemm for x86-64 that passes each product on to one of these functions' addresses."""
    memory = mmap.mmap(-1, 1 << 12, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(_SGEMM + struct.pack("<3Q", gemv, few_rows, others))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # never freed: threads use it to the end
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


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


def physical_cores() -> list[int]:
    """The physical cores that this process may use, each as the number of one of its hardware threads."""
    cores: dict[object, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else cpu, cpu)
    return list(cores.values())


def _bind(before: set[Path], cores: list[int]) -> None:
    """Bind each computing thread to a core, which gains an eighth. They start in this order: OpenBLAS's, one fewer than
    the cores, when it is loaded; MLX's; and as many of BLIS's as of OpenBLAS's."""
    import mlx.core as mx

    mx.eval(mx.ones((2, 512)) @ mx.ones((512, 512)).T)
    new = sorted(int(thread.name) for thread in set(_THREADS.iterdir()) - before)
    with contextlib.suppress(OSError):  # if the system forbids it
        for thread, core in zip(new, cores[1:] + cores, strict=False):
            os.sched_setaffinity(thread, {core})


os.environ.setdefault("MLX_ENABLE_TF32", "0")
loaded, problem = load()
if problem:
    warnings.warn(f"matrix products will be up to eight times slower: {problem}", stacklevel=3)
