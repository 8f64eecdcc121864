"""Checkpoint files: safetensors read one block at a time, npz written and mapped, without torch.

A `Tensor` names a tensor that has not been read. Its blocks come as NumPy arrays; bfloat16, which
NumPy lacks, is the two-byte void type `V2`, as in the npz files that MLX writes.
"""

import json
import mmap
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

BFLOAT16 = np.dtype("V2")
BLOCK_BYTES = 64 << 20


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file: little-endian, C order, `offset` bytes from the file's start."""

    path: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def blocks(self) -> Iterator[np.ndarray]:
        """The tensor in order along its first axis, about BLOCK_BYTES at a time."""
        if not self.shape or 0 in self.shape:
            yield self._read(0, prod(self.shape)).reshape(self.shape)
            return
        rows, row = self.shape[0], prod(self.shape[1:])
        step = max(1, BLOCK_BYTES // (row * self.dtype.itemsize))
        for start in range(0, rows, step):
            count = min(step, rows - start)
            yield self._read(start * row, count * row).reshape(count, *self.shape[1:])

    def _read(self, first: int, count: int) -> np.ndarray:
        where = self.offset + first * self.dtype.itemsize
        block = np.fromfile(self.path, self.dtype, count, offset=where)
        if block.size != count:
            raise InputError(f"{self.path}: the file ends inside a tensor")
        return block


def to_mlx(array: np.ndarray) -> mx.array:
    """A copy of `array` as an MLX array; V2 becomes bfloat16."""
    if array.dtype == BFLOAT16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """`array` as a NumPy array; bfloat16 becomes V2."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(BFLOAT16)
    return np.array(array)


# ---------------------------------------------------------------------------------------------
# Hugging Face folders

_SAFETENSORS_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def read_json(path: Path) -> dict:
    """The object in the JSON file `path`; InputError where it is missing or no such thing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value


def open_checkpoint(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder, from its index file or its single file."""
    if (folder / _INDEX).exists():
        return _open_shards(folder)
    if (folder / _SINGLE).exists():
        return read_safetensors(folder / _SINGLE)
    if any(folder.glob("pytorch_model*.bin*")):
        raise InputError(f"{folder}: only torch .bin weights, which are not supported yet")
    raise InputError(f"{folder}: no {_SINGLE} and no {_INDEX}")


def _open_shards(folder: Path) -> dict[str, Tensor]:
    index = folder / _INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: no weight_map")
    shards: dict[str, dict[str, Tensor]] = {}
    for file in sorted(set(map(str, weight_map.values()))):
        if Path(file).name != file:
            raise InputError(f"{index}: names a file outside its folder: {file}")
        if not (folder / file).exists():
            raise InputError(f"{index}: names {file}, which is missing")
        shards[file] = read_safetensors(folder / file)
    tensors = {}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise InputError(f"{folder / file}: {name} is missing, though the index puts it there")
        tensors[name] = shards[file][name]
    return tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file: 8 bytes of header length, a JSON header, the data.

    The safetensors package reads bfloat16 only into torch, hence these lines. Format:
    https://github.com/huggingface/safetensors#format
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise InputError(f"{path}: truncated, or not a safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise InputError(f"{path}: the header is not JSON") from None
    if not isinstance(header, dict):
        raise InputError(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    return {n: _safetensor(path, n, entry, 8 + length, size) for n, entry in header.items()}


def _safetensor(path: Path, name: str, entry: dict, start: int, size: int) -> Tensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sane = all(type(n) is int and n >= 0 for n in (begin, end, *shape))
    except (TypeError, KeyError, ValueError):
        sane = False
    if not sane:
        raise InputError(f"{path}: {name} has a malformed header entry")
    if dtype not in _SAFETENSORS_DTYPES:
        raise InputError(f"{path}: {name} is {dtype}, not a floating-point type")
    tensor = Tensor(path, start + begin, _SAFETENSORS_DTYPES[dtype], shape)
    if end - begin != prod(shape) * tensor.dtype.itemsize:
        raise InputError(f"{path}: {name} has {end - begin} bytes for the shape {list(shape)}")
    if start + end > size:
        raise InputError(f"{path}: truncated: {name} lies beyond the end of the file")
    return tensor


# ---------------------------------------------------------------------------------------------
# npz: a zip of stored .npy members. Written member by member, so that memory does not grow with
# the file (mx.savez holds every array); mapped, because mx.load of a large npz made the process
# abort at exit, and was slower.


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
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return {m.filename.removesuffix(".npy"): _map_member(mapped, m) for m in members}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, struct.error, ValueError) as error:
        raise InputError(f"{path}: not a readable npz file: {error}") from None


def _map_member(mapped: mmap.mmap, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")
    # The local header's extra field may be longer than the central directory's.
    name_length, extra_length = struct.unpack_from("<HH", mapped, member.header_offset + 26)
    mapped.seek(member.header_offset + 30 + name_length + extra_length)
    if np.lib.format.read_magic(mapped) != (1, 0):
        raise ValueError(f"{member.filename} is not version 1.0 of the npy format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(mapped)
    if fortran_order:
        raise ValueError(f"{member.filename} is in Fortran order")
    return np.frombuffer(mapped, dtype, prod(shape), mapped.tell()).reshape(shape)
