"""Tensors that have not been read, and what every reader of checkpoints shares.

A `Tensor` says where a tensor lies in a file. Its blocks come as NumPy arrays; bfloat16, which
NumPy lacks, is the two-byte void type `V2`, as in the npz files that MLX writes.
"""

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from math import prod
from pathlib import Path

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


class _Bounded(BufferedReader):
    """A file that a wrong directory cannot make zipfile read much of at once, or outside of."""

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and not 0 <= offset < 2**62:
            raise zipfile.BadZipFile("its directory points outside the file")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_HEADER:
            raise zipfile.BadZipFile("its directory is too large")
        return super().read(size)


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the members of a zip file lie, none of them compressed: name -> (offset, size)."""
    try:
        with FileIO(path) as raw, _Bounded(raw) as file, zipfile.ZipFile(file) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.header_offset)
            ends = [member.header_offset for member in members[1:]] + [archive.start_dir]
            places = {m.filename: _payload(file, m, e) for m, e in zip(members, ends, strict=True)}
    except InputError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        raise InputError(f"truncated or damaged zip file: {error}") from None
    if len(places) != len(members):
        raise InputError("two members of the zip file have the same name")
    return places


def _payload(file: BufferedReader, member: zipfile.ZipInfo, end: int) -> tuple[int, int]:
    name, size = member.filename, member.file_size
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise InputError(f"{name} is compressed or encrypted")
    file.seek(member.header_offset)
    header = file.read(30)
    # The local header's extra field may be longer than the directory's: it aligns the payload.
    signature, name_length, extra_length = struct.unpack("<4s22xHH", header)
    offset = member.header_offset + 30 + name_length + extra_length
    if signature != b"PK\3\4" or member.compress_size != size or offset + size > end:
        raise InputError(f"{name} is not where, or not as large as, the zip file's directory says")
    return offset, size
