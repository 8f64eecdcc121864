"""Tensors that are still in their files, safetensors, our own npz files, and conversion between MLX and NumPy.

NumPy has no bfloat16: it is the two-byte void type `V2` here, as in MLX's npz files. They are written member by member and
read through a map: mx.savez would hold every array in memory.
"""

import json
import mmap
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.lib.stride_tricks import as_strided

from common.errors import InputError

BFLOAT16 = np.dtype("V2")
BLOCK_BYTES = 16 << 20
QUANTIZED = "not floating-point of 16 bits or more: convert the original, unquantized checkpoint"
_SAFETENSORS: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),  # never weights
}


@dataclass(frozen=True)
class Tensor:
    """A little-endian tensor in a file."""

    path: Path
    offset: int  # in bytes
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()  # in elements, as torch's; (): C order

    def blocks(self) -> Iterator[np.ndarray]:
        """Blocks of about BLOCK_BYTES, in order along the first axis."""
        if 0 in self.shape:
            return
        rows, *rest = self.shape or (1,)
        strides = self.strides or tuple(prod(rest[i:]) for i in range(len(rest) + 1))
        in_bytes = [stride * self.dtype.itemsize for stride in strides]
        step = max(1, BLOCK_BYTES // (prod(rest) * self.dtype.itemsize))
        for start in range(0, rows, step):
            shape = (min(step, rows - start), *rest)
            where = self.offset + start * in_bytes[0]
            mapped = np.memmap(self.path, self.dtype, "r", where, span(shape, strides))
            block = np.array(as_strided(mapped, shape, in_bytes), order="C")
            yield block if self.shape else block.reshape(())


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements in storage from a tensor's first to its last, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def are_sizes(values: tuple) -> bool:
    """Whether `values` from a file can be sizes: whole numbers, not too large, not too many."""
    return len(values) < 64 and all(type(n) is int and 0 <= n < 2**48 for n in values)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whose package needs torch for bfloat16: 8 bytes of header length, a JSON header, data."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise InputError(f"{path}: truncated, or not a safetensors file")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {n: _safetensor(path, n, entry, 8 + length, size) for n, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            fault = "" if isinstance(error, InputError) else "truncated, or its header is damaged: "
            raise InputError(f"{path}: {fault}{error}") from None


def _safetensor(path: Path, name: str, entry: dict, start: int, size: int) -> Tensor:
    dtype = entry["dtype"]
    if dtype not in _SAFETENSORS:
        raise InputError(f"{name} is {dtype}, {QUANTIZED}")
    begin, end = entry["data_offsets"]
    tensor = Tensor(path, start + begin, _SAFETENSORS[dtype], tuple(entry["shape"]))
    fits = are_sizes((begin, end, *tensor.shape)) and start + end <= size
    if not fits or end - begin != prod(tensor.shape) * tensor.dtype.itemsize:
        raise ValueError(f"{name} does not have as many bytes as its shape needs")
    return tensor


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """A zip file's members, which must not be compressed: name -> (offset, size). A damaged file raises many kinds of errors."""
    places = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{member.filename} is compressed")
            with archive.open(member):  # reads the local header, so the file is now at the data
                places[member.filename] = file.tell(), member.file_size
    return places


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
    arrays = {}
    try:
        places = stored_members(path)
        with open(path, "rb") as file:  # one map for all: each map keeps a file open
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, (offset, size) in places.items():
            mapped.seek(offset)
            np.lib.format.read_magic(mapped)
            shape, _, dtype = np.lib.format.read_array_header_1_0(mapped)
            start = mapped.tell()
            if dtype.hasobject or start + prod(shape) * dtype.itemsize != offset + size:
                kind = f"an array of {dtype} with the shape {shape}"
                raise ValueError(f"{size} bytes cannot hold {kind}")
            array = np.frombuffer(mapped, dtype, prod(shape), start).reshape(shape)
            arrays[name.removesuffix(".npy")] = array
        return arrays
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # a damaged header raises many kinds
        raise InputError(f"{path}: damaged, or not an npz file: {error}") from None


def to_mlx(array: np.ndarray) -> mx.array:
    """A copy of `array` as an MLX array; V2 becomes bfloat16."""
    if array.dtype == BFLOAT16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """`array` as a NumPy array that shares its memory; bfloat16 becomes V2."""
    if array.dtype == mx.bfloat16:
        return np.asarray(array.view(mx.uint16)).view(BFLOAT16)
    return np.asarray(array)
