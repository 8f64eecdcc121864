"""Npz files (zips of uncompressed .npy members): written member by member, read through a memory map.

mx.savez would hold every array in memory, and mx.load of a large file is slower than a map.
"""

import mmap
import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path

import numpy as np

from checkpoints.tensors import BFLOAT16, stored_members
from errors import InputError


def write_npz_member(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    blocks: Iterable[np.ndarray],
) -> None:
    """Append the array `name` to `archive`, given in C order as `blocks` along its first axis."""
    # MLX expects exactly three characters in the dtype string.
    descr = "<V2" if dtype == BFLOAT16 else dtype.str
    header = dict(descr=descr, fortran_order=False, shape=tuple(shape))
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for block in blocks:
            member.write(np.ascontiguousarray(block).view(np.uint8).data)


def map_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as read-only views of the mapped file; nothing is read yet."""
    try:
        places = stored_members(path).items()
        with open(path, "rb") as file:  # one map for all: each map keeps a file open
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return {name.removesuffix(".npy"): _map_member(mapped, *place) for name, place in places}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # a damaged header raises many kinds
        raise InputError(f"{path}: damaged, or not an npz file: {error}") from None


def _map_member(mapped: mmap.mmap, offset: int, size: int) -> np.ndarray:
    mapped.seek(offset)
    np.lib.format.read_magic(mapped)
    shape, _, dtype = np.lib.format.read_array_header_1_0(mapped)
    start = mapped.tell()
    if dtype.hasobject or start + prod(shape) * dtype.itemsize != offset + size:
        raise ValueError(f"{size} bytes cannot hold an array of {dtype} with the shape {shape}")
    return np.frombuffer(mapped, dtype, prod(shape), start).reshape(shape)
