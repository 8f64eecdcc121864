"""Torch's .bin files, read one tensor at a time and without torch.

A file is a zip that holds a pickle and one member per storage or, before torch 1.6, a stream of four pickles, a
pickled list of storage keys, and the storages in that order. In both, the pickle describes tensors as views of
storages.
"""

import io
import pickle
from math import prod
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np

from checkpoints.tensors import BFLOAT16, QUANTIZED, Tensor, are_sizes, span, stored_members
from common.errors import InputError

_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_PICKLE = 4 << 20  # bytes; the pickles of the largest T5 checkpoints take 0.2 MB
_STORAGES: dict[str, np.dtype] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype("<i8"),  # never weights
}


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
    offset, size = members[name]
    file.seek(offset)
    unpickler = _Unpickler(io.BytesIO(file.read(min(size, _MAX_PICKLE))))
    state = unpickler.load()
    places = {}
    for key, (dtype, numel) in unpickler.storages.items():
        places[key], size = members[f"{name.removesuffix('.pkl')}/{key}"]
        if size != numel * dtype.itemsize:
            raise ValueError(f"storage {key} has the wrong size")
    return _tensors(path, state, unpickler.storages, places)


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    pickles = io.BytesIO(file.read(_MAX_PICKLE))
    magic, _protocol, _system = (_Unpickler(pickles).load() for _ in range(3))
    if magic != _MAGIC:
        raise ValueError("not a checkpoint's pickle")
    unpickler = _Unpickler(pickles)
    state = unpickler.load()
    keys = _Unpickler(pickles).load()
    places = {}
    file.seek(pickles.tell())
    for key in keys:
        dtype, numel = unpickler.storages[key]
        size = int.from_bytes(file.read(8), "little")
        places[key] = file.tell()
        if size != numel or file.seek(numel * dtype.itemsize, 1) > path.stat().st_size:
            raise ValueError(f"storage {key} has the wrong size")
    return _tensors(path, state, unpickler.storages, places)


def _tensors(path: Path, state, storages: dict, places: dict[str, int]) -> dict[str, Tensor]:
    """`places` are the storages' offsets in the file."""
    tensors = {}
    for name, view in state.get("state_dict", state).items():
        if not isinstance(view, _View):
            raise ValueError(f"{name} is not a tensor but {type(view).__name__}")
        dtype, numel = storages[view.key]
        # An expanded tensor repeats elements: a small file could ask for any size.
        if view.offset + span(view.shape, view.strides) > numel or prod(view.shape) > numel:
            raise ValueError(f"{name} reaches beyond its storage")
        start = places[view.key] + view.offset * dtype.itemsize
        tensors[name] = Tensor(path, start, dtype, view.shape, view.strides)
    return tensors


class _Unpickler(pickle._Unpickler):
    """Makes plain values and `_View`s, and runs no code from the file."""

    dispatch: ClassVar = pickle._Unpickler.dispatch | {
        # Drop an OrderedDict's attributes (torch's _metadata); allow no other change.
        pickle.BUILD[0]: lambda self: self.stack.pop()
    }

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, tuple[np.dtype, int]] = {}  # key -> (dtype, number of elements)

    def find_class(self, module: str, name: str) -> object:
        """Our stand-in for a name that the pickle calls; never the real object."""
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and name.endswith("Storage"):
            raise InputError(f"it has torch.{name}, {QUANTIZED}")
        if (module, name) not in _CALLABLE:
            needed = "which a floating-point state dict does not need"
            raise ValueError(f"the pickle asks for {module}.{name}, {needed}")
        return _CALLABLE[module, name]

    def persistent_load(self, pid: tuple) -> tuple[str, int]:
        """The key of a storage and the start of a view into it, which some legacy files have."""
        _, dtype, key, _, numel, *view = pid
        self.storages[key] = dtype, numel
        return key, view[0][1] if view and view[0] else 0


def _rebuild_tensor(storage, offset, shape, strides, *unused) -> _View:
    key, start = storage
    if not are_sizes((start, offset, *shape, *strides)):
        raise ValueError("a tensor has an impossible shape")
    return _View(key, start + offset, shape, strides)


_CALLABLE = {
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, requires_grad, hooks: tensor,
}
