"""A fast BLAS for MLX's CPU backend on Linux: import this before mlx.

The wheel mlx[cpu] brings the reference BLAS: a product of one row takes three times as long as it could,
one of eight rows eight times as long as one, so that drafting gains nothing. libmlx asks for cblas_sgemm
and two others by name, and the dynamic linker takes the first of a name in the process's global scope: a
library that is loaded there before mlx is the one that is used. requirements.txt has OpenBLAS as a wheel
of 8 MB, whose functions are called scipy_cblas_sgemm and so on; they get their usual names here.

Nothing is done on macOS, with MLX's CUDA backend, or where mlx or another BLAS has been loaded already.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

SWITCH = "SPECULATIVE_BLAS"  # 0: load none; a path: load that library
NAMES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # what libmlx asks for

# Machine: ELF's number for it, and a jump to the address that follows it; 16 bytes with that.
_JUMPS = {
    "x86_64": (62, b"\xff\x25\x02\x00\x00\x00\x90\x90"),  # jmp [rip + 2]
    "aarch64": (183, b"\x50\x00\x00\x58\x00\x02\x1f\xd6"),  # ldr x16, 8; br x16
}
_PAGE = 1 << 16  # the largest there is


def load() -> tuple[Path | None, str]:
    """Load a BLAS into the global scope, with as many threads as there are cores: which one, or None and
    why none could be. None and "" where none is wanted."""
    choice = os.environ.get(SWITCH, "")
    if choice == "0" or not _wanted():
        return None, ""
    path = Path(choice) if choice else _openblas()
    if path is None:
        return None, "scipy-openblas32 is not installed: pip install -r requirements.txt"
    for variable in ("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, str(physical_cores()))
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        if not choice:
            name_globally({name: _address(library, f"scipy_{name}") for name in NAMES})
    except (OSError, AttributeError, KeyError) as error:
        return None, f"{path} cannot be loaded: {error}"
    return path, ""


def _wanted() -> bool:
    if platform.system() != "Linux" or "mlx.core" in sys.modules:
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


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def physical_cores() -> int:
    """Cores that this process may use, the threads of one counted once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else cpu)
    return len(cores)


def name_globally(addresses: Mapping[str, int]) -> None:
    """Give functions at these addresses names in the process's global scope: load a library, made in
    memory, whose functions of these names jump there. OSError where that is not allowed."""
    file = os.memfd_create("names")
    os.write(file, jumping_library(addresses, platform.machine()))
    ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
    os.close(file)


def jumping_library(addresses: Mapping[str, int], machine: str) -> bytes:
    """A shared library (ELF, 64 bits) with a function of each name, which jumps to the address.

    The least that the dynamic linker takes (System V ABI, chapters 4 and 5): a page to execute, with the
    symbols and their names, and a page to write, with the table of where these are.
    """
    number, jump = _JUMPS[machine]
    names = list(addresses)
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    # A hash table of one bucket, which is a chain of all symbols.
    chain = [1, len(names) + 1, 1, 0, *range(2, len(names) + 1), 0]
    hashes = struct.pack(f"<{len(chain)}I", *chain)
    code = b"".join(jump + struct.pack("<Q", addresses[name]) for name in names)

    code_at = 64 + 3 * 56  # behind the header and three segments
    symbols_at = code_at + len(code)
    hashes_at = symbols_at + 24 * (len(names) + 1)
    strings_at = hashes_at + len(hashes)
    symbols = bytes(24)
    for i, name in enumerate(names):  # 0x12: a global function
        place = strings.index(b"\0" + name.encode() + b"\0") + 1
        symbols += struct.pack("<IBBHQQ", place, 0x12, 0, 1, code_at + 16 * i, 16)
    where = {4: hashes_at, 5: strings_at, 6: symbols_at, 10: len(strings), 11: 24, 0: 0}
    table = b"".join(struct.pack("<QQ", *entry) for entry in where.items())

    first = 64, 56, 3, 64, 0, 0
    header = struct.pack("<16sHHIQQQI6H", b"\x7fELF\2\1\1", 3, number, 1, 0, 64, 0, 0, *first)
    end = strings_at + len(strings)
    for kind, flags, at, size in (
        (1, 5, 0, end),  # to load: read and execute
        (1, 6, _PAGE, len(table)),  # read and write
        (2, 6, _PAGE, len(table)),  # the table
    ):
        header += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE)
    return (header + code + symbols + hashes + strings).ljust(_PAGE, b"\0") + table


loaded, problem = load()
