"""Torch's .bin files, read one tensor at a time and without torch.

A file is a zip that holds a pickle and one member per storage or, before torch 1.6, a stream of four pickles, a pickled list
of storage keys, and the storages. The pickle describes tensors as views of storages.
"""

import pickle
from collections import OrderedDict
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from checkpoints.tensors import BFLOAT16, QUANTIZED, Tensor, are_sizes, span, stored_members
from common.errors import InputError

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES: dict[str, np.dtype] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype("<i8"),  # never weights
}
Members = dict[str, tuple[int, int]]  # storage -> where it begins in the file, and its bytes


class _View(NamedTuple):
    """A tensor in the storage `key`; `offset` and `strides` count elements."""

    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict written by torch.save, or of a dict that holds one under "state_dict"."""
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
        if module == "torch" and name in _STORAGES:
            return name
        if module == "torch" and name.endswith("Storage"):
            raise InputError(f"it has torch.{name}, {QUANTIZED}")
        if (module, name) not in _CALLABLE:
            raise ValueError(f"the pickle asks for {module}.{name}")
        return _CALLABLE[module, name]

    def persistent_load(self, pid: tuple) -> tuple[str, int]:
        """The key of a storage and the start of a view into it, which some legacy files have."""
        _, kind, key, _, count, *view = pid
        self.storages[key] = _STORAGES[kind], count
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
