"""Npz files, a zip of stored .npy members: written member by member, and mapped.

mx.savez holds every array in memory; mx.load of a large npz made the process abort at exit, and was
slower than a map.
"""

import mmap
import re
import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path

import numpy as np

from checkpoints.stored_zip import stored_members
from checkpoints.tensors import BFLOAT16, are_sizes
from errors import InputError

_NPY_HEADER = re.compile(
    rb"(?s)\x93NUMPY\x01\x00..\{'descr': '([<|](?:[fiu][248]|[iu]1|V2))', 'fortran_order': False, "
    rb"'shape': \(((?:\d+, ?)*\d*)\), \} *\n"
)


def write_npz_member(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    blocks: Iterable[np.ndarray],
) -> None:
    """Append the array `name` to `archive`, given in C order as `blocks` along its first axis."""
    # MLX takes the dtype string's length for granted: three characters.
    descr = "<V2" if dtype == BFLOAT16 else dtype.str
    header = dict(descr=descr, fortran_order=False, shape=tuple(shape))
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for block in blocks:
            member.write(np.ascontiguousarray(block).view(np.uint8).data)


def map_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as read-only views of the mapped file: nothing is read yet."""
    try:
        places = stored_members(path)
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return {n.removesuffix(".npy"): _map_member(mapped, n, *places[n]) for n in places}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path}: not a readable npz file: {error}") from None


def _map_member(mapped: mmap.mmap, name: str, offset: int, size: int) -> np.ndarray:
    header = _NPY_HEADER.match(mapped, offset, offset + size)
    if header is None:
        raise ValueError(f"{name} is not an array that convert.py writes")
    end = header.end()
    dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
    if not are_sizes(shape) or end + prod(shape) * dtype.itemsize != offset + size:
        raise ValueError(f"{name} has {offset + size - end} bytes for the shape {list(shape)}")
    return np.frombuffer(mapped, dtype, prod(shape), end).reshape(shape)
