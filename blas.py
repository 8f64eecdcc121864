"""A fast BLAS for MLX's CPU backend on Linux: import this before mlx.

The wheel mlx[cpu] brings the reference BLAS: a product of one row takes three times as long as it could,
one of eight rows eight times as long as one, so that drafting gains nothing. libmlx asks for cblas_sgemm
and two others by name, and the dynamic linker takes the first of a name in the process's global scope: a
library that is loaded there before mlx is the one that is used. requirements.txt has OpenBLAS as a wheel
of 8 MB, whose functions are called scipy_cblas_sgemm and so on; they get their usual names here. Where
the system has BLIS (libblis4-openmp of Debian and Ubuntu, blis-openmp of Fedora), which is faster for 2 to
30 rows, those products go to it. Threads that compute get a core each, unless OPENBLAS_NUM_THREADS asks for
fewer than there are or OpenMP's variables say where they run.

Nothing is done on macOS, with MLX's CUDA backend, or where another BLAS has been preloaded. Where mlx has been
imported already it is too late, and a warning says so.
"""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

SWITCH = "SPECULATIVE_BLAS"  # 0: load none; a path: load that library
NAMES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # what libmlx asks for

# Machine: ELF's number for it, and a jump to the address that follows it; 16 bytes with that.
_JUMPS = {
    "x86_64": (62, bytes.fromhex("ff2502000000 9090")),  # jmp [rip + 2]
    "aarch64": (183, bytes.fromhex("50000058 00021fd6")),  # ldr x16, 8; br x16
}
# OpenBLAS's product of one row, x W^T, copies W as it does for many; its product of a matrix and a vector
# reads it twice as fast. On x86-64, cblas_sgemm(row major, A as it is, B transposed, 1, N, K, ...)
# becomes cblas_sgemv(row major, B as it is, N, K, ...), whose arguments take the places of sgemm's (System
# V ABI, AMD64 supplement, 3.2.3); its address follows. On ARM OpenBLAS does this by itself.
_ONE_ROW = bytes.fromhex(
    "83f901 7542"  # cmp ecx, 1; jne behind the address: M
    "83fe6f 753d"  # cmp esi, 111; jne: A as it is
    "83fa70 7538"  # cmp edx, 112; jne: B transposed
    "4489c2 4489c9"  # mov edx, r8d; mov ecx, r9d: N and K
    "4c8b442418 448b4c2420"  # mov r8, [rsp + 24]; mov r9d, [rsp + 32]: B and its row's length
    "488b442428"  # mov rax, [rsp + 40]: C
    "c744241001000000"  # mov dword [rsp + 16], 1: A, step 1
    "4889442418 c744242001000000"  # mov [rsp + 24], rax; mov dword [rsp + 32], 1: C, step 1
    "ff2500000000"  # jmp [rip]
)
# The same product of up to 30 rows, which is what checking drafts is and reading a sentence, with 2^18 weights or
# more: fewer are not worth a second thread.
_FEW_ROWS = bytes.fromhex(
    "83f91e 7726"  # cmp ecx, 30; ja behind the address: M
    "83fe6f 7521 83fa70 751c"  # as above
    "4489c0 410fafc1"  # mov eax, r8d; imul eax, r9d: N K
    "3d00000400 720e"  # cmp eax, 2^18; jb
    "ff2500000000"  # jmp [rip]
)
# BLIS's build with OpenMP, in Debian and Ubuntu, and in Fedora. That with pthreads makes threads for every
# product; that of conda has pthreads.
_BLIS = ("/usr/lib/*/blis-openmp/libblis.so.*", "/usr/lib64/libbliso.so.*")
_PAGE = 1 << 16  # the largest there is


def load() -> tuple[str, str]:
    """Load a BLAS into the global scope, with as many threads as there are cores: its file's name, or ""
    and why none could be. Two empty texts where none is wanted."""
    choice = os.environ.get(SWITCH, "")
    if choice == "0" or not _wanted():
        return "", ""
    if "mlx.core" in sys.modules:
        return "", "mlx was imported before it could be loaded: import decoder first"
    path = Path(choice) if choice else _openblas()
    if path is None:
        return "", "scipy-openblas32 is not installed: pip install -r requirements.txt"
    cores = physical_cores()
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or str(len(cores))
    for variable in ("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, threads)
    if threads == "1" or threads != str(len(cores)) or not _may_bind():
        cores = []  # to bind threads to
    blis, few_rows = ("", b"") if choice else _blis(cores)
    try:
        library = _library(path, cores, ctypes.RTLD_GLOBAL)
        if not choice:
            name_globally(_functions(library, few_rows))
    except (OSError, AttributeError, KeyError) as error:
        return "", f"{path} cannot be loaded: {error}"
    _begin_computing(cores)
    return path.name + (f" and {blis}" if blis else ""), ""


def _wanted() -> bool:
    if platform.system() != "Linux":
        return False
    if any(name in os.environ.get("LD_PRELOAD", "") for name in ("blas", "blis", "mkl")):
        return False
    try:
        importlib.metadata.distribution("mlx-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _openblas() -> Path | None:
    package = importlib.util.find_spec("scipy_openblas32")
    return (
        Path(package.origin).parent / "lib/libscipy_openblas.so"
        if package and package.origin
        else None
    )


def _blis(cores: Sequence[int] = ()) -> tuple[str, bytes]:
    """The file's name and the address of its sgemm; nothing where there is none that can be loaded."""
    if platform.machine() == "x86_64":
        for path in (path for pattern in _BLIS for path in sorted(Path("/").glob(pattern[1:]))):
            with contextlib.suppress(OSError, AttributeError):
                return path.name, _address(_library(path, cores), "cblas_sgemm")
    return "", b""


# Threads that compute have a core each. MLX's thread takes part in every product, with those of a BLAS: else the
# scheduler has two of them on one core now and then, when Python's wakes, and for dozens of products both wait for
# each other.

_BINDING = "GOMP_CPU_AFFINITY"  # cores for OpenMP's threads, read when its library is loaded
# How long threads look for a next product before they sleep: 2^20 cycles in OpenBLAS, about as long with OpenMP.
# By default it is so long that two processes on the same cores decode at a seventh of the speed.
_LOOKING = {"OPENBLAS_THREAD_TIMEOUT": "20", "GOMP_SPINCOUNT": "30000"}


def _may_bind() -> bool:
    """Not where the user says how OpenMP's threads are bound, where its library has been loaded already, or where
    the system does not allow it."""
    if any(name in os.environ for name in (_BINDING, "OMP_PROC_BIND", "OMP_PLACES")):
        return False
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        _threads()
    except OSError:
        return False
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return True
    return False


def _library(path: Path, cores: Sequence[int], mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load a library, its threads bound to `cores` from the second on (none: not bound)."""
    settings = _LOOKING | ({_BINDING: " ".join(map(str, cores))} if cores else {})
    ours = {name: value for name, value in settings.items() if name not in os.environ}
    anywhere, before = os.sched_getaffinity(0), _threads() if cores else set()
    os.environ.update(ours)
    try:
        return ctypes.CDLL(str(path), mode=mode)
    finally:
        for name in ours:
            del os.environ[name]
        if cores:
            os.sched_setaffinity(0, anywhere)  # OpenMP has bound this thread as well
            for thread, core in zip(sorted(_threads() - before), cores[1:], strict=False):
                os.sched_setaffinity(thread, {core})


def _begin_computing(cores: Sequence[int]) -> None:
    """Have MLX begin the thread that computes what the calling thread asks for, on the first of `cores`."""
    if cores:
        import mlx.core as mx

        anywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cores[0]})  # and what begins here
        mx.eval(mx.zeros(1, stream=mx.cpu))
        os.sched_setaffinity(0, anywhere)


def _threads() -> set[int]:
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}


def _functions(openblas: ctypes.CDLL, few_rows: bytes) -> dict[str, bytes]:
    """The machine code of each function that libmlx asks for; few_rows: the address of BLIS's sgemm, if any."""
    codes = {name: jump(_address(openblas, f"scipy_{name}")) for name in NAMES}
    if platform.machine() == "x86_64":
        cases = special_cases(_address(openblas, "scipy_cblas_sgemv"), few_rows)
        codes["cblas_sgemm"] = cases + codes["cblas_sgemm"]
    return codes


def special_cases(one_row: bytes, few_rows: bytes) -> bytes:
    """The beginning of an sgemm for x86-64: jumps to the sgemv and the sgemm at these addresses (none where
    there is none) for the products that are theirs, and goes on behind with all others."""
    return _ONE_ROW + one_row + (_FEW_ROWS + few_rows if few_rows else b"")


def _address(library: ctypes.CDLL, name: str) -> bytes:
    return bytes(ctypes.cast(getattr(library, name), ctypes.c_void_p))


def jump(address: bytes) -> bytes:
    """The machine code of a function that jumps to this address."""
    return _JUMPS[platform.machine()][1] + address


def physical_cores() -> list[int]:
    """The cores that this process may use, each by the number of one of its threads; where processes run side by
    side, not with the same one first."""
    cores: dict[object, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else cpu, cpu)
    numbers = list(cores.values())
    first = os.getpid() % len(numbers)
    return numbers[first:] + numbers[:first]


def name_globally(codes: Mapping[str, bytes]) -> None:
    """Give these functions names in the process's global scope: load a library of them, made in memory.
    OSError where that is not allowed."""
    file = os.memfd_create("names")
    os.write(file, shared_library(codes, platform.machine()))
    ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
    os.close(file)


def shared_library(codes: Mapping[str, bytes], machine: str) -> bytes:
    """A shared library (ELF, 64 bits) with a function of each name and machine code.

    The least that the dynamic linker takes (System V ABI, chapters 4 and 5): a page to execute, with the
    symbols and their names, and a page to write, with the table of where these are.
    """
    names = list(codes)
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    # A hash table of one bucket, which is a chain of all symbols.
    chain = [1, len(names) + 1, 1, 0, *range(2, len(names) + 1), 0]
    hashes = struct.pack(f"<{len(chain)}I", *chain)
    code, starts = b"", []
    for name in names:
        starts.append(len(code))
        code += codes[name] + bytes(-len(codes[name]) % 16)

    code_at = 64 + 3 * 56  # behind the header and three segments
    symbols_at = code_at + len(code)
    hashes_at = symbols_at + 24 * (len(names) + 1)
    strings_at = hashes_at + len(hashes)
    symbols = bytes(24)
    for name, start in zip(names, starts, strict=True):  # 0x12: a global function
        place = strings.index(b"\0" + name.encode() + b"\0") + 1
        symbols += struct.pack("<IBBHQQ", place, 0x12, 0, 1, code_at + start, len(codes[name]))
    where = {4: hashes_at, 5: strings_at, 6: symbols_at, 10: len(strings), 11: 24, 0: 0}
    table = b"".join(struct.pack("<QQ", *entry) for entry in where.items())

    first = 64, 56, 3, 64, 0, 0
    header = struct.pack(
        "<16sHHIQQQI6H", b"\x7fELF\2\1\1", 3, _JUMPS[machine][0], 1, 0, 64, 0, 0, *first
    )
    end = strings_at + len(strings)
    for kind, flags, at, size in (
        (1, 5, 0, end),  # to load: read and execute
        (1, 6, _PAGE, len(table)),  # read and write
        (2, 6, _PAGE, len(table)),  # the table
    ):
        header += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE)
    return (header + code + symbols + hashes + strings).ljust(_PAGE, b"\0") + table


loaded, problem = load()
if problem and "mlx.core" in sys.modules:
    warnings.warn(f"products will be slow, up to eight times: {problem}", stacklevel=3)
