"""Checkpoint folders and safetensors files, read without torch; npz files, written and mapped."""

import json
import mmap
import re
import zipfile
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from checkpoints.tensors import BFLOAT16, MAX_HEADER, Tensor, are_sizes, stored_members
from checkpoints.torch_files import read_torch
from errors import InputError


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


# ---------------------------------------------------------------------------------------------
# Hugging Face folders

_SAFETENSORS_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
}


def read_json(path: Path) -> dict:
    """The object in the JSON file `path`; InputError where it is missing or no such thing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value


def open_checkpoint(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder; of its safetensors, where it has both kinds."""
    kinds = {"model.safetensors": read_safetensors, "pytorch_model.bin": read_torch}
    for single, read in kinds.items():
        index = folder / f"{single}.index.json"
        if index.exists():
            return _open_shards(index, read)
        if (folder / single).exists():
            return read(folder / single)
    raise InputError(f"{folder}: no weights: neither model.safetensors nor pytorch_model.bin")


def _open_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    folder = index.parent
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: no weight_map")
    if not all(type(file) is str for file in weight_map.values()):
        raise InputError(f"{index}: its weight_map names other things than files")
    files = {path.name for path in folder.iterdir() if path.is_file()}
    shards: dict[str, dict[str, Tensor]] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise InputError(f"{index}: names a file outside its folder: {file}")
        if file not in files:
            raise InputError(f"{index}: names {file}, which is missing")
        shards[file] = read(folder / file)
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
        if length > MAX_HEADER:
            raise InputError(f"{path}: the header is too large: {length} bytes")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise InputError(f"{path}: the header is not JSON") from None
    if not isinstance(header, dict):
        raise InputError(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    return {n: _safetensor(path, n, entry, 8 + length, size) for n, entry in header.items()}


def _safetensor(path: Path, name: str, entry: dict, start: int, size: int) -> Tensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sane = are_sizes((begin, end, *shape)) and type(dtype) is str
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

_NPY_HEADER = re.compile(
    rb"\{'descr': '([<|](?:[fiu][248]|[iu]1|V2))', 'fortran_order': False, "
    rb"'shape': \(((?:\d+, ?)*\d*)\), \}\s*"
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
    if mapped[offset : offset + 8] != b"\x93NUMPY\1\0":
        raise ValueError(f"{name} is not version 1.0 of the npy format")
    start = offset + 10
    end = start + int.from_bytes(mapped[start - 2 : start], "little")
    header = _NPY_HEADER.fullmatch(mapped, start, end)
    if header is None:
        raise ValueError(f"{name} is not an array that convert.py writes")
    dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
    if not are_sizes(shape) or end + prod(shape) * dtype.itemsize != offset + size:
        raise ValueError(f"{name} has {offset + size - end} bytes for the shape {list(shape)}")
    return np.frombuffer(mapped, dtype, prod(shape), end).reshape(shape)
