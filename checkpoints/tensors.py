"""Tensors that are still in their files, conversion between MLX and NumPy, and helpers for readers of checkpoints.

A `Tensor` says where in a file a tensor is. Its blocks are read as NumPy arrays. NumPy has no bfloat16: it is
the two-byte void type `V2` here, as in npz files written by MLX.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.lib.stride_tricks import as_strided

from errors import InputError

BFLOAT16 = np.dtype("V2")
BLOCK_BYTES = 16 << 20
QUANTIZED = "not floating-point of 16 bits or more: convert the original, unquantized checkpoint"


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
        step = max(1, BLOCK_BYTES // (prod(rest) * self.dtype.itemsize))
        for start in range(0, rows, step):
            block = self._read(start * strides[0], (min(step, rows - start), *rest), strides)
            yield block if self.shape else block.reshape(())

    def _read(self, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """The block of this shape that begins at element `first`, copied from a map of the file."""
        where = self.offset + first * self.dtype.itemsize
        try:
            mapped = np.memmap(self.path, self.dtype, "r", where, span(shape, strides))
        except ValueError:
            raise InputError(f"{self.path}: the file ends inside a tensor") from None
        in_bytes = [stride * self.dtype.itemsize for stride in strides]
        source, block = as_strided(mapped, shape, in_bytes), np.empty(shape, self.dtype)
        # Copying a transposed matrix by cache lines is two to four times as fast.
        width = 16 if strides[0] < strides[-1] else shape[-1]
        for column in range(0, shape[-1], width):
            block[..., column : column + width] = source[..., column : column + width]
        return block


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements in storage from a tensor's first to its last, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def are_sizes(values: tuple) -> bool:
    """Whether `values` from a file can be sizes: whole numbers, not too large, not too many."""
    return len(values) < 64 and all(type(n) is int and 0 <= n < 2**48 for n in values)


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """The places of a zip file's members, which must not be compressed: name -> (offset, size). A damaged
    file raises many kinds of errors."""
    places = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{member.filename} is compressed")
            with archive.open(member):  # reads the local header, so the file is now at the data
                places[member.filename] = file.tell(), member.file_size
    return places


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
