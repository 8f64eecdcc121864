"""Tensors that are still in their files, safetensors or torch's, our own npz files, and conversion between MLX and NumPy.

NumPy has no bfloat16: it is the two-byte void type `V2` here, as in MLX's npz files. They are written member by member and
read through a map: mx.savez would hold every array in memory.
"""

import json
import mmap
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.lib.stride_tricks import as_strided

from speculative.common.errors import InputError

BFLOAT16 = np.dtype("V2")
BLOCK_BYTES = 16 << 20
QUANTIZED = "not floating-point of 16 bits or more: convert the original, unquantized checkpoint"
_NAMES = {  # of types, in safetensors and in torch's files
    "<f8": ("F64", "DoubleStorage"),
    "<f4": ("F32", "FloatStorage"),
    "<f2": ("F16", "HalfStorage"),
    "V2": ("BF16", "BFloat16Storage"),
    "<i8": ("I64", "LongStorage"),  # never weights
}
_DTYPES = {name: np.dtype(dtype) for dtype, names in _NAMES.items() for name in names}
_MAGIC = 0x1950A86A20F9469CFC6C
Members = dict[str, tuple[int, int]]  # storage -> where it begins in the file, and its bytes
Tensors = Mapping[str, "Tensor"]


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
        strides = self._strides()
        in_bytes = [stride * self.dtype.itemsize for stride in strides]
        step = max(1, BLOCK_BYTES // (prod(rest) * self.dtype.itemsize))
        for start in range(0, rows, step):
            shape = (min(step, rows - start), *rest)
            where = self.offset + start * in_bytes[0]
            mapped = np.memmap(self.path, self.dtype, "r", where, span(shape, strides))
            block = np.array(as_strided(mapped, shape, in_bytes), order="C")
            yield block if self.shape else block.reshape(())

    def permuted(self, *axes: int) -> "Tensor":
        strides = self._strides()
        shape = tuple(self.shape[axis] for axis in axes)
        return replace(self, shape=shape, strides=tuple(strides[axis] for axis in axes))

    def _strides(self) -> tuple[int, ...]:
        rest = self.shape[1:]
        return self.strides or tuple(prod(rest[i:]) for i in range(len(rest) + 1))


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
    if dtype not in _DTYPES:
        raise InputError(f"{name} is {dtype}, {QUANTIZED}")
    begin, end = entry["data_offsets"]
    tensor = Tensor(path, start + begin, _DTYPES[dtype], tuple(entry["shape"]))
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
    archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple, blocks: Iterable[np.ndarray]
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


class _View(NamedTuple):
    """A tensor in the storage `key`; `offset` and `strides` count elements."""

    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict written by torch.save, or of a dict that holds one under "state_dict", without torch. A file
    is a zip that holds a pickle and one member per storage or, before torch 1.6, a stream of four pickles, a pickled list of
    storage keys, and the storages. The pickle describes tensors as views of storages."""
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4) == b"PK\3\4"
            file.seek(0)
            return _read_zip(path, file) if is_zip else _read_legacy(path, file)
    except Exception as error:  # damage raises about a dozen kinds
        fault = "" if isinstance(error, InputError) else "truncated, or not a torch state dict: "
        raise InputError(f"{path}: {fault}{error}") from None


def _read_zip(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    members = stored_members(path)
    name = next(name for name in members if name.endswith("/data.pkl"))
    file.seek(members[name][0])
    unpickler = _Unpickler(file)
    state = unpickler.load()
    folder = name.removesuffix(".pkl")
    storages = {key: members[f"{folder}/{key}"] for key in unpickler.storages}
    return _tensors(path, state, unpickler.storages, storages)


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    magic, _protocol, _system = (_Unpickler(file).load() for _ in range(3))
    if magic != _MAGIC:
        raise ValueError("not a checkpoint's pickle")
    unpickler = _Unpickler(file)
    state = unpickler.load()
    storages: Members = {}
    for key in _Unpickler(file).load():
        size = int.from_bytes(file.read(8), "little") * unpickler.storages[key][0].itemsize
        storages[key] = file.tell(), size
        file.seek(size, 1)
    return _tensors(path, state, unpickler.storages, storages)


def _tensors(path: Path, state, types: dict, storages: Members) -> dict[str, Tensor]:
    """types: of the storages, the dtypes and numbers of elements that the pickle names"""
    for key, (dtype, count) in types.items():
        begin, size = storages[key]
        if size != count * dtype.itemsize or begin + size > path.stat().st_size:
            raise ValueError(f"storage {key} has the wrong size")
    tensors = {}
    for name, view in state.get("state_dict", state).items():
        if not isinstance(view, _View):
            raise ValueError(f"{name} is not a tensor but {type(view).__name__}")
        dtype, count = types[view.key]
        # An expanded tensor repeats elements: a small file could ask for any size.
        if view.offset + span(view.shape, view.strides) > count or prod(view.shape) > count:
            raise ValueError(f"{name} reaches beyond its storage")
        begin = storages[view.key][0] + view.offset * dtype.itemsize
        tensors[name] = Tensor(path, begin, dtype, view.shape, view.strides)
    return tensors


class _Unpickler(pickle.Unpickler):
    """Makes plain values and `_View`s, and runs no code from the file."""

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, tuple[np.dtype, int]] = {}  # key -> (dtype, number of elements)

    def find_class(self, module: str, name: str) -> object:
        """Our stand-in for a name that the pickle calls, never the real object; a type of storage by its name."""
        if module == "torch" and name in _DTYPES:
            return name
        if module == "torch" and name.endswith("Storage"):
            raise InputError(f"it has torch.{name}, {QUANTIZED}")
        if (module, name) not in _CALLABLE:
            raise ValueError(f"the pickle asks for {module}.{name}")
        return _CALLABLE[module, name]

    def persistent_load(self, pid: tuple) -> tuple[str, int]:
        """The key of a storage and the start of a view into it, which some legacy files have."""
        _, kind, key, _, count, *view = pid
        self.storages[key] = _DTYPES[kind], count
        return key, view[0][1] if view and view[0] else 0


def _rebuild_tensor(storage, offset, shape, strides, *unused) -> _View:
    key, start = storage
    if not are_sizes((start, offset, *shape, *strides)):
        raise ValueError("a tensor has an impossible shape")
    return _View(key, start + offset, shape, strides)


_CALLABLE = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, requires_grad, hooks: tensor,
}
