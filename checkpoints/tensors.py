"""Tensors that have not been read, arrays in MLX and in NumPy, and what every reader of checkpoints shares.

A `Tensor` says where a tensor lies in a file. Its blocks come as NumPy arrays; bfloat16, which
NumPy lacks, is the two-byte void type `V2`, as in the npz files that MLX writes.
"""

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
# What a file may take to describe its tensors; the largest T5 checkpoints take 0.2 MB.
MAX_HEADER = 4 << 20


@dataclass(frozen=True)
class Tensor:
    """A little-endian tensor in a file, `offset` bytes from its start.

    `strides` count elements, as torch's do. None: C order, nothing in between.
    """

    path: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def blocks(self) -> Iterator[np.ndarray]:
        """The tensor in order along its first axis, about BLOCK_BYTES at a time."""
        if 0 in self.shape:
            return
        if not self.shape:
            yield self._read(0, 1).reshape(())
            return
        rows, row = self.shape[0], prod(self.shape[1:])
        step = max(1, BLOCK_BYTES // (row * self.dtype.itemsize))
        for start in range(0, rows, step):
            count = min(step, rows - start)
            if self.strides is None:
                yield self._read(start * row, count * row).reshape(count, *self.shape[1:])
            else:
                yield self._gather(start, count, self.strides)

    def _read(self, first: int, count: int) -> np.ndarray:
        where = self.offset + first * self.dtype.itemsize
        block = np.fromfile(self.path, self.dtype, count, offset=where)
        if block.size != count:
            raise InputError(f"{self.path}: the file ends inside a tensor")
        return block

    def _gather(self, start: int, count: int, strides: tuple[int, ...]) -> np.ndarray:
        """Rows from `start` on, through a map of the file: only the copy takes memory."""
        first, shape = start * strides[0], (count, *self.shape[1:])
        where = self.offset + first * self.dtype.itemsize
        try:
            mapped = np.memmap(self.path, self.dtype, "r", where, span(shape, strides))
        except ValueError:
            raise InputError(f"{self.path}: the file ends inside a tensor") from None
        in_bytes = [stride * self.dtype.itemsize for stride in strides]
        source, block = as_strided(mapped, shape, in_bytes), np.empty(shape, self.dtype)
        # A transposed matrix is copied a cache line at a time: two to four times as fast.
        width = 16 if strides[0] < strides[-1] else shape[-1]
        for column in range(0, shape[-1], width):
            block[..., column : column + width] = source[..., column : column + width]
        return block


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements from a tensor's first to its last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def are_sizes(values: tuple) -> bool:
    """Whether `values`, which a file gave, can be sizes: not absurd ones, nor too many."""
    return len(values) < 64 and all(type(n) is int and 0 <= n < 2**48 for n in values)


def to_mlx(array: np.ndarray) -> mx.array:
    """A copy of `array` as an MLX array; V2 becomes bfloat16."""
    if array.dtype == BFLOAT16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """`array` as a NumPy array, which shares its memory; bfloat16 becomes V2."""
    if array.dtype == mx.bfloat16:
        return np.asarray(array.view(mx.uint16)).view(BFLOAT16)
    return np.asarray(array)


_INFINITY = {np.dtype("<f4"): 0x7F800000, np.dtype("<f2"): 0x7C00, BFLOAT16: 0x7F80}


def is_finite(block: np.ndarray) -> bool:
    """Whether a block of float32, float16 or V2 has neither infinities nor NaN.

    Taken as integers, the bits of those are the largest of either sign.
    """
    if block.size == 0:
        return True
    infinity, size = _INFINITY[block.dtype], block.dtype.itemsize
    negative = infinity | 1 << (8 * size - 1)
    signed, unsigned = block.view(f"<i{size}"), block.view(f"<u{size}")
    return bool(signed.max() < infinity and unsigned.max() < negative)
